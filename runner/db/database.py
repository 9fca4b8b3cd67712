"""Database: reading and writing transactions, with the set-up for each database.

A caller runs a verb with `read` or `write`. The verb declares its statements beside its definition, in `Needs`, which
selects the connection:

- any statements: the pool of SQLAlchemy; a read is one snapshot
- prepared statements on a server: the StatementPool, in one transaction or each by itself
- prepared statements that write a file: the FileWriter, which can commit several verbs together

`threads` has the same `read` and `write` for threads without an event loop. A single submit has `insert` there and in
`loops`. `for_handler` has connections of its own, because a transaction of a handler may last for minutes.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias

import sqlalchemy as sa

from runner.db import connect, semaphore
from runner.db.async_core import AsyncCoreConnection, AsyncCoreEngine, PooledConnection, StatementPool, T, shielded
from runner.db.connector import DEFAULT_CONNECTOR, Connector
from runner.db.dialects import DIALECTS, Dialect
from runner.db.errors import fact_of, is_lock_timeout, retries, retry_pause, translate
from runner.db.file_writer import FileWriter
from runner.db.filesystem import refuse_unsafe
from runner.db.handler_transactions import HandlerTransactions, Wait
from runner.db.needs import Needs, needs_of
from runner.db.row_locks import lock_of
from runner.db.schema import tables
from runner.db.thread_connections import ThreadConnections
from runner.db.transaction import BlockingTransaction, Transaction, TransactionStage, interruptible, within_deadline
from runner.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    LockNotReleased,
    RowLocked,
    Stage,
    StoreError,
)
from runner.settings import Settings
from runner.text.stuck_row import lock_advice, lock_text
from runner.urls import DatabaseUrl, async_url, redacted, sync_url

if TYPE_CHECKING:
    from runner.db.loop_connections import LoopConnections
    from runner.db.round_trips import RoundTrips

P = ParamSpec("P")
StoreVerb = Callable[Concatenate[Transaction, P], Awaitable[T]]
"""An operation on the store: takes an open transaction and its own arguments."""

Work: TypeAlias = Callable[[Transaction], Awaitable[T]]
"""A verb with its arguments."""

READ_LOCK_SECONDS = 5.0
"""Longest wait of a reading transaction for a lock of PostgreSQL: only a lock of a whole table stops readers.

