"""Transaction, the first parameter of every verb of the store, with the deadlines of its statements."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from inspect import CORO_CREATED, getcoroutinestate
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import sqlalchemy as sa

from runner.db.async_core import AsyncCoreConnection
from runner.db.dialects import Dialect
from runner.db.follow import follow, follow_async
from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.server_watch import answer_within, limit_of_deadline
from runner.db.statement import Prepared, Step, Steps, compiled_for
from runner.db.types import db_now
from runner.errors import DatabaseRefused, Stage

if TYPE_CHECKING:
    from runner.db.round_trips import RoundTrips  # imports psycopg, which is optional

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")


class BlockingTransaction:
    """An open transaction on a blocking connection; the synchronous counterpart of Transaction.

    Args:
        connection: a connection with an open transaction, which the caller ends.
        number: number among the open transactions of handlers in this process, from 1; 0 for other transactions.
    """

    def __init__(self, connection: sa.Connection, tables: Tables, dialect: Dialect, number: int = 0) -> None:
        self.number = number
        self.connection = connection
        self.tables = tables
        self.dialect = dialect

    @property
    def driver(self) -> sa.Dialect:
        """The dialect for compiling statements."""
        return compiled_for(self.connection.dialect)

    def follow(self, steps: Steps[T]) -> T:
        """Execute the steps of a verb and return its result."""
        return follow(steps, self._execute)

    def _execute(self, step: Step) -> list[Any]:
        driver: Any = self.connection.connection.driver_connection
        cursor = driver.execute(step.prepared.sql, step.prepared.arguments(step.parameters))
        return list(cursor.fetchall()) if cursor.description else []


Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Transaction:
    """An open transaction on one connection, with the tables and the dialect for its statements.

    Args:
        connection: a connection with an open transaction, which the caller ends.
        driver: the driver's own connection, if known.
        number: number among the open transactions of handlers in this process, from 1; 0 for other transactions.
        round_trips: the statements of concurrent steps; None to execute the steps one after the other.
        reads: it only reads, from one snapshot.
        progress: receives the stage of a transaction whose last round trip commits it.
    """

    __slots__ = (
        "_driver",
        "_keeps_to_indexes",
        "_progress",
        "_results",
        "_round_trips",
        "connection",
        "dialect",
        "number",
        "tables",
    )

    def __init__(
        self,
        connection: AsyncCoreConnection,
        tables: Tables,
        dialect: Dialect,
        driver: Any = None,
        number: int = 0,
        round_trips: "RoundTrips | None" = None,
        *,
        reads: bool = False,
        progress: "TransactionStage | None" = None,
    ) -> None:
        self._results: dict[object, Any] | None = {} if reads else None
        self._progress = progress
        self.number = number
        self._round_trips = round_trips
        self.connection = connection
        self.tables = tables
        self.dialect = dialect
        self._driver = driver
        self._keeps_to_indexes = driver is not None

    @property
    def driver(self) -> sa.Dialect:
        """The dialect for compiling statements."""
        return compiled_for(self.connection.dialect)

    @property
    def server(self) -> str:
        """The host and the port of the server; empty for a file."""
        connection: Any = self.connection.sync_connection
        return str(getattr(connection.connection.driver_connection, "host", ""))

    async def execute(self, statement: sa.Executable, parameters: Parameters | None = None) -> sa.CursorResult[Any]:
        """Execute a statement and buffer its rows."""
        return await self.connection.execute(statement, parameters)

    async def rows(
        self, statement: sa.Executable, parameters: Parameters | None = None
    ) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        """Execute a statement and return all its rows."""
        return (await self.connection.execute(statement, parameters)).all()

    async def scalar(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """Execute a statement and return the first column of its first row, or None."""
        return await self.connection.scalar(statement, parameters)

    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], /) -> Awaitable[tuple[A, B]]: ...

    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> Awaitable[tuple[A, B, C]]: ...

    @overload
    def gather(
        self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /
    ) -> Awaitable[tuple[A, B, C, D]]: ...

    @overload
    def gather(
        self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], e: Awaitable[E], /
    ) -> Awaitable[tuple[A, B, C, D, E]]: ...

    @overload
    def gather(
        self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], e: Awaitable[E], f: Awaitable[F], /
    ) -> Awaitable[tuple[A, B, C, D, E, F]]: ...

    @overload
    def gather(self, *steps: Awaitable[T]) -> Awaitable[tuple[T, ...]]: ...

    def gather(self, *steps: Awaitable[Any]) -> Awaitable[tuple[Any, ...]]:
        """Run independent steps. Their statements travel together to a server if the transaction only reads.

        Args:
            *steps: coroutines that use this transaction.

        Returns:
            Their results, in the order of the steps.
        """
        return GatheredSteps(steps, self._round_trips)

    async def once(self, verb: Callable[["Transaction"], Awaitable[T]]) -> T:
        """Run a verb that several others need. A transaction that only reads runs it once, and keeps its result."""
        if self._round_trips is not None:
            return await self._round_trips.once(verb, partial(verb, self))
        if self._results is None:
            return await verb(self)
        if verb not in self._results:
            self._results[verb] = await verb(self)
        result: T = self._results[verb]
        return result

    # `run` and `follow` return the coroutine instead of awaiting it: a frame less around every statement.

    def run(self, prepared: Prepared, parameters: dict[str, Any]) -> Coroutine[Any, Any, list[Any]]:
        """Execute a prepared statement on the driver's connection and return its rows as plain tuples."""
        if self._driver is None:
            connection: Any = self.connection.sync_connection
            self._driver = connection.connection.driver_connection
        return self.dialect.fetch(self._driver, prepared.sql, prepared.arguments(parameters))

    async def keep_to_indexes(self) -> None:
        """Make the planner walk along indexes until the transaction ends, whatever its statistics; see `Dialect`."""
        self._keeps_to_indexes = True
        if (keep := self.dialect.along_indexes()) is None:
            return
        if self._round_trips is not None:
            self._round_trips.defer(keep)
        else:
            await self.execute(sa.text(keep))

    async def walk(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any]:
        """Execute a prepared statement that walks along an index, and return its rows as plain tuples.

        With outdated statistics a planner would collect all remaining rows and sort them for each step of the walk. A
        connection for prepared statements never does; on others this disables it for the statement.
        """
        if self._keeps_to_indexes or (around := self.dialect.without_bitmap_scans) is None:
            return await self.run(prepared, parameters)
        if self._round_trips is not None:
            self._round_trips.surround(*around)
            return await self.run(prepared, parameters)
        await self.execute(sa.text(around[0]))
        rows = await self.run(prepared, parameters)
        await self.execute(sa.text(around[1]))
        return rows

    async def run_all(self, steps: Sequence[Step]) -> list[list[Any]]:
        """Execute statements in one round trip, if the connection has a pipeline, and return the rows of each."""
        if self._driver is None:
            return [await self.run(*step) for step in steps]
        each = [(prepared.sql, prepared.arguments(parameters)) for prepared, parameters in steps]
        return await self.dialect.fetch_all(self._driver, each)

    async def await_locks(self, prepared: Prepared, parameters: dict[str, Any], timeout: str) -> bool:
        """Execute a prepared statement that waits for locks, and return True.

        If they do not become available within the timeout, such as 50ms, undo the statement and return False.
        """
        if self._driver is None:
            connection: Any = self.connection.sync_connection
            self._driver = connection.connection.driver_connection
        return await self.dialect.await_locks(self._driver, prepared.sql, prepared.arguments(parameters), timeout)

    def commit_next(self) -> bool:
        """Declare that the next round trip is the last one, and return True if it commits; see also `complete`."""
        if self._progress is None or not self.dialect.commit_next(self._driver):
            return False
        self._progress.stage = "commit"
        return True

    def follow(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Execute the steps of a verb and return its result."""
        return follow_async(steps, self._execute_step)

    async def pause(self, seconds: float) -> None:
        """Wait between two looks at rows that another transaction has locked."""
        await asyncio.sleep(seconds)

    async def complete(self) -> None:
        """Declare that the verb has executed its last statement: a file commits before the verb returns."""

    def _execute_step(self, step: Step) -> Coroutine[Any, Any, list[Any]]:
        return self.run(step.prepared, step.parameters)


class GatheredSteps:
    """Steps that begin when they are awaited.

    Args:
        round_trips: the statements of concurrent steps; None to execute the steps one after the other.
    """

    __slots__ = ("_round_trips", "_steps")

    def __init__(self, steps: tuple[Awaitable[Any], ...], round_trips: "RoundTrips | None") -> None:
        self._steps = deque(steps)
        self._round_trips = round_trips

    def __await__(self) -> Generator[Any, None, tuple[Any, ...]]:
        return self._run().__await__()

    async def _run(self) -> tuple[Any, ...]:
        results = []
        try:
            if self._round_trips is not None:
                return tuple(await self._round_trips.gather(tuple(self._steps)))
            while self._steps:
                results.append(await self._steps.popleft())
        finally:
            self.close()
        return tuple(results)

    def close(self) -> None:
        """Drop the steps that have not begun, because an earlier one failed or all of them were cancelled."""
        for step in self._steps:
            if isinstance(step, GatheredSteps) or (
                isinstance(step, CoroutineType) and getcoroutinestate(step) == CORO_CREATED
            ):
                step.close()


NOW = sa.select(db_now())


@lru_cache
def _now(driver: sa.Dialect) -> Prepared:
    return Prepared(NOW, driver)


@needs(Needs.PREPARED)
async def require_answer(tx: Transaction) -> None:
    """Ask the database for any answer, on a connection for prepared statements."""
    await tx.run(_now(tx.driver), {})


async def clock(tx: Transaction) -> datetime:
    """Return the database's time, the reference for all ages; one time in a transaction that only reads."""
    return await tx.once(_read_clock)


async def _read_clock(tx: Transaction) -> datetime:
    now: datetime = await tx.scalar(NOW)
    return now


@dataclass
class TransactionStage:
    """The last step that a transaction began."""

    stage: Stage = "connect"


INTERRUPT_INTERVAL = 0.05
"""Seconds between two interrupts of a SQLite connection whose deadline has passed."""


@asynccontextmanager
async def within_deadline(
    connection: AsyncCoreConnection,
    seconds: float | None,
    locks: float | None = None,
    round_trips: "RoundTrips | None" = None,
) -> AsyncIterator[None]:
    """Cancel statements in the block that take longer than `seconds`; on SQLite, all of them together.

    Args:
        seconds: maximum duration of a statement; None for no limit.
        locks: maximum seconds of a wait for a lock of PostgreSQL; None for no limit.
        round_trips: sends the limits with the first statement of the block.
    """
    if connection.dialect.name == "postgresql":
        limits = (("statement_timeout", seconds), ("lock_timeout", locks))
        settings = [
            f"set_config('{name}', '{int(limit * 1000)}ms', true)" for name, limit in limits if limit is not None
        ]
        sql = f"SELECT {', '.join(settings)}"
        with nullcontext() if seconds is None else answer_within(limit_of_deadline(seconds)):
            if settings and round_trips is not None:
                round_trips.deadline = seconds
                round_trips.defer(sql)
            elif settings:
                await connection.execute(sa.text(sql))
            yield
    elif seconds is None:
        yield
    else:
        raw: Any = (await connection.get_raw_connection()).driver_connection
        interrupts = asyncio.ensure_future(_interrupt_after(seconds, raw))
        began = monotonic()
        try:
            yield
        except Exception as error:
            if monotonic() < began + seconds or "interrupted" not in str(error):
                raise
            raise DatabaseRefused(why=f"it did not end within {seconds:g} s, and was interrupted") from error
        finally:
            interrupts.cancel()


async def _interrupt_after(seconds: float, driver: Any) -> None:
    """Interrupt a SQLite connection from the end of a delay on, until cancelled.

    An interrupt before the first step of a statement has no effect, and a busy thread begins a statement late.
    """
    await asyncio.sleep(seconds)
    while True:
        _interrupt(driver)
        await asyncio.sleep(INTERRUPT_INTERVAL)


def _interrupt(driver: Any) -> None:
    """End the running statement of a SQLite connection."""
    with suppress(sqlite3.ProgrammingError, ValueError):  # A closed connection executes nothing.
        driver._conn.interrupt()  # noqa: SLF001 - the driver's thread is busy


@contextmanager
def interruptible(connection: AsyncCoreConnection, interrupts: set[Callable[[], None]]) -> Iterator[None]:
    """Keep in a set, during the block, the call that ends the running statement of a SQLite connection.

    The call is safe from any thread. psycopg needs none: it ends the statement of a task that is cancelled.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    interrupts.add(interrupt := partial(_interrupt, connection.sync_connection.connection.driver_connection))
    try:
        yield
    finally:
        interrupts.discard(interrupt)
