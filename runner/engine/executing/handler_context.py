"""The parts of a handler's context that need the database: results of parents, and `ctx.transaction()`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection, event

from runner.client.client import refuse_event_loop
from runner.client.results import value_of
from runner.client.sealed_results import any_sealed, opened
from runner.db import async_core
from runner.db.database import Database
from runner.db.errors import outage_of_statement
from runner.db.handler_transactions import Wait
from runner.db.needs import Needs, needs
from runner.db.statement import Steps
from runner.db.transaction import BlockingTransaction, Transaction
from runner.engine.executing.attempt_error import chain
from runner.engine.executing.outages import begin_statements, note_outage, waiting
from runner.engine.executing.sealing import seal_done
from runner.engine.running import Running
from runner.errors import (
    AlreadyDone,
    FencedOut,
    NoResult,
    RunnerError,
    TaskNotFound,
    TransactionEnded,
    TransactionOpen,
    TransactionUnavailable,
)
from runner.handlers.keyring import Keyring
from runner.handlers.own_transaction import INSIDE_OF
from runner.model.headers import read_headers
from runner.model.outcome import Done
from runner.queries.task.results import TaskResult, endings
from runner.store.complete import complete_steps
from runner.store.dependencies.parents import is_of_submit
from runner.store.history import FinishedTask

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

ENDINGS_PER_READ = 5_000
"""Maximum number of parents per query."""


class StoredParentResults:
    """The results of the parents of one task.

    Args:
        running: the dependent task.
        loop: event loop of the runner, on which queries run.
        keyring: decrypts the results; None leaves encrypted ones out.
    """

    def __init__(
        self, database: Database, running: Running, loop: asyncio.AbstractEventLoop, keyring: Keyring | None = None
    ) -> None:
        self._database, self._keyring = database, keyring
        self._running = running
        self._loop = loop

    async def read(self) -> list[Any]:
        """Return the result of each parent, or the error in its place, in the order of the dependencies."""
        with waiting(self._running):
            return await self._read()

    async def _read(self) -> list[Any]:
        ids = await self._database.read(_parent_ids, self._running.task.id)
        results: dict[int, TaskResult | None] = {}
        stored = [id for id in ids if id is not None]
        for first in range(0, len(stored), ENDINGS_PER_READ):
            results |= await self._database.read(_endings, stored[first : first + ENDINGS_PER_READ])
        if (keyring := self._keyring) is not None:
            results = await asyncio.to_thread(opened, results, keyring) if any_sealed(results) else results
        return [_value(id, results) for id in ids]

    async def headers(self, limit: int) -> list[Mapping[str, str]]:
        """Return the headers of the parents that are stored, in the order of the dependencies."""
        return await self._database.read(_parent_headers, self._running.task.id, limit)

    def submit(self, work: Callable[[], Coroutine[Any, Any, list[Any]]]) -> Future[list[Any]]:
        """Run a coroutine function on the runner's loop, from a thread."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop)


@needs(Needs.PREPARED)
async def _endings(tx: Transaction, ids: Sequence[int]) -> dict[int, TaskResult | None]:
    return await tx.follow(endings(tx, ids))


async def _parent_ids(tx: Transaction, task_id: int) -> list[int | None]:
    """The parents in the order of the dependencies; None for one that an operator removed before it existed."""
    dependency = tx.tables.dependency.c
    statement = (
        sa.select(dependency.parent_id)
        .where(dependency.task_id == task_id, is_of_submit(dependency))
        .order_by(dependency.id)
    )
    return [row.parent_id for row in await tx.rows(statement)]


async def _parent_headers(tx: Transaction, task_id: int, limit: int) -> list[Mapping[str, str]]:
    dependency = tx.tables.dependency.c
    parts = [
        sa.select(dependency.id.label("position"), parent.c.headers).where(
            dependency.task_id == task_id, dependency.parent_id == parent.c.id, is_of_submit(dependency)
        )
        for parent in (tx.tables.history, tx.tables.task)
    ]
    rows = await tx.rows(sa.union_all(*parts).order_by("position").limit(limit))
    return [read_headers(row.headers) for row in rows]


def _value(id: int | None, results: dict[int, TaskResult | None]) -> Any:
    if id is None or id not in results:
        return TaskNotFound(id="that it depended on" if id is None else id)
    result = results[id]
    try:
        return NoResult(id=id) if result is None else value_of(result)
    except RunnerError as error:
        return error


def _is_stopped(running: Running) -> bool:
    return running.stop is not None and running.stop.is_set()


def completing_transaction(
    database: Database, runner_id: int, running: Running, done: Callable[[Any], Done]
) -> "HandlerTransaction":
    """Return the transaction of `ctx.transaction()`, whose commit completes the task.

    Args:
        done: converts a result to an outcome.
    """

    def complete(tx: Transaction | BlockingTransaction, result: Any) -> Steps[bool]:
        task, outcome = running.task, seal_done(running.vault, done(result))
        running.result_in_tx = result is not None
        took = time.monotonic() - running.started
        ending = FinishedTask(task.id, task.fence, took, outcome.result, outcome.why)
        # Two transactions that end at the same time must not wait for each other's row of the statistics.
        return complete_steps(tx, runner_id, ending, part=tx.number)

    return HandlerTransaction(database, running, complete, completes=True)