It ends by half of the deadline of a statement, whose error names no lock."""


class Database:
    """One installation of the tables in a database.

    Args:
        create_engine: creates the engine of the pooled connections. A process that only submits never needs one.
        handlers: the transactions of handlers, on separate connections.
        threads: the transactions of threads without an event loop, on separate connections.
        writer_lock: serializes the writers of this process; None if the database allows concurrent writers.
        url: the URL without its password, for messages.
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.
        read_only: refuse all changes.
        deadline: maximum seconds of a statement in a writing transaction; None for no limit.
        prepares: prepare frequent statements, unless a pooler is in between.
    """

    def __init__(  # noqa: PLR0913 - the parts of a database
        self,
        create_engine: Callable[[], AsyncCoreEngine],
        dialect: Dialect,
        handlers: HandlerTransactions,
        threads: ThreadConnections,
        writer_lock: semaphore.FairSemaphore | None,
        url: str,
        prefix: str = "",
        schema: str | None = None,
        *,
        read_only: bool = False,
        deadline: float | None = None,
        prepares: bool = True,
        connector: Connector = DEFAULT_CONNECTOR,
    ) -> None:
        self.connector = connector
        """Connects to a server."""
        self._create_engine = create_engine
        self._handlers = handlers
        self.threads = threads
        """Runs short transactions in threads without an event loop."""
        self.url = url
        self.dialect = dialect
        self.tables = tables(prefix, schema if self.dialect.schemas else None)
        self._read_only, self._deadline, self._prepares = read_only, deadline, prepares
        self._writer_lock = writer_lock
        self._interrupts: set[Callable[[], None]] = set()

    @cached_property
    def engine(self) -> AsyncCoreEngine:
        """The engine of the pooled connections."""
        return self._create_engine()

    @cached_property
    def loops(self) -> "LoopConnections | None":
        """Submits single tasks on event loops; None for a file, whose commits block."""
        if not self.dialect.is_server:
            return None
        from runner.db.loop_connections import LoopConnections  # imports psycopg

        return LoopConnections(self.threads, self.url)

    @cached_property
    def _reader(self) -> AsyncCoreEngine:
        # The driver would wait for the answer to its own BEGIN, and make the next transaction READ WRITE in any case.
        options = connect.READING if self.dialect.begin_reading is None else connect.SINGLE
        return self.engine.execution_options(**options[self.dialect.name])

    @cached_property
    def _writer(self) -> AsyncCoreEngine:
        options = connect.READING if self._read_only else connect.WRITING
        return self.engine.execution_options(**options[self.dialect.name])

    @cached_property
    def _statements(self) -> StatementPool:
        single = self.engine.execution_options(**connect.SINGLE[self.dialect.name])
        return StatementPool(single, self.dialect, prepares=self._prepares, limit=self.connector.limits.statement)

    @cached_property
    def _file_writer(self) -> FileWriter | None:
        """Writes a file from one thread; None for a server, and for a file that may not be changed."""
        if self._writer_lock is None or self._read_only:
            return None
        return FileWriter(self._statements, self._writer_lock, self.tables, self.dialect)

    @classmethod
    def open(  # noqa: PLR0913 - the parts of a database
        cls,
        url: str | DatabaseUrl,
        *,
        prefix: str = "",
        schema: str | None = None,
        synchronous: str = "FULL",
        read_only: bool = False,
        deadline: float | None = None,
        transactions: int = 1,
        prepares: bool = True,
        connector: Connector = DEFAULT_CONNECTOR,
    ) -> Self:
        """Create a Database without connecting.

        Args:
            url: sqlite:///file.db or postgresql://host/database.
            prefix: prefix of every table name.
            schema: PostgreSQL schema of the tables; None for the search path.
            synchronous: SQLite's durability: FULL survives a power cut, NORMAL is faster and may lose the last commits.
            deadline: maximum seconds of a statement in a writing transaction; None for no limit.
            transactions: maximum number of concurrent transactions of handlers; always 1 on SQLite.
            prepares: prepare frequent statements, unless a pooler is in between.

        Raises:
            InvalidUrl: the URL is malformed, or its database is not supported.
            DriverMissing: the driver of the database is not installed.
            UnsafeFile: the SQLite file is on a network file system.
            FileHasOtherName: the SQLite file is mounted without its folder.
        """
        target = async_url(url)
        connect.require_driver(target.get_backend_name())
        if target.get_backend_name() == "sqlite":
            refuse_unsafe(target.database or "")
        if read_only:
            target = connect.read_only(target)
        name = redacted(url)
        writer_lock = semaphore.FairSemaphore(1) if target.get_backend_name() == "sqlite" else None
        handlers = HandlerTransactions(target, sync_url(url), synchronous, transactions, writer_lock, name, connector)
        named = tables(prefix, schema if writer_lock is None else None)
        shared: dict[str, Any] = {"prepares": prepares, "connector": connector}
        threads = ThreadConnections(sync_url(url), name, synchronous, named, writer_lock, **shared)
        options = shared | {"read_only": read_only, "deadline": deadline}
        create_engine = partial(_create_engine, target, synchronous, connector)
        dialect = DIALECTS[target.get_backend_name()]
        return cls(create_engine, dialect, handlers, threads, writer_lock, name, prefix, schema, **options)

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        read_only: bool = False,
        deadline: float | None = None,
        connector: Connector = DEFAULT_CONNECTOR,
    ) -> Self:
        """Create a Database from the settings; see `open`.

        Raises:
            ShardNotChosen: the settings have shards, and name none of them.
        """
        settings.require_one_database()
        return cls.open(
            settings.url,
            prefix=settings.table_prefix,
            schema=settings.table_schema,
            synchronous=settings.sqlite_synchronous,
            read_only=read_only,
            deadline=deadline,
            transactions=settings.transaction_connections,
            prepares=settings.prepared_statements,
            connector=connector,
        )

    @asynccontextmanager
    async def reading(
        self, deadline: float | None = None, on_answer: Callable[[float], object] | None = None
    ) -> AsyncIterator[Transaction]:
        """Open a read-only transaction on one snapshot. Cancelling its task ends a running statement.

        Args:
            deadline: maximum seconds of a statement; None for no limit.
            on_answer: called after each round trip to a server with its seconds.

        Raises:
            LockNotReleased: another transaction holds a lock of a whole table for longer than READ_LOCK_SECONDS, or
                half of the deadline.
        """
        locks = READ_LOCK_SECONDS if deadline is None else min(READ_LOCK_SECONDS, deadline / 2)
        async with (
            self._holder_named("The database cannot be read"),
            self._translated(),
            await self._reader.connect() as connection,
            connection.begin(),
            self._travelling(connection, on_answer) as trips,
            within_deadline(connection, deadline, locks, trips),
        ):
            with interruptible(connection, self._interrupts):
                yield Transaction(connection, self.tables, self.dialect, round_trips=trips, reads=True)

    @asynccontextmanager
    async def _travelling(
        self, connection: AsyncCoreConnection, on_answer: Callable[[float], object] | None
    ) -> "AsyncIterator[RoundTrips | None]":
        """Let the statements of concurrent steps travel together, after the BEGIN; None for a file."""
        if self.dialect.begin_reading is None:
            yield None
            return
        from runner.db.round_trips import RoundTrips  # imports psycopg

        driver: Any = (await connection.get_raw_connection()).driver_connection
        driver.round_trips = trips = RoundTrips(driver, on_answer)
        trips.defer(self.dialect.begin_reading)
        try:
            yield trips
        finally:
            driver.round_trips = None

    def interrupt_reads(self) -> None:
        """End the running statements of read-only transactions whose tasks are cancelled."""
        for interrupt in tuple(self._interrupts):
            interrupt()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Transaction]:
        """Open a writing transaction; it commits unless the block raises."""
        async with (
            self._translated(),
            # First in, first out, unlike SQLite's busy timeout.
            nullcontext() if self._writer_lock is None else self._writer_lock.acquire(),
            await self._writer.connect() as connection,
            connection.begin(),
            within_deadline(connection, self._deadline),
        ):
            yield self._transaction(connection)

    @asynccontextmanager
    async def for_handler(self, wait: Wait) -> AsyncIterator[Transaction]:
        """Open a writing transaction for a handler, on separate connections; errors are not translated.

        Raises:
            TransactionUnavailable: none became available before the end of `wait`.
        """
        async with self._handlers.opened(wait) as (connection, number):
            yield Transaction(connection, self.tables, self.dialect, number=number)

    @contextmanager
    def for_handler_in_thread(self, wait: Wait) -> Iterator[BlockingTransaction]:
        """The blocking form of `for_handler`, for threads."""
        with self._handlers.opened_in_thread(wait) as (connection, number):
            yield BlockingTransaction(connection, self.tables, self.dialect, number)

    @property
    def limit_reason(self) -> str:
        """The limit that makes handlers wait for their transactions, as text."""
        return self._handlers.limit_reason

    async def read(self, verb: StoreVerb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb of the store in a reading transaction of its own, as it declares in `Needs`."""

        def run(tx: Transaction) -> Awaitable[T]:
            return verb(tx, *args, **kwargs)

        needs = needs_of(verb, self.dialect, *args, **kwargs)
        if needs is Needs.TRANSACTION:
            return await shielded(_in_block(self.reading, run, TransactionStage()))
        return await shielded(_retried(partial(self._prepared, verb, needs, run, "statement")))

    async def write(self, verb: StoreVerb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb of the store in a writing transaction of its own, as it declares in `Needs`.

        It runs again if a concurrent transaction made it fail. The stage of a DatabaseUnavailable is the commit if its
        changes may be durable.

        Raises:
            LockNotReleased: another transaction holds a lock for which the last attempt waited in vain.
        """

        def run(tx: Transaction) -> Awaitable[T]:
            return verb(tx, *args, **kwargs)

        needs = needs_of(verb, self.dialect, *args, **kwargs)
        if needs is not Needs.TRANSACTION:
            if (writer := self._file_writer) is not None:
                return await shielded(_retried(partial(self._write_file, writer, run)))
            stage: Stage = "commit" if needs is Needs.PREPARED else "statement"
            return await shielded(_retried(partial(self._prepared, verb, needs, run, stage)))
        async with self._holder_named("Nothing was changed"):
            return await shielded(_retried(partial(_in_block, self.writing, run)))

    async def _prepared(self, verb: object, needs: Needs, run: Work[T], stage: Stage, progress: TransactionStage) -> T:
        """Run a verb with prepared statements; in a file it only reads.

        Args:
            verb: the verb that runs. It gets the connection that it had before, if that is idle.
            stage: the stage of its statements: "commit" if they commit by themselves.
        """
        if self._read_only:
            return await _in_block(self.reading, run, progress)

        async def work(pooled: PooledConnection) -> T:
            tx = Transaction(pooled.connection, self.tables, self.dialect, pooled.driver, progress=progress)
            if needs is Needs.PREPARED_TRANSACTION:
                async with self.dialect.whole(pooled.driver):
                    progress.stage = stage
                    result = await run(tx)
                    progress.stage = "commit"
                return result
            progress.stage = stage
            result = await run(tx)
            progress.stage = "commit"
            return result

        async with self._translated():
            return await self._statements.run(verb, work)

    @asynccontextmanager
    async def _holder_named(self, effect: str) -> AsyncIterator[None]:
        """Name the session that holds a lock for which a statement in the block waited in vain, and the effect."""
        try:
            yield
        except DatabaseRefused as error:
            if isinstance(error, RowLocked | LockNotReleased) or not is_lock_timeout(error):
                raise
            raise await self._with_holder(error, effect) from error.__cause__

    async def _with_holder(self, error: DatabaseRefused, effect: str) -> DatabaseRefused:
        """The error with the lock and the session that holds it; unchanged if it is released."""
        lock = None
        with suppress(StoreError):
            lock = await self.read(lock_of, error)
        if lock is None:
            return error
        advice = lock_advice(lock.session)
        why = f"{fact_of(error.__cause__ or error)}: {lock_text(lock)}"
        return LockNotReleased(effect=effect, why=why, remedy=f"{advice[:1].upper()}{advice[1:]}")

    async def _write_file(self, writer: FileWriter, run: Work[T], progress: TransactionStage) -> T:
        async with self._translated():
            return await writer.write(run, progress)

    async def dispose(self) -> None:
        """Close all connections. An open SQLite connection would prevent the process from exiting."""
        if "_statements" in vars(self):
            await self._statements.close()
        if "engine" in vars(self):
            await self.engine.dispose()
        await self._handlers.dispose()
        self.threads.close()
        if (loops := vars(self).get("loops")) is not None:
            await asyncio.to_thread(loops.close)

    async def migrate(self) -> None:
        """Create the tables, or upgrade them to the current version."""
        from runner.db.migrations.apply import upgrade  # Alembic takes a third of a second to import

        async with self._translated():
            await upgrade(self)

    def _transaction(self, connection: AsyncCoreConnection) -> Transaction:
        return Transaction(connection, self.tables, self.dialect)

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            translated = translate(error, self.url)
            if translated is None:
                raise
            raise translated from error


async def _in_block(
    begin: Callable[[], AbstractAsyncContextManager[Transaction]], run: Work[T], progress: TransactionStage
) -> T:
    """Run a verb in a transaction of its own."""
    async with begin() as tx:
        progress.stage = "statement"
        result = await run(tx)
        progress.stage = "commit"
    return result


async def _retried(transaction: Callable[[TransactionStage], Awaitable[T]]) -> T:
    """Run a transaction; retry if a concurrent one made it fail."""
    attempt, end = 1, time.monotonic() + connect.BUSY_SECONDS
    while True:
        progress = TransactionStage()
        try:
            return await transaction(progress)
        except Exception as error:
            if isinstance(error, DatabaseUnavailable):
                error.stage = progress.stage
            if not retries(error, attempt, end):
                raise
        await asyncio.sleep(retry_pause(attempt))
        attempt += 1


def _create_engine(url: sa.URL, synchronous: str, connector: Connector) -> AsyncCoreEngine:
    with connect.requires_packages():
        import_module("greenlet")  # SQLAlchemy would report a ValueError at the first statement
        engine = AsyncCoreEngine.create(url, hide_parameters=True, **connect.options(url))
    connect.prepare(engine.sync_engine, synchronous, connector)
    return engine
