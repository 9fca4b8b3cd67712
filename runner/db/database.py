"""Database: reading and writing transactions, with the set-up for each database."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Concatenate, ParamSpec, Self

from runner.db import connect
from runner.db.async_core import AsyncCoreConnection, AsyncCoreEngine
from runner.db.dialects import DIALECTS
from runner.db.errors import is_transient, translate
from runner.db.filesystem import refuse_remote
from runner.db.gate import Gate
from runner.db.handler_transactions import HandlerTransactions, Wait
from runner.db.schema import tables
from runner.db.shield import T, shielded
from runner.db.statement_pool import StatementPool
from runner.db.transaction import BlockingTransaction, Transaction
from runner.settings import Settings
from runner.urls import DatabaseUrl, async_url, redacted, sync_url

P = ParamSpec("P")
Verb = Callable[Concatenate[Transaction, P], Awaitable[T]]

TRIES = 8
"""Maximum number of attempts of a transaction that loses against others."""


class Database:
    """One database that holds tasks.

    Args:
        engine: the connections.
        handlers: those of `ctx.transaction()`.
        turn: that writers of this process take; None where they do not exclude each other.
        url: the database as people may see it, without a password.
        prefix: goes before every table's name.
        schema: the PostgreSQL schema of the tables.
        read_only: refuse all changes.
        deadline: seconds after which the database breaks a statement of a transaction that writes off; None for never.
    """

    def __init__(
        self,
        engine: AsyncCoreEngine,
        handlers: HandlerTransactions,
        turn: Gate | None,
        url: str,
        prefix: str = "",
        schema: str | None = None,
        *,
        read_only: bool = False,
        deadline: float | None = None,
    ) -> None:
        self.engine = engine
        self._handlers = handlers
        self.url = url
        self.dialect = DIALECTS[engine.dialect.name]
        self.tables = tables(prefix, schema if self.dialect.isolates_rows else None)
        self._reader = engine.execution_options(**connect.READING[self.dialect.name])
        writing = connect.READING if read_only else connect.WRITING
        self._writer = engine.execution_options(**writing[self.dialect.name])
        self._read_only, self._deadline = read_only, deadline
        single = engine.execution_options(**connect.SINGLE[self.dialect.name])
        self._statements = StatementPool(single, commits=not self.dialect.isolates_rows)
        self._turn = turn

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
        transactions: int = 1,
    ) -> Self:
        """Create a Database without connecting.

        Args:
            url: as people write it: sqlite:///file.db or postgresql://host/database.
            prefix: goes before every table's name.
            schema: the PostgreSQL schema of the tables.
            synchronous: SQLite's promise: FULL survives a power cut, NORMAL is faster and may lose the last commits.
            read_only: refuse all changes.
            deadline: seconds after which the database breaks a statement of a transaction that writes off; None for
                never.
            transactions: how many transactions of handlers are open at the same time; on SQLite it is one.

        Raises:
            InvalidUrl: when the URL names nothing that we support.
            UnsafeFile: when a SQLite file lies on a network share.
        """
        target = async_url(url)
        if target.get_backend_name() == "sqlite":
            refuse_remote(target.database or "")
        if read_only:
            target = connect.read_only(target)
        engine = AsyncCoreEngine.create(target, hide_parameters=True, **connect.options(target))
        connect.prepare(engine.sync_engine, synchronous)
        name = redacted(url)
        turn = Gate(1) if target.get_backend_name() == "sqlite" else None
        handlers = HandlerTransactions(target, sync_url(url), synchronous, transactions, turn, name)
        return cls(engine, handlers, turn, name, prefix, schema, read_only=read_only, deadline=deadline)

    @classmethod
    def of(cls, settings: Settings, *, read_only: bool = False, deadline: float | None = None) -> Self:
        """Create the Database of the settings; see `open`."""
        return cls.open(
            settings.url,
            prefix=settings.table_prefix,
            schema=settings.table_schema,
            synchronous=settings.sqlite_synchronous,
            read_only=read_only,
            deadline=deadline,
            transactions=settings.transaction_connections,
        )

    @asynccontextmanager
    async def reading(self, deadline: float | None = None) -> AsyncIterator[Transaction]:
        """Open a read-only transaction on one snapshot.

        Args:
            deadline: seconds after which the database breaks a statement off; None for no limit.
        """
        async with (
            self._translated(),
            await self._reader.connect() as connection,
            connection.begin(),
            connect.deadline(connection, deadline),
        ):
            yield self._transaction(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Transaction]:
        """Open a writing transaction; it commits unless the block raises."""
        async with (
            self._translated(),
            self._writers_turn(),
            await self._writer.connect() as connection,
            connection.begin(),
            connect.deadline(connection, self._deadline),
        ):
            yield self._transaction(connection)

    @asynccontextmanager
    async def for_handler(self, wait: Wait) -> AsyncIterator[Transaction]:
        """Open a writing transaction for a handler, on separate connections; errors are not translated.

        Raises:
            TransactionUnavailable: when there is none before `wait` is over.
        """
        async with self._handlers.opened(wait) as connection:
            yield self._transaction(connection)

    @contextmanager
    def for_handler_in_thread(self, wait: Wait) -> Iterator[BlockingTransaction]:
        """The synchronous form of `for_handler`, for threads."""
        with self._handlers.opened_in_thread(wait) as connection:
            yield BlockingTransaction(connection, self.tables, self.dialect)

    @property
    def obstacle(self) -> str:
        """The reason why a handler waits for its transaction, as text."""
        return self._handlers.obstacle

    @asynccontextmanager
    async def stating(self, writes: bool = True) -> AsyncIterator[Transaction]:
        """Open a transaction for one prepared statement, with minimal overhead.

        On PostgreSQL the statement commits by itself; on SQLite several make one transaction.

        Args:
            writes: False for one that changes nothing: it waits for no writer.
        """
        if self._read_only:
            async with self.reading() as tx:
                yield tx
            return
        turn = self._writers_turn() if writes else nullcontext()
        async with self._translated(), turn, self._statements.checkout(writes) as pooled:
            yield Transaction(pooled.connection, self.tables, self.dialect, pooled.driver)

    async def read(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb of the store in its own reading transaction."""

        async def transaction() -> T:
            async with self.reading() as tx:
                return await verb(tx, *args, **kwargs)

        return await shielded(transaction())

    async def write(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb of the store in its own writing transaction, and retry it if it loses against another one."""
        return await shielded(_until_won(self.writing, verb, *args, **kwargs))

    async def state(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that is one statement, as `write` does, but with fewer round trips."""
        return await shielded(_until_won(self.stating, verb, *args, **kwargs))

    async def ask(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that is one reading statement, with minimal overhead."""
        return await shielded(_until_won(partial(self.stating, writes=False), verb, *args, **kwargs))

    async def dispose(self) -> None:
        """Close all connections; an open one to SQLite would keep the process from ending."""
        await self._statements.close()
        await self.engine.dispose()
        await self._handlers.dispose()

    async def migrate(self) -> None:
        """Create the tables, or bring them up to date."""
        from runner.db.migrations.apply import upgrade  # Alembic takes a third of a second to import

        async with self._translated():
            await upgrade(self)

    def _transaction(self, connection: AsyncCoreConnection) -> Transaction:
        return Transaction(connection, self.tables, self.dialect)

    @asynccontextmanager
    async def _writers_turn(self) -> AsyncIterator[None]:
        if self._turn is None:
            yield
        else:
            async with self._turn.admitted():  # one writer at a time: this queue is fair, SQLite's busy handler is not
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


async def _until_won(
    begin: Callable[[], AbstractAsyncContextManager[Transaction]], verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a verb in a transaction, again if it lost against another one."""
    attempt = 1
    while True:
        try:
            async with begin() as tx:
                return await verb(tx, *args, **kwargs)
        except Exception as error:
            if attempt == TRIES or not is_transient(error.__cause__ or error):
                raise
        await asyncio.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311 - jitter, not security
        attempt += 1
