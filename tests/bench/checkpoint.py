"""The part `checkpoint`: states of a task stored one by one, each beside a plain UPDATE of the task."""

import json
import time
from functools import lru_cache
from statistics import median

import sqlalchemy as sa

from runner.cli.bench.exchange import HANDLER
from runner.cli.bench.load import PAD
from runner.cli.bench.plan import Measurement
from runner.cli.bench.workers import BenchContext
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, next_version
from runner.model.task import Priority
from runner.policy.lanes import Lane
from runner.policy.positions import LanePosition
from runner.store.claim.plain import Claimant, HandlerDefaults, claim
from runner.store.notes import Checkpoint, save_checkpoint
from runner.store.registration import Identity, register

LEASE = 3_600.0
"""Seconds for which the task is claimed."""

MILLI = 1e3


async def checkpoint(context: BenchContext) -> Measurement:
    """Store checkpoints of a task; a plain UPDATE of the task in a transaction of its own follows each of them."""
    count = context.plan.one
    saved, updated = list[float](), list[float]()
    async with context.create_load() as load:
        await load.one()
        holder, task_id, fence = await load.database.write(_claim_one)
        for number in range(1, count + 1):
            state = json.dumps({"line": number, "pad": PAD})
            began = time.perf_counter()
            await load.database.write(save_checkpoint, holder, Checkpoint(task_id, fence, 1, number, state))
            between = time.perf_counter()
            await load.database.write(_update, task_id)
            saved.append(between - began)
            updated.append(time.perf_counter() - between)
    return Measurement({"save_ms": MILLI * median(saved), "per_update": median(saved) / median(updated)}, count)


async def _claim_one(tx: Transaction) -> tuple[int, int, int]:
    """Claim the only task; returns the runner, the task and its fence."""
    runner_id = await register(tx, Identity("bench", 0, "", [HANDLER], 1), LEASE)
    lanes = {Lane("default", HANDLER, Priority.DEFAULT): LanePosition(tx.dialect.position(EARLIEST), 0)}
    (task,) = await claim(tx, Claimant(runner_id, "bench"), lanes, {HANDLER: HandlerDefaults(1, None)}, 1)
    return runner_id, task.id, task.fence


async def _update(tx: Transaction, task_id: int) -> None:
    await tx.run(_update_statement(tx.tables, tx.driver), {"which": task_id})


@lru_cache
def _update_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    task = tables.task
    change = sa.update(task).values(version=next_version(task.c.version)).returning(task.c.version)
    return Prepared(change.where(task.c.id == sa.bindparam("which", type_=sa.BigInteger)), driver)
