"""Answers that are lost or late: the database commits a claim, and its runner does not hear of it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import psycopg
import pytest
import sqlalchemy as sa
from aiosqlite import Connection

from runner.db.database import Database
from runner.db.thread_connections import ThreadConnection, ThreadConnections
from runner.store.claim.plain import claim, claim_suspect
from tests.db.replaced_fetch import Fetch, replace_fetch
from tests.postgres.proxy import Proxy


class LostReplies:
    """Loses the answers of claims on the driver's own connections, after the database committed them.

    Args:
        database: of the runner.
        suspects: lose the answers of the claims that take suspects, instead of the others.
    """

    def __init__(self, database: Database, suspects: bool = False) -> None:
        self.lost = 0
        self.most = 0
        """The answers to lose."""
        self._suspects = suspects
        if database.dialect.is_server:
            replace_fetch(database, self._committed_by_itself)
        else:
            sa.event.listen(database.engine.sync_engine, "connect", self._watch)

    def _committed_by_itself(self, fetch: Fetch) -> Fetch:
        async def fetched(driver: Any, sql: str, arguments: Any) -> list[Any]:
            rows = await fetch(driver, sql, arguments)
            if self._loses(sql) and rows:
                self.lost += 1
                await driver.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return rows

        return fetched

    def _watch(self, connection: Any, _: Any) -> None:
        driver = connection.driver_connection
        execute = driver._execute

        def claimed() -> bool:
            return bool(driver._conn.execute("SELECT 1 FROM task WHERE state = 'running'").fetchall())

        async def executed(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            statements: list[str] = []

            def traced(*arguments: Any, **keywords: Any) -> Any:
                driver._conn.set_trace_callback(statements.append)  # in the thread: other calls may wait for it
                return function(*arguments, **keywords)

            result = await execute(traced, *arguments, **options)
            if "COMMIT" in statements and any(self._loses(sql) for sql in statements) and await execute(claimed):
                self.lost += 1
                raise sqlite3.OperationalError("disk I/O error")
            return result

        driver._execute = executed

    def _loses(self, sql: Any) -> bool:
        mine = isinstance(sql, str) and "UPDATE task SET" in sql and "claimed_at=" in sql
        return mine and self.lost < self.most and ("due.rescues > 0" in sql) is self._suspects


class LostCommits(Protocol):
    """Loses the answers of commits."""

    lost: int
    """The answers that were lost."""

    url: str
    """URL of the database for the programs that lose them."""

    def lose(self, sign: str, times: int = 1) -> None:
        """Lose the answer to the commits of the next transactions with a statement that contains a text.

        On PostgreSQL, where statements may commit by themselves, it is the answer to that statement.
        """
        ...


class LostCommitsOfSQLite:
    """Reports errors of the disk after commits, in every connection of this process.

    Args:
        url: URL of the database.
        patch: of the test.
    """

    def __init__(self, url: str, patch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.lost = 0
        self._sign = ""
        self._times = 0
        self._marked: set[int] = set()
        call: Any = Connection._execute

        async def called(connection: Any, function: Any, *arguments: Any, **options: Any) -> Any:
            statements: list[str] = []

            def traced(*arguments: Any, **keywords: Any) -> Any:
                if connection._connection is not None:
                    connection._conn.set_trace_callback(statements.append)  # in the thread: another call may trace
                return function(*arguments, **keywords)

            result = await call(connection, traced, *arguments, **options)
            for sql in statements:
                self.mark(connection, sql)
            if "COMMIT" in statements:
                self.committed(connection)
            return result

        opened = ThreadConnections.open
        patch.setattr(ThreadConnections, "open", lambda pool: self._watched(opened(pool)))
        patch.setattr(Connection, "_execute", called)

    def lose(self, sign: str, times: int = 1) -> None:
        self._sign, self._times = sign, times

    def _watched(self, connection: ThreadConnection) -> ThreadConnection:
        cursor = WatchedCursor(self, connection.cursor)
        return connection._replace(cursor=cursor, by_position=cursor)

    def committed(self, connection: object) -> None:
        """Lose the answer to the commit of a connection, if it has a marked statement."""
        if id(connection) in self._marked:
            self._marked.clear()
            self.lost += 1
            raise sqlite3.OperationalError("disk I/O error")

    def mark(self, connection: object, sql: str) -> None:
        if self._times and self._sign in sql:
            self._times -= 1
            self._marked.add(id(connection))


class WatchedCursor:
    """The cursor of a blocking connection, whose commits lose their answers.

    Args:
        commits: decides which.
        cursor: the cursor.
    """

    def __init__(self, commits: LostCommitsOfSQLite, cursor: sqlite3.Cursor) -> None:
        self._commits = commits
        self._cursor = cursor

    def execute(self, sql: str, *arguments: Any) -> None:
        self._commits.mark(self, sql)
        self._cursor.execute(sql, *arguments)
        if self._cursor.description is None:
            self._after_commit()

    def fetchall(self) -> list[Any]:
        rows = self._cursor.fetchall()
        self._after_commit()
        return rows

    def _after_commit(self) -> None:
        if not self._cursor.connection.in_transaction:  # a COMMIT, or a statement that has committed by itself
            self._commits.committed(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@asynccontextmanager
async def losing_commits(url: str, patch: pytest.MonkeyPatch) -> AsyncIterator[LostCommits]:
    """Lose answers during the block: through a proxy where there is a server."""
    if url.startswith("sqlite"):
        yield LostCommitsOfSQLite(url, patch)
    else:
        async with Proxy(url).opened() as proxy:
            yield proxy


class LateReplies:
    """Keeps the answers of claims back, after the database committed them.

    Args:
        database: of the runner.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.kept = asyncio.Event()
        """Set when an answer that brings tasks is kept back."""
        self.go_on = asyncio.Event()

    async def write(self, verb: Any, *arguments: Any) -> Any:
        rows = await self._database.write(verb, *arguments)
        if verb in (claim, claim_suspect) and rows:
            self.kept.set()
            await self.go_on.wait()
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)
