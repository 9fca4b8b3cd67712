"""TaskStore: a separate store for a test, with on-demand execution."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

import sqlalchemy as sa

from runner.client.client import replace
from runner.client.commit import Template
from runner.client.database_client import Client
from runner.client.handler import TaskHandler
from runner.client.results import TaskHandle
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import WouldBlock
from runner.handlers.keyring import Keyring, Use
from runner.handlers.registry import REGISTRY, Handler
from runner.handlers.resources import Resource
from runner.model.duration import parse_duration
from runner.model.headers import read_headers
from runner.model.outcome import Delay
from runner.model.task import NewTask, SubmitResult
from runner.settings import Settings
from runner.testing.drain import Drain, Ran, advance
from runner.urls import parse_url

if TYPE_CHECKING:
    from runner.db.statement import SingleInsert
    from runner.settings.keywords import StoreKeywords


class TestClient(Client):
    """The client of a test's store.

    Args:
        settings: names the store.
        drain: runs due tasks on the caller's event loop.
    """

    is_replaceable = False

    def __init__(self, settings: Settings, drain: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(settings)
        self._drain = drain
        self.inline = False
        """True in inline mode."""

    def submit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks, and in inline mode run them; the caller has no event loop."""
        result = super().submit(tasks)
        if self.inline:
            asyncio.run(self._run_drain())
        return result

    async def submit_async(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks, and in inline mode run them on the caller's event loop."""
        result = await super().submit_async(tasks)
        if self.inline:
            await self._drain()
        return result

    def insert_of(self, template: Template) -> "SingleInsert | None":
        """Return the statement of a single submit; None in inline mode, in which a submit runs tasks too."""
        return None if self.inline else super().insert_of(template)

    async def _run_drain(self) -> None:
        await self._drain()


R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredTask(Generic[R]):
    """A task of the store.

    Args:
        id: task id, as the handle of the task.
        handler: handler name.
        queue: queue name.
        key: business key.
        state: stored state: waiting, blocked, running, succeeded, dead or cancelled.
        run_at: earliest time of execution.
        attempt: attempts used.
        error: last error.
        payload: arguments.
        result: return value of the handler, as JSON has it; `id.result()` has its type.
        headers: headers by name.
    """

    id: TaskHandle[R]
    handler: str
    queue: str
    key: str | None
    state: str
    run_at: datetime
    attempt: int
    error: str | None
    payload: dict[str, Any]
    result: Any
    headers: Mapping[str, str]


class TaskStore:
    """A store that receives every submit while it is open, and runs tasks only on request.

    Args:
        url: database for this test only; its tables are created.
        settings: single settings by name, e.g. retry="1m".

    Examples:
        >>> with TaskStore.in_folder(tmp_path) as store:
        ...     sign_up("ana@example.org")
        ...     assert [ran.verb for ran in store.drain()] == ["succeed"]
    """

    def __init__(self, url: str, **settings: "Unpack[StoreKeywords]") -> None:
        self.url = url
        values: dict[str, Any] = {"url": parse_url(url), "notify": False, **settings}
        self.settings = Settings(**values)
        self._door = TestClient(self.settings, self._run_drain)
        self._before: Any = None
        self._replacements: dict[str, Any] = {}

    @classmethod
    def in_folder(cls, folder: Path, **settings: "Unpack[StoreKeywords]") -> Self:
        """Open a store in a new SQLite file in a folder: the fastest choice, sufficient for most tests."""
        settings.setdefault("sqlite_synchronous", "NORMAL")
        return cls(f"sqlite:///{folder / 'tasks.db'}", **settings)

    def __enter__(self) -> Self:
        self._before = replace(self._door)
        self._door.run(_nothing).result()  # creates the tables, so that a test can query before it submits
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        replace(self._before)
        self._door.close()

    def drain(self, *handlers: Handler | str, ahead: Delay = 0) -> list[Ran]:
        """Run due tasks and the tasks that they trigger, one after the other, until none is due.

        Args:
            handlers: handlers to run; all registered ones by default.
            ahead: longest time to advance for retries and scheduled tasks: text ("1h"), seconds or timedelta.

        Returns:
            The attempts in order.

        Raises:
            WouldBlock: called on an event loop: await drain_async there.
        """
        return _run(self.drain_async(*handlers, ahead=ahead))

    async def drain_async(self, *handlers: Handler | str, ahead: Delay = 0) -> list[Ran]:
        """Same as `drain`, on the caller's event loop."""
        return await self._run_drain(_by_name(handlers), parse_duration(ahead).total_seconds())

    def advance(self, delay: Delay) -> None:
        """Let time pass for all stored rows.

        Args:
            delay: time to pass: text ("10m"), seconds or timedelta.
        """
        seconds = parse_duration(delay).total_seconds()
        self._door.run(lambda database: database.write(advance, seconds)).result()

    @overload
    def tasks(self, handler: TaskHandler[..., Any, R]) -> list[StoredTask[R]]: ...

    @overload
    def tasks(self, handler: str | None = None) -> list[StoredTask[Any]]: ...

    def tasks(self, handler: Handler | str | None = None) -> list[StoredTask[Any]]:
        """Return the tasks of a handler, or all, live and finished, in the order of submission.

        Raises:
            KeyMissing, Undecodable: the settings have no key for an encrypted task, or the key does not fit.
        """
        name = handler.name if isinstance(handler, Handler) else handler
        rows = self._door.run(lambda database: database.read(_tasks, name)).result()
        return [_stored_task(row, self._door.sealing.keyring) for row in rows]

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Run tasks within the block as they are submitted, before the submit returns.

        Failed tasks are not retried immediately; check `tasks()` for their state.
        """
        self._door.inline = True
        try:
            yield
        finally:
            self._door.inline = False

    @contextmanager
    def replaced(self, resource: Resource[T], value: T) -> Iterator[T]:
        """Pass an object to handlers in the place of a resource within the block; the resource is not opened.

        Args:
            resource: the function with @resource.
            value: the object.
        """
        self._replacements[resource.name] = value
        try:
            yield value
        finally:
            del self._replacements[resource.name]

    async def _run_drain(self, handlers: Mapping[str, Handler] | None = None, ahead: float = 0.0) -> list[Ran]:
        database = Database.of(self.settings)
        try:
            registered = REGISTRY if handlers is None else handlers
            return await Drain(database, self.settings, registered, self._replacements).run(ahead)
        finally:
            await database.dispose()


def _by_name(handlers: Collection[Handler | str]) -> Mapping[str, Handler]:
    if not handlers:
        return REGISTRY
    selection = [handler if isinstance(handler, Handler) else REGISTRY.find(handler) for handler in handlers]
    return {handler.name: handler for handler in selection}


def _run(work: Coroutine[Any, Any, T]) -> T:
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        work.close()
        raise WouldBlock(call="drain()", instead="await drain_async(...)")
    return asyncio.run(work)


async def _nothing(_: Database) -> None:
    """Opening the database is enough."""


OPENED: tuple[Use, ...] = ("payload", "result")
"""Values that a handler with a codec encrypts."""


async def _tasks(tx: Transaction, handler: str | None) -> list[Any]:
    live, history = tx.tables.task, tx.tables.history
    rows = [*await _read(tx, live, sa.null(), handler), *await _read(tx, history, history.c.result, handler)]
    return sorted(rows, key=lambda row: row.id)


async def _read(tx: Transaction, table: sa.Table, result: Any, handler: str | None) -> Sequence[Any]:
    columns = [table.c[field.name] for field in fields(StoredTask) if field.name != "result"]
    condition = sa.true() if handler is None else table.c.handler == handler
    return await tx.rows(sa.select(*columns, result.label("result")).where(condition))


def _stored_task(row: Any, keyring: Keyring) -> StoredTask[Any]:
    payload, result = (keyring.opened(getattr(row, use), row.handler, use) or "null" for use in OPENED)
    return StoredTask(
        **row._asdict()
        | {
            "id": TaskHandle(row.id),
            "error": row.error and keyring.open_text(row.error, row.handler),
            "payload": json.loads(payload),
            "result": json.loads(result),
            "headers": read_headers(row.headers),
        }
    )
