"""Inline mode: a submit runs its tasks before it returns, on Django's connection, and so inside an open transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from runner.client.client import get_client
from runner.client.external import follower
from runner.client.result_poller import Ending
from runner.db.dialects import DIALECTS
from runner.db.external_transaction import external_steps
from runner.db.statement import StatementFrame, Steps
from runner.db.transaction import Transaction
from runner.django.connection import DjangoClient, database_alias
from runner.errors import TaskNotFound
from runner.handlers.registry import REGISTRY
from runner.queries.task.results import TaskResult, endings
from runner.settings import Settings
from runner.testing.drain import Drain

T = TypeVar("T")

IDLE = 0
"""libpq's status of a connection without a transaction."""


@contextmanager
def inline() -> Iterator[None]:
    """Run tasks within the block as they are submitted, before the submit returns, for tests.

    Tasks, their handlers and your test share the connection and the transaction of the test, which a `TestCase` rolls
    back. Plain functions run in the thread of the test. A failed task waits for its retry: read its `status()`.

    Raises:
        RuntimeError: the block is inside another one.

    Examples:
        >>> with inline():
        ...     self.client.post("/buy", {"cents": 500})
        >>> self.assertTrue(Order.objects.get().shipped)
    """
    client: Any = get_client()
    if DjangoClient.inline is not None:
        raise RuntimeError("inline() is open already: remove the inner block")
    waiting, client.waiting = client.waiting, InlineResults(client)
    DjangoClient.inline = InlineTasks(client.settings)
    try:
        yield
    finally:
        DjangoClient.inline, client.waiting = None, waiting


class InlineTasks:
    """Runs the due tasks after each submit."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held = 0
        self.interrupt: KeyboardInterrupt | None = None
        """The KeyboardInterrupt of a plain function, which the submit raises."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Run the tasks of the submits of a block at its end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        self.run()

    def run(self) -> None:
        """Run due tasks and those that they submit, in a thread without an event loop."""
        if not self._held:
            async_to_sync(self.run_async)()

    async def run_async(self) -> None:
        """Same as `run`, on an event loop."""
        connection = await sync_to_async(_connected, thread_sensitive=True)()
        database: Any = ConnectionDatabase(self._settings, connection)
        await Drain(database, self._settings, REGISTRY, threads=DjangoThread()).run()
        if self.interrupt is not None:
            error, self.interrupt = self.interrupt, None
            raise error


def _connected() -> Any:
    connection: Any = connections[database_alias()]
    connection.ensure_connection()
    return connection


class DjangoThread(Executor):
    """Runs functions in the thread of Django's queries, whose transaction they share."""

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Begin a call; the caller is on an event loop."""
        call: Any = sync_to_async(partial(function, *args, **kwargs), thread_sensitive=True)
        return asyncio.run_coroutine_threadsafe(call(), asyncio.get_running_loop())

    def start(self, function: Callable[[], T], end: Callable[[], object]) -> "asyncio.Future[T]":
        """Call a function; see `TaskThreads.start`."""
        body = asyncio.ensure_future(sync_to_async(function, thread_sensitive=True)())
        body.add_done_callback(lambda _: end())
        return body


class ConnectionDatabase:
    """The verbs of a drain on a connection of Django.

    They run in threads of their own, because a handler may wait for them in the thread of Django's queries.

    Args:
        connection: the connection of the thread of the handlers.
    """

    def __init__(self, settings: Settings, connection: Any) -> None:
        self._settings, self._connection = settings, connection
        self._lock = Lock()
        self.dialect = DIALECTS[settings.url.kind]
        self.url = str(settings.url)

    async def read(self, verb: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run a verb within the open transaction, or in one of its own."""
        return await asyncio.to_thread(self._run, partial(verb, **kwargs), args)

    write = read

    def _run(self, verb: Callable[..., Awaitable[T]], arguments: Sequence[Any]) -> T:
        def steps(driver: Any) -> Steps[T]:
            return external_steps(StatementFrame.of(self._settings, driver), verb, *arguments)

        with self._lock:
            self._connection.ensure_connection()
            driver = self._connection.connection
            with _transaction(driver):
                result: T = follower(driver)(driver, steps)
        return result


@contextmanager
def _transaction(driver: Any) -> Iterator[None]:
    """Begin a transaction, unless one is open."""
    if _is_in_transaction(driver):
        yield
        return
    with closing(driver.cursor()) as cursor:
        cursor.execute("BEGIN")
        try:
            yield
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        cursor.execute("COMMIT")


def _is_in_transaction(driver: Any) -> bool:
    if hasattr(driver, "in_transaction"):  # sqlite3
        return bool(driver.in_transaction)
    return not driver.autocommit or driver.info.transaction_status != IDLE


class InlineResults:
    """The results of tasks, read once: nothing else executes those that have not finished."""

    trouble = None

    def __init__(self, client: DjangoClient) -> None:
        self._client = client

    def wait(self, ids: Sequence[int], *, until_finished: bool = True) -> "Future[dict[int, Ending]]":  # noqa: ARG002
        """Read the results of tasks; None for a live one."""
        return self._client.begin(_ends, ids, reads=True)


async def _ends(tx: Transaction, ids: Sequence[int]) -> dict[int, Ending]:
    results: dict[int, TaskResult | None] = await tx.follow(endings(tx, ids))
    return {id: results[id] if id in results else TaskNotFound(id=id) for id in ids}