class HandlerTransaction:
    """A transaction that contains the writes of a handler and their record, for `async with` and `with`.

    Args:
        database: the database of the task and of the handler's writes.
        end: writes the record with the last statements: the success of the task, or a step. It takes the `result`, and
            its verb returns False if the runner no longer holds the task.
        completes: True if the record is the success of the task.
    """

    def __init__(
        self,
        database: Database,
        running: Running,
        end: Callable[[Transaction | BlockingTransaction, Any], Steps[bool]],
        *,
        completes: bool,
    ) -> None:
        self._require_first(running)
        self.result: Any = None
        self._database = database
        self._running = running
        self._end, self._completes = end, completes
        self._async_context: AbstractAsyncContextManager[AsyncConnection] | None = None
        self._sync_context: AbstractContextManager[Connection] | None = None

    async def __aenter__(self) -> "AsyncConnection":
        context = self._open()
        connection = await context.__aenter__()
        self._async_context = context
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._async_context is not None:
            await self._async_context.__aexit__(kind, error, trace)

    def __enter__(self) -> Connection:
        refuse_event_loop("with ctx.transaction()", "async with ctx.transaction()")
        context = self._open_blocking()
        connection = context.__enter__()
        self._sync_context = context
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sync_context is not None:
            self._sync_context.__exit__(kind, error, trace)

    @asynccontextmanager
    async def _open(self) -> "AsyncIterator[AsyncConnection]":
        with self._exclusive():
            await async_core.load()  # before the transaction, whose locks others wait for
            async with self._database.for_handler(self._wait()) as tx:
                self._running.waits_for = ""
                with self._forbid_commit(tx.connection.sync_connection):
                    yield tx.connection.for_application()
                with self._completing(), self._noting_outages():
                    accepted = await tx.follow(self._end(tx, self.result))
                self._require_accepted(accepted)
            self._running.done_in_tx = self._completes

    @contextmanager
    def _open_blocking(self) -> Iterator[Connection]:
        with self._exclusive():
            with self._database.for_handler_in_thread(self._wait()) as tx:
                self._running.waits_for = ""
                with self._forbid_commit(tx.connection):
                    yield tx.connection
                with self._completing(), self._noting_outages():
                    accepted = tx.follow(self._end(tx, self.result))
                self._require_accepted(accepted)
            self._running.done_in_tx = self._completes

    def _wait(self) -> Wait:
        """Return the wait limit. `waits_for` remains set if the wait fails, so that no attempt is counted."""
        running = self._running
        running.waits_for = self._database.limit_reason
        seconds = None if running.deadline is None else running.deadline - time.monotonic()
        stopped = partial(_is_stopped, running)
        return Wait(running.task.id, seconds, stopped, partial(note_outage, running))

    @contextmanager
    def _completing(self) -> Iterator[None]:
        """Let the runner name the session that locks the row of the task, for which this transaction then waits."""
        self._running.completing = time.monotonic()
        try:
            yield
        finally:
            self._running.completing = 0.0

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Refuse a second transaction in parallel to the first: on SQLite each would wait for the other."""
        self._require_first(self._running)
        self._running.in_tx = True
        INSIDE_OF.set((self._running.task.id, self._running.task.fence))
        try:
            yield
        except TransactionUnavailable as error:
            note_outage(self._running, error, error)
            raise
        finally:
            self._running.in_tx = False
            INSIDE_OF.set(None)

    @contextmanager
    def _forbid_commit(self, connection: Connection | None) -> Iterator[None]:
        """Refuse a commit by the handler: its writes would persist, and its task would run again."""
        error = TransactionEnded(id=self._running.task.id)

        def refuse(target: Connection) -> None:
            target.connection.rollback()  # SQLAlchemy considers it ended and would pool it with its locks
            raise error

        event.listen(connection, "commit", refuse)
        driver: Any = None if connection is None else connection.connection.driver_connection
        begin_statements(self._running, driver)
        try:
            yield
        except Exception:
            if getattr(driver, "closed", False):  # by an error of a statement that did not go through SQLAlchemy
                with self._noting_outages():
                    raise
            raise
        finally:
            event.remove(connection, "commit", refuse)
        if connection is None or not connection.in_transaction():
            raise error

    @contextmanager
    def _noting_outages(self) -> Iterator[None]:
        """Record the errors of statements on the driver's own connection."""
        try:
            yield
        except Exception as error:
            for each in chain(error):
                outage = outage_of_statement(each, self._database.url, is_broken=True)
                if outage is not None:
                    note_outage(self._running, each, outage)
            raise

    @staticmethod
    def _require_first(running: Running) -> None:
        if running.done_in_tx:
            raise AlreadyDone(id=running.task.id)
        if running.in_tx:
            raise TransactionOpen(id=running.task.id)

    def _require_accepted(self, accepted: bool) -> None:
        if not accepted:
            raise FencedOut(id=self._running.task.id, fence=self._running.task.fence)
