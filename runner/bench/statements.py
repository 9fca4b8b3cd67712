"""Statements: what claims and settles cost PostgreSQL, by its own account."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from runner.bench.load import Load
from runner.bench.orders import HANDLER
from runner.bench.report import Cost
from runner.columns import EARLIEST
from runner.errors import StoreError
from runner.outcome import Done
from runner.policy.selection import Lane, Place
from runner.settings import Settings
from runner.store.claim import Claimant, Terms, claim
from runner.store.database import Database
from runner.store.runners import Identity, register
from runner.store.settle import Settlement, settle_done
from runner.store.statement import Prepared
from runner.store.transaction import Transaction
from runner.task import Priority

SIGNS = {"claim": "SKIP LOCKED", "settle": "DELETE FROM", "submit": "INSERT INTO"}
"""What tells the statements from each other, the first that is found counts."""

OTHER = "other"
TOLD = "in PostgreSQL, by pg_stat_statements"
EXPLAINED = "in PostgreSQL, by EXPLAIN ANALYZE"
ROUNDS = 5
LEASE = 60.0
MICRO = 1e3
"""Microseconds in the milliseconds that PostgreSQL tells."""

Spent = dict[str, tuple[int, float]]
"""Calls and milliseconds by kind of statement."""


class Statements:
    """Asks the database what statements have cost: pg_stat_statements where it is, and else EXPLAIN ANALYZE.

    Args:
        database: with a schema of its own.
        settings: how much is claimed and settled at a time.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._before: Spent | None = None

    async def begin(self) -> None:
        """Note what was spent before."""
        self._before = await self._told()

    async def costs(self, load: Load, tasks: int) -> list[Cost]:
        """What statements cost since `begin`.

        Args:
            load: submits more tasks to explain statements with, if that is needed.
            tasks: that were submitted, claimed and settled since then.

        Returns:
            One cost for each kind; none on SQLite, which works in the runner's own process.
        """
        if not self._database.dialect.isolates_rows:
            return []
        if self._before is not None:
            return list(_since(self._before, await self._told() or {}, tasks))
        batch = min(self._settings.batch, self._settings.slots, tasks)
        await load.many(ROUNDS * batch)
        await load.settled()
        return await self._database.write(_explained, batch)

    async def _told(self) -> Spent | None:
        """What pg_stat_statements says of our schema, if it is installed and loaded."""
        if not self._database.dialect.isolates_rows:
            return None
        try:
            return await self._database.read(_told)
        except StoreError:
            return None


async def _told(tx: Transaction) -> Spent:
    mine = {"mine": f"%{tx.tables.metadata.schema}%"}
    statement = "SELECT query, calls, total_exec_time FROM pg_stat_statements WHERE query LIKE :mine"
    calls: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for query, times, milliseconds in await tx.rows(sa.text(statement), mine):
        kind = next((kind for kind, sign in SIGNS.items() if sign in query), OTHER)
        calls[kind] += times
        spent[kind] += milliseconds
    return {kind: (calls[kind], float(spent[kind])) for kind in (*SIGNS, OTHER)}


def _since(before: Spent, after: Spent, tasks: int) -> Iterator[Cost]:
    for kind, (calls, spent) in after.items():
        calls_before, spent_before = before[kind]
        yield Cost(kind, TOLD, None, MICRO * (spent - spent_before) / tasks, calls - calls_before)


class Explained(Transaction):
    """A transaction in which each prepared statement is tried and explained before it is executed."""

    __slots__ = ("spent",)

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx.connection, tx.tables, tx.dialect)
        self.spent: list[float] = []
        """Milliseconds."""

    async def run(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any]:
        """Execute a prepared statement; what it costs is noted."""
        raw: Any = (await self.connection.get_raw_connection()).driver_connection
        text = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {prepared.sql}"
        trial = await self.connection.begin_nested()
        cursor = await raw.execute(text, prepared.arguments(parameters))
        ((told,),) = await cursor.fetchall()
        await trial.rollback()
        (plan,) = json.loads(told)
        self.spent.append(plan["Planning Time"] + plan["Execution Time"])
        return await super().run(prepared, parameters)


async def _explained(tx: Transaction, batch: int) -> list[Cost]:
    """Claim and settle batches; a statement's first execution on a connection is left out."""
    who = Claimant(await register(tx, Identity("bench", 0, "", [HANDLER], batch), LEASE), "bench")
    lanes = {Lane("default", HANDLER, Priority.DEFAULT): Place(EARLIEST, 0)}
    claims, settles = Explained(tx), Explained(tx)
    for _ in range(ROUNDS):
        claimed = await claim(claims, who, lanes, {HANDLER: Terms(1, None)}, batch)
        await settle_done(settles, who.runner_id, [Settlement(task.id, task.fence, Done(), 0.0) for task in claimed])
    return [_cost("claim", claims.spent[1:], batch), _cost("settle", settles.spent[1:], batch)]


def _cost(kind: str, spent: Iterable[float], batch: int) -> Cost:
    times = list(spent)
    return Cost(kind, EXPLAINED, None, MICRO * sum(times) / len(times) / batch, len(times))
