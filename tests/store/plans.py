"""The execution of a verb's statements: indexes, full scans, and the number of rows and pages."""

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from psycopg import AsyncClientCursor, AsyncCursor
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus

from runner.db.database import Database
from runner.db.dialects.sqlite import ignore_statistics
from runner.db.server_connection import AsyncServerCursor
from tests.db.replaced_fetch import Fetch, replace_fetch

LOCKS = "pg_lock_status"
"""The function of pg_locks: the locks are in memory, and most are those of the measured transaction on partitions."""

EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
STEPS = 10
PARAMETER = re.compile(r"%\((\w+)\)")


@dataclass
class Cost:
    """The work of a verb's statements.

    Args:
        indexes: the indexes that were used.
        whole: the tables that were read completely.
        rows: the rows that were read; on SQLite, the steps of its virtual machine in tens.
        pages: the pages that were touched; unknown on SQLite.
        statements: the number of statements.
    """

    indexes: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    rows: int = 0
    pages: int = 0
    statements: int = 0


class Watch(Protocol):
    """Records the statements of a database."""

    def seeing(self) -> AbstractAsyncContextManager[Cost]:
        """Record the statements inside this block, and yield their work as Seen."""
        ...


def watch(database: Database) -> Watch:
    """Begin to record a database that has no connection yet."""
    return WatchedPostgreSQL(database) if database.dialect.is_server else WatchedSQLite(database)


class WatchedPostgreSQL:
    """Explains every statement on its own connection, with its own parameters, just before it is executed.

    SQLAlchemy's statements come to a cursor of the connection, prepared ones to `fetch` of the dialect.

    On a connection that prepares, this is the plan of the prepared statement, which is the same for all parameters.
    """

    def __init__(self, database: Database) -> None:
        self._cost: Cost | None = None
        noting = self

        class Explaining(AsyncServerCursor):
            async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
                if noting._cost is not None:
                    noting._note(noting._cost, await _explained(self.connection, query, params))
                return await super().execute(query, params, **options)

        def adopt(connection: Any, _: Any) -> None:
            connection.driver_connection.cursor_factory = Explaining

        def explained(fetch: Fetch) -> Fetch:
            async def fetched(connection: Any, sql: str, arguments: Any) -> list[Any]:
                if noting._cost is not None:
                    noting._note(noting._cost, await _explained(connection, sql, arguments))
                return await fetch(connection, sql, arguments)

            return fetched

        sa.event.listen(database.engine.sync_engine, "connect", adopt)
        replace_fetch(database, explained)

    @asynccontextmanager
    async def seeing(self) -> AsyncIterator[Cost]:
        self._cost = cost = Cost()
        yield cost
        self._cost = None

    def _note(self, cost: Cost, plan: dict[str, Any]) -> None:
        cost.statements += 1
        cost.pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        for node in _nodes(plan):
            if "Index Name" in node:
                cost.indexes.add(node["Index Name"])
            if node["Node Type"] == "Seq Scan":
                cost.whole.add(node["Relation Name"])
            if "Scan" in node["Node Type"] and node.get("Function Name") != LOCKS:
                removed = [count for name, count in node.items() if name.startswith("Rows Removed by")]
                cost.rows += round(node["Actual Loops"] * sum([node["Actual Rows"], *removed]))


EXPLAINING: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
"""One statement of a connection is explained at a time."""


async def _explained(connection: Any, query: Any, params: Any) -> dict[str, Any]:
    """Explain a statement by executing it in a savepoint that is rolled back."""
    if (trips := connection.round_trips) is not None:  # begins the transaction, with the settings of the statement
        after, trips._after = trips._after, ""
        await AsyncServerCursor(connection).execute("SELECT 1")
        trips._after = after
    async with EXPLAINING.setdefault(connection, asyncio.Lock()):
        return await _in_savepoint(connection, query, params)


async def _in_savepoint(connection: Any, query: Any, params: Any) -> dict[str, Any]:
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    before, after = ("BEGIN", "ROLLBACK") if idle else ("SAVEPOINT explained", "ROLLBACK TO explained")
    async with AsyncCursor(connection) as cursor:
        await cursor.execute(before)
        if connection.prepare_threshold is None:
            await cursor.execute(EXPLAIN + query, params)
        else:
            await cursor.execute(EXPLAIN + await _prepared(connection, cursor, query, params), prepare=False)
        answer = await cursor.fetchone()
        if connection.prepare_threshold is not None:
            await cursor.execute("DEALLOCATE explained", prepare=False)
        await cursor.execute(after)
    assert answer is not None
    plan: dict[str, Any] = json.loads(answer[0])[0]["Plan"]
    return plan


async def _prepared(connection: Any, cursor: AsyncCursor[Any], query: str, params: Any) -> str:
    """Prepare a statement, and return the command that executes it."""
    text = PostgresQuery(Transformer(connection))
    text.convert(query, params)
    names = dict.fromkeys(PARAMETER.findall(query)) if isinstance(params, dict) else range(len(params or ()))
    literals = [AsyncClientCursor(connection).mogrify("%s", [params[name]]) for name in names]
    await cursor.execute(b"PREPARE explained AS " + text.query, prepare=False)
    return f"EXECUTE explained({', '.join(literals)})" if literals else "EXECUTE explained"


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


class WatchedSQLite:
    """Records every statement with its parameters and steps, and explains it afterwards."""

    def __init__(self, database: Database) -> None:
        self._file = database.engine.url.database or ""
        self._cost: Cost | None = None
        self._noted: list[str] = []
        sa.event.listen(database.engine.sync_engine, "connect", self._adopt)

    def _adopt(self, connection: Any, _: Any) -> None:
        connection.run_async(lambda driver: driver.set_trace_callback(self._noted.append))
        connection.run_async(lambda driver: driver.set_progress_handler(self._step, STEPS))

    def _step(self) -> int:
        if self._cost is not None:
            self._cost.rows += 1
        return 0

    @asynccontextmanager
    async def seeing(self) -> AsyncIterator[Cost]:
        self._noted.clear()
        self._cost = cost = Cost()
        yield cost
        self._cost = None
        with sqlite3.connect(self._file) as connection:
            ignore_statistics(connection)
            for statement in self._noted:
                if statement.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
                    cost.statements += 1
                    self._note(cost, connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall())
        connection.close()

    def _note(self, cost: Cost, lines: list[tuple[int, int, int, str]]) -> None:
        for *_, text in lines:
            words = text.replace("COVERING INDEX", "INDEX").split()
            if "INDEX" in words:
                cost.indexes.add(words[words.index("INDEX") + 1])
            elif words[0] == "SCAN" and "VIRTUAL" not in words:
                cost.whole.add(words[1])
