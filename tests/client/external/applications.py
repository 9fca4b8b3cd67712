"""Applications with their own transactions: one for each supported kind of connection."""

import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as create_async
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from runner import Submission, TaskHandle, TaskHandler


@dataclass
class Application:
    """A connection with an open transaction: how the application uses it, and the object that it passes as `tx`."""

    tx: Any
    run: Callable[[str], Any]
    end: Callable[[], Any]
    undo: Callable[[], Any]
    awaited: bool = False

    async def execute(self, statement: str) -> None:
        await done(self.run(statement))

    async def submit(self, call: TaskHandler[..., Any, Any] | Submission[..., Any], *args: Any) -> TaskHandle[Any]:
        submission = call.options(tx=self.tx) if isinstance(call, TaskHandler) else call
        handle: TaskHandle[Any] = await done(
            submission.submit_async(*args) if self.awaited else submission.submit(*args),
        )
        return handle

    async def commit(self) -> None:
        await done(self.end())

    async def rollback(self) -> None:
        await done(self.undo())


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


Kind = Callable[[str], AbstractAsyncContextManager[Application]]


def path(url: str) -> str:
    return url.removeprefix("sqlite:///")


@asynccontextmanager
async def python_sqlite3(url: str) -> AsyncIterator[Application]:
    with closing(sqlite3.connect(path(url))) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        yield Application(connection, connection.execute, connection.commit, connection.rollback)


@asynccontextmanager
async def sqlite3_with_begin(url: str) -> AsyncIterator[Application]:
    with closing(sqlite3.connect(path(url), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.row_factory = lambda _cursor, _row: "not a tuple"
        yield Application(connection, connection.execute, connection.commit, connection.rollback)


@asynccontextmanager
async def awaited_sqlite(url: str) -> AsyncIterator[Application]:
    async with aiosqlite.connect(path(url)) as connection:
        connection.row_factory = aiosqlite.Row
        connection.text_factory = bytes
        yield Application(connection, connection.execute, connection.commit, connection.rollback, awaited=True)


@asynccontextmanager
async def plain_psycopg(url: str) -> AsyncIterator[Application]:
    with closing(psycopg.connect(url, row_factory=psycopg.rows.dict_row)) as connection:
        yield Application(
            connection, lambda text: connection.execute(text.encode()), connection.commit, connection.rollback
        )


@asynccontextmanager
async def psycopg_block(url: str) -> AsyncIterator[Application]:
    """Autocommit, but inside a `connection.transaction()` block, with the cursor class that uses $1 parameters."""
    with closing(psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor)) as connection:
        block = connection.transaction()
        rollback = psycopg.Rollback(block.__enter__())
        yield Application(
            connection,
            lambda text: connection.execute(text.encode()),
            lambda: block.__exit__(None, None, None),
            lambda: block.__exit__(psycopg.Rollback, rollback, None),
        )


@asynccontextmanager
async def awaited_psycopg(url: str) -> AsyncIterator[Application]:
    connection = await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row)
    yield Application(
        connection, lambda text: connection.execute(text.encode()), connection.commit, connection.rollback, True
    )
    await connection.close()


@asynccontextmanager
async def plain_psycopg2(url: str) -> AsyncIterator[Application]:
    with closing(psycopg2.connect(url)) as connection:
        cursor = connection.cursor()
        yield Application(connection, cursor.execute, connection.commit, connection.rollback)


@asynccontextmanager
async def plain_asyncpg(url: str) -> AsyncIterator[Application]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield Application(connection, connection.execute, transaction.commit, transaction.rollback, awaited=True)
    await connection.close()


@asynccontextmanager
async def pooled_asyncpg(url: str) -> AsyncIterator[Application]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Application(connection, connection.execute, transaction.commit, transaction.rollback, awaited=True)


def with_driver(url: str, driver: str) -> str:
    kind, _, rest = url.partition("://")
    return f"{kind}+{driver}://{rest}"


def connection_of(driver: str, **options: Any) -> Kind:
    @asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Application]:
        engine = sa.create_engine(with_driver(url, driver), **options)
        with engine.connect() as connection:
            yield Application(connection, connection.exec_driver_sql, connection.commit, connection.rollback)
        engine.dispose()

    return connect


def session_of(driver: str, *, scoped: bool = False) -> Kind:
    @asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Application]:
        engine = sa.create_engine(with_driver(url, driver))
        maker = sessionmaker(engine)
        session: Session | scoped_session[Session] = scoped_session(maker) if scoped else maker()
        yield Application(session, lambda text: session.execute(sa.text(text)), session.commit, session.rollback)
        session.close()
        engine.dispose()

    return connect


def async_connection_of(driver: str) -> Kind:
    @asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Application]:
        engine = create_async(with_driver(url, driver))
        connection: AsyncConnection
        async with engine.connect() as connection:
            yield Application(connection, connection.exec_driver_sql, connection.commit, connection.rollback, True)
        await engine.dispose()

    return connect


def async_session_of(driver: str, *, scoped: bool = False) -> Kind:
    @asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Application]:
        engine = create_async(with_driver(url, driver))
        maker = async_sessionmaker(engine)
        session: AsyncSession | async_scoped_session[AsyncSession]
        session = async_scoped_session(maker, scopefunc=lambda: 0) if scoped else maker()
        yield Application(session, lambda text: session.execute(sa.text(text)), session.commit, session.rollback, True)
        await session.close()
        await engine.dispose()

    return connect


KINDS: dict[str, dict[str, Kind]] = {
    "sqlite": {
        "sqlite3": python_sqlite3,
        "sqlite3 after BEGIN": sqlite3_with_begin,
        "aiosqlite": awaited_sqlite,
        "Connection over pysqlite": connection_of("pysqlite"),
        "Session over pysqlite": session_of("pysqlite"),
        "AsyncConnection over aiosqlite": async_connection_of("aiosqlite"),
        "AsyncSession over aiosqlite": async_session_of("aiosqlite"),
    },
    "postgresql": {
        "psycopg": plain_psycopg,
        "psycopg in a block": psycopg_block,
        "psycopg, awaited": awaited_psycopg,
        "psycopg2": plain_psycopg2,
        "asyncpg": plain_asyncpg,
        "asyncpg from a pool": pooled_asyncpg,
        "Connection over psycopg": connection_of("psycopg"),
        "Connection over psycopg2": connection_of("psycopg2"),
        "Session over psycopg": session_of("psycopg"),
        "scoped_session over psycopg2": session_of("psycopg2", scoped=True),
        "AsyncConnection over psycopg": async_connection_of("psycopg"),
        "AsyncConnection over asyncpg": async_connection_of("asyncpg"),
        "AsyncSession over psycopg": async_session_of("psycopg"),
        "AsyncSession over asyncpg": async_session_of("asyncpg"),
        "async_scoped_session over asyncpg": async_session_of("asyncpg", scoped=True),
    },
}
"""Kinds of connections by database and name."""
