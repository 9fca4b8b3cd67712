"""Database: the way to a transaction, to read or to write, with the set-up that each database needs."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from runner.schema import tables
from runner.settings import Settings
from runner.store import connecting
from runner.store.blocking import Blocking, BlockingTransaction
from runner.store.dialects import DIALECTS
from runner.store.faults import is_transient, translate
from runner.store.filesystem import refuse_remote
from runner.store.lines import Lines
from runner.store.shield import shielded
from runner.store.transaction import Transaction
from runner.urls import DatabaseUrl, async_url, redacted, sync_url

P = ParamSpec("P")
T = TypeVar("T")
Verb = Callable[Concatenate[Transaction, P], Awaitable[T]]

TRIES = 8
"""How often a transaction that lost against another one is run before the error is passed on."""


class Database:
    """One database that holds tasks.

    Args:
        engine: the connections.
        blocking: those for plain functions in threads.
        url: the database as people may see it, without a password.
        prefix: goes before every table's name.
        schema: the PostgreSQL schema of the tables.
        read_only: no transaction can change anything, whatever is asked of it.
        deadline: seconds after which the database breaks a statement of a transaction that writes off; None for never.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        blocking: Blocking,
        url: str,
        prefix: str = "",
        schema: str | None = None,
        *,
        read_only: bool = False,
        deadline: float | None = None,
    ) -> None:
        self.engine = engine
        self._blocking = blocking
        self.url = url
        self.dialect = DIALECTS[engine.dialect.name]
        self.tables = tables(prefix, schema if self.dialect.isolates_rows else None)
        self._reader = engine.execution_options(**connecting.READING[self.dialect.name])
        writing = connecting.READING if read_only else connecting.WRITING
        self._writer = engine.execution_options(**writing[self.dialect.name])
        self._read_only, self._deadline = read_only, deadline
        single = engine.execution_options(**connecting.SINGLE[self.dialect.name])
        self._lines = Lines(single, commits=not self.dialect.isolates_rows)
        self._turn: asyncio.Lock | None = None if self.dialect.isolates_rows else asyncio.Lock()

    @classmethod
    def open(
        cls,
        url: str | DatabaseUrl,
        *,
        prefix: str = "",
        schema: str | None = None,
        synchronous: str = "FULL",
        read_only: bool = False,
        deadline: float | None = None,
    ) -> Self:
        """Prepare the way to a database, without connecting yet.

        Args:
            url: as people write it: sqlite:///file.db or postgresql://host/database.
            prefix: goes before every table's name.
            schema: the PostgreSQL schema of the tables.
            synchronous: SQLite's promise: FULL survives a power cut, NORMAL is faster and may lose the last commits.
            read_only: let no transaction change anything, whatever is asked of it.
            deadline: seconds after which the database breaks a statement of a transaction that writes off; None for
                never.

        Raises:
            InvalidUrl: when the URL names nothing that we support.
            UnsafeFile: when a SQLite file lies on a network share.
        """
        target = async_url(url)
        if target.get_backend_name() == "sqlite":
            refuse_remote(target.database or "")
        if read_only:
            target = connecting.read_only(target)
        engine = create_async_engine(target, hide_parameters=True, **connecting.options(target))
        connecting.prepare(engine.sync_engine, synchronous)
        blocking = Blocking(sync_url(url), synchronous)
        return cls(engine, blocking, redacted(url), prefix, schema, read_only=read_only, deadline=deadline)

    @classmethod
    def of(cls, settings: Settings, *, read_only: bool = False, deadline: float | None = None) -> Self:
        """Prepare the way to the database that the settings name; see `open`."""
        return cls.open(
            settings.url,
            prefix=settings.table_prefix,
            schema=settings.table_schema,
            synchronous=settings.synchronous,
            read_only=read_only,
            deadline=deadline,
        )

    @asynccontextmanager
    async def reading(self, deadline: float | None = None) -> AsyncIterator[Transaction]:
        """Open a transaction that sees one moment and can change nothing.

        Args:
            deadline: seconds after which the database breaks a statement off; None for no limit.
        """
        async with (
            self._translated(),
            self._reader.connect() as connection,
            connection.begin(),
            connecting.deadline(connection, deadline),
        ):
            yield self._transaction(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Transaction]:
        """Open a transaction that may change things; it commits unless an exception leaves the block."""
        async with self._translated(), self.lending() as tx:
            yield tx

    @asynccontextmanager
    async def lending(self) -> AsyncIterator[Transaction]:
        """Do what `writing` does for code that is not ours: errors leave the block as they are."""
        async with (
            self._writers_turn(),
            self._writer.connect() as connection,
            connection.begin(),
            connecting.deadline(connection, self._deadline),
        ):
            yield self._transaction(connection)

    @contextmanager
    def lending_in_thread(self) -> Iterator[BlockingTransaction]:
        """Do what `lending` does in a thread that may block."""
        with self._blocking.connected() as connection:
            yield BlockingTransaction(connection, self.tables, self.dialect)

    @asynccontextmanager
    async def stating(self, writes: bool = True) -> AsyncIterator[Transaction]:
        """Open a transaction for one prepared statement, with as little around it as can be.

        On PostgreSQL the statement commits by itself; on SQLite several make one transaction.

        Args:
            writes: False for one that changes nothing: it waits for no writer.
        """
        if self._read_only:
            async with self.reading() as tx:
                yield tx
            return
        turn = self._writers_turn() if writes else nullcontext()
        async with self._translated(), turn, self._lines.taken(writes) as line:
            yield Transaction(line.connection, self.tables, self.dialect, line.driver)

    async def read(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb of the store in a reading transaction of its own."""

        async def transaction() -> T:
            async with self.reading() as tx:
                return await verb(tx, *args, **kwargs)

        return await shielded(transaction())

    async def write(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb of the store in a writing transaction of its own, again when it lost against another one."""

        async def transaction() -> T:
            async with self.writing() as tx:
                return await verb(tx, *args, **kwargs)

        return await shielded(_until_won(transaction))

    async def state(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that is one statement, as `write` does, but with fewer round trips."""

        async def transaction() -> T:
            async with self.stating() as tx:
                return await verb(tx, *args, **kwargs)

        return await shielded(_until_won(transaction))

    async def ask(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that is one statement and changes nothing, with as little around it as can be."""

        async def transaction() -> T:
            async with self.stating(writes=False) as tx:
                return await verb(tx, *args, **kwargs)

        return await shielded(_until_won(transaction))

    async def dispose(self) -> None:
        """Close all connections; an open one to SQLite would keep the process from ending."""
        await self._lines.close()
        await self.engine.dispose()
        self._blocking.dispose()

    async def migrate(self) -> None:
        """Create the tables, or bring them up to date."""
        from runner.migrations import upgrade  # Alembic takes a third of a second to import

        async with self._translated():
            await upgrade(self)

    def _transaction(self, connection: AsyncConnection) -> Transaction:
        return Transaction(connection, self.tables, self.dialect)

    @asynccontextmanager
    async def _writers_turn(self) -> AsyncIterator[None]:
        if self._turn is None:
            yield
        else:
            async with self._turn:  # one writer at a time: queueing here is fair, SQLite's own waiting is not
                yield

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            known = translate(error, self.url)
            if known is None:
                raise
            raise known from error


async def _until_won(transaction: Callable[[], Awaitable[T]]) -> T:
    for attempt in range(1, TRIES):
        try:
            return await transaction()
        except Exception as error:
            if not is_transient(error.__cause__ or error):
                raise
            await asyncio.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311 - spreads rivals, guards nothing
    return await transaction()
