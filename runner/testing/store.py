"""TaskStore: a store of a test's own, and what a test does with it."""

import asyncio
import contextlib
import json
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from runner.door.door import replace
from runner.errors import WouldBlock
from runner.handlers import REGISTRY, Handler
from runner.outcome import Delay
from runner.people.times import parse_duration
from runner.settings.checking import checked
from runner.store.database import Database
from runner.store.transaction import Transaction
from runner.testing.clock import advance
from runner.testing.door import TestDoor
from runner.testing.drain import Drain, Ran
from runner.urls import parse_url

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A task as it stands in the store.

    Args:
        id: the task's.
        handler: its handler's name.
        queue: its queue.
        key: its business key.
        state: as it is stored: waiting, blocked, running, succeeded, dead or cancelled.
        run_at: not before this time.
        attempt: attempts used.
        error: the last one.
        payload: its arguments.
        result: what its handler returned.
    """

    id: int
    handler: str
    queue: str
    key: str | None
    state: str
    run_at: datetime
    attempt: int
    error: str | None
    payload: dict[str, Any]
    result: Any


class TaskStore:
    """Everything that is submitted while it is open goes here; nothing runs until it is told to.

    Args:
        url: a database for the test alone; its tables are created.
        settings: single settings by name, e.g. retry="1m".

    Example:
        >>> with TaskStore.in_folder(tmp_path) as store:
        ...     sign_up("ana@example.org")
        ...     assert [ran.verb for ran in store.drain()] == ["succeed"]
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.settings = checked({"url": parse_url(url), "notify": False} | settings)
        self._door = TestDoor(self.settings, self._drained)
        self._before: Any = None

    @classmethod
    def in_folder(cls, folder: Path, **settings: Any) -> Self:
        """A store in a new SQLite file in a folder; the fastest, for most tests good enough."""
        return cls(f"sqlite:///{folder / 'tasks.db'}", synchronous="NORMAL", **settings)

    def __enter__(self) -> Self:
        self._before = replace(self._door)
        self._door.run(_nothing).result()  # creates the tables, so that a test can look before it submits
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        replace(self._before)
        self._door.close()

    def drain(self, *handlers: Handler | str, ahead: Delay = 0) -> list[Ran]:
        """Run what is due, and what that leads to, one after the other, until nothing is due.

        Args:
            handlers: whose tasks are run; all known ones when none is named.
            ahead: how far time may be advanced for retries and scheduled tasks: text ("1h"), seconds or timedelta.

        Returns:
            The attempts that were made, in order.

        Raises:
            WouldBlock: when called on an event loop: await drain_async there.
        """
        return _run(self.drain_async(*handlers, ahead=ahead))

    async def drain_async(self, *handlers: Handler | str, ahead: Delay = 0) -> list[Ran]:
        """Do what `drain` does on the caller's event loop."""
        return await self._drained(_chosen(handlers), parse_duration(ahead).total_seconds())

    def advance(self, delay: Delay) -> None:
        """Let time pass for all that is stored.

        Args:
            delay: how much: text ("10m"), seconds or timedelta.
        """
        seconds = parse_duration(delay).total_seconds()
        self._door.run(lambda database: database.write(advance, seconds)).result()

    def tasks(self, handler: Handler | str | None = None) -> list[StoredTask]:
        """The tasks of a handler, or all, live and ended, in the order of their submission."""
        name = handler.name if isinstance(handler, Handler) else handler
        return self._door.run(lambda database: database.read(_tasks, name)).result()

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Run tasks as they are submitted, before the submit returns, as long as the block lasts.

        What fails goes through its retries later, as ever; look at `tasks()` for what became of it.
        """
        self._door.inline = True
        try:
            yield
        finally:
            self._door.inline = False

    async def _drained(self, handlers: Mapping[str, Handler] | None = None, ahead: float = 0.0) -> list[Ran]:
        database = Database.of(self.settings)
        try:
            return await Drain(database, self.settings, REGISTRY if handlers is None else handlers).run(ahead)
        finally:
            await database.dispose()


def _chosen(handlers: Collection[Handler | str]) -> Mapping[str, Handler]:
    if not handlers:
        return REGISTRY
    found = [handler if isinstance(handler, Handler) else REGISTRY.find(handler) for handler in handlers]
    return {handler.name: handler for handler in found}


def _run(work: Coroutine[Any, Any, T]) -> T:
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        work.close()
        raise WouldBlock(call="drain", instead="drain_async")
    return asyncio.run(work)


async def _nothing(_: Database) -> None:
    """Opening is all that is wanted."""


async def _tasks(tx: Transaction, handler: str | None) -> list[StoredTask]:
    live, ended = tx.tables.task, tx.tables.history
    found = [*await _read(tx, live, sa.null(), handler), *await _read(tx, ended, ended.c.result, handler)]
    return sorted(found, key=lambda task: task.id)


async def _read(tx: Transaction, table: sa.Table, result: Any, handler: str | None) -> list[StoredTask]:
    names = ("id", "handler", "queue", "key", "state", "run_at", "attempt", "error", "payload")
    chosen = sa.true() if handler is None else table.c.handler == handler
    rows = await tx.rows(sa.select(*(table.c[name] for name in names), result).where(chosen))
    return [_stored(row) for row in rows]


def _stored(row: Any) -> StoredTask:
    *plain, payload, result = row
    values: list[Any] = [*plain, json.loads(payload), None if result is None else json.loads(result)]
    return StoredTask(*values)
