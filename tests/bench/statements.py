"""The cost of claims and settles in PostgreSQL, from its own statistics."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.cli.bench.exchange import HANDLER
from runner.cli.bench.load import Load
from runner.db.database import Database
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST
from runner.errors import StoreError
from runner.model.outcome import Done
from runner.model.task import Priority
from runner.policy.lanes import Lane
from runner.policy.positions import LanePosition
from runner.settings import Settings
from runner.store.claim.plain import Claimant, HandlerDefaults, claim
from runner.store.registration import Identity, register
from runner.store.settle import Settlement, SettleShape, settle

SIGNS = {"claim": "SKIP LOCKED", "settle": "DELETE FROM", "submit": "INSERT INTO"}
"""A marker of each kind of statement; the first match counts."""

OTHER = "other"
FROM_STATISTICS = "in PostgreSQL, by pg_stat_statements"
FROM_EXPLAIN = "in PostgreSQL, by EXPLAIN ANALYZE"
ROUNDS = 5
LEASE = 60.0
MICRO = 1e3
"""Microseconds in the milliseconds that PostgreSQL reports."""

Usage = dict[str, tuple[int, float]]
"""Calls and milliseconds by kind of statement."""


class Cost(NamedTuple):
    """A share of a task's time.

    Args:
        what: step of the runner, or statement of the database.
        words: description for people.
        cpu_us: CPU microseconds per task.
        took_us: wall clock microseconds per task, including waits for the database; None if the step never waits.
        calls: number of calls in the whole measurement.
    """

    what: str
    words: str
    cpu_us: float | None
    took_us: float | None
    calls: int


class Statements:
    """Reads the cost of statements from pg_stat_statements if it is installed, otherwise from EXPLAIN ANALYZE.

    Args:
        database: a database with a schema for the bench alone.
        settings: the settings with the batch sizes.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._before: Usage | None = None

    async def begin(self) -> None:
        """Record the usage before the measurement."""
        self._before = await self._usage()

    async def costs(self, load: Load, tasks: int) -> list[Cost]:
        """The cost of statements since `begin`.

        Args:
            load: submits more tasks for EXPLAIN ANALYZE, if that is needed.
            tasks: number of tasks submitted, claimed and settled since `begin`.

        Returns:
            One cost per kind of statement; empty on SQLite, which runs in the runner's process.
        """
        if not self._database.dialect.is_server:
            return []
        if self._before is not None:
            return list(_difference(self._before, await self._usage() or {}, tasks))
        batch = min(self._settings.claim_batch_size, self._settings.concurrency, tasks)
        await load.many(ROUNDS * batch)
        await load.analyze()
        return await self._database.write(_explain, batch)

    async def _usage(self) -> Usage | None:
        """Usage in the bench's schema by pg_stat_statements; None if that is not installed and loaded."""
        if not self._database.dialect.is_server:
            return None
        try:
            return await self._database.read(_read_usage)
        except StoreError:
            return None


async def _read_usage(tx: Transaction) -> Usage:
    parameters = {"mine": f"%{tx.tables.metadata.schema}%"}
    statement = "SELECT query, calls, total_exec_time FROM pg_stat_statements WHERE query LIKE :mine"
    calls: Counter[str] = Counter()
    usage: Counter[str] = Counter()
    for query, times, milliseconds in await tx.rows(sa.text(statement), parameters):
        kind = next((kind for kind, sign in SIGNS.items() if sign in query), OTHER)
        calls[kind] += times
        usage[kind] += milliseconds
    return {kind: (calls[kind], float(usage[kind])) for kind in (*SIGNS, OTHER)}


def _difference(before: Usage, after: Usage, tasks: int) -> Iterator[Cost]:
    for kind, (calls, usage) in after.items():
        calls_before, usage_before = before[kind]
        yield Cost(kind, FROM_STATISTICS, None, MICRO * (usage - usage_before) / tasks, calls - calls_before)


class ExplainTransaction(Transaction):
    """A transaction that explains each prepared statement in a savepoint before executing it."""

    __slots__ = ("times",)

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx.connection, tx.tables, tx.dialect)
        self.times: list[float] = []
        """Milliseconds."""

    async def run(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any]:
        """Execute a prepared statement and record its cost."""
        raw: Any = (await self.connection.get_raw_connection()).driver_connection
        text = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {prepared.sql}"
        async with self.connection.begin_nested() as savepoint:
            cursor = await raw.execute(text, prepared.arguments(parameters))
            ((output,),) = await cursor.fetchall()
            await savepoint.rollback()
        (plan,) = json.loads(output)
        self.times.append(plan["Planning Time"] + plan["Execution Time"])
        return await super().run(prepared, parameters)


async def _explain(tx: Transaction, batch: int) -> list[Cost]:
    """Claim and settle batches; the first execution of a statement on a connection does not count."""
    claimant = Claimant(await register(tx, Identity("bench", 0, "", [HANDLER], batch), LEASE), "bench")
    lanes = {Lane("default", HANDLER, Priority.DEFAULT): LanePosition(tx.dialect.position(EARLIEST), 0)}
    claims, settles = ExplainTransaction(tx), ExplainTransaction(tx)
    for _ in range(ROUNDS):
        claimed = await claim(claims, claimant, lanes, {HANDLER: HandlerDefaults(1, None)}, batch)
        settlements = [Settlement(task.id, task.fence, Done(), 0.0) for task in claimed]
        await settle(settles, claimant.runner_id, settlements, SettleShape.SUCCESSES)
    return [_cost("claim", claims.times[1:], batch), _cost("settle", settles.times[1:], batch)]


def _cost(kind: str, milliseconds: Iterable[float], batch: int) -> Cost:
    times = list(milliseconds)
    return Cost(kind, FROM_EXPLAIN, None, MICRO * sum(times) / len(times) / batch, len(times))
