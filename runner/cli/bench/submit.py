"""The parts that write without a runner: `one`, `bulk` and `coalesced` submit, `checkpoint` stores states."""

import asyncio
import json
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from statistics import median
from typing import Any

import sqlalchemy as sa

from runner.cli.bench.load import PAD, Load
from runner.cli.bench.plan import Measurement
from runner.cli.bench.stopwatch import HANDLER
from runner.cli.bench.workers import BenchContext
from runner.client.client import connect, disconnect
from runner.client.handler import TaskHandler
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, next_version
from runner.model.task import Priority
from runner.policy.lanes import Lane, LanePosition
from runner.store.attempts import Checkpoint, save_checkpoint
from runner.store.claim import Claimant, HandlerDefaults, claim
from runner.store.heartbeat import Identity, register

LEASE = 3_600.0
"""Seconds for which the task of `checkpoint` is claimed."""

MILLI = 1e3

COROUTINES, THREADS = 200, 32
"""Concurrent submitters in `coalesced`, each with one task at a time."""


async def one(context: BenchContext) -> Measurement:
    """Submit tasks one by one, each committed before the next one."""
    async with context.create_load() as load:
        rate = await _rate(_submit_singly(load, context.plan.one), context.plan.one)
        return Measurement({"rate": rate}, context.plan.one)


async def bulk(context: BenchContext) -> Measurement:
    """Submit many calls at the same time, as applications do: arguments are checked, and ids are returned."""
    tasks = context.plan.bulk
    calls = [_call(index) for index in range(tasks)]
    async with context.create_load():
        with _handler(context, coalesce=False) as handler:
            await handler.submit_async(**_call(0))
            return Measurement({"rate": await _rate(handler.submit_many_async(calls), tasks)}, tasks)


async def coalesced(context: BenchContext) -> Measurement:
    """Submit single tasks from many coroutines and threads; each waits until its task is durable."""
    tasks = context.plan.tasks
    async with context.create_load():
        with _handler(context, coalesce=True) as handler:
            await handler.submit_async(**_call(0))
            rate = await _rate(_from_coroutines(handler, tasks), tasks)
            threads = await _rate(asyncio.to_thread(_from_threads, handler, tasks), tasks)
            return Measurement({"rate": rate, "threads": threads}, 2 * tasks)


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


@contextmanager
def _handler(context: BenchContext, *, coalesce: bool) -> Iterator[TaskHandler[Any, Any, Any]]:
    """Connect this process to the sandbox like an application, and yield a handler to submit with."""
    connect(context.sandbox.settings.model_copy(update={"coalesce": coalesce}))
    try:
        yield TaskHandler(HANDLER, _noop)
    finally:
        disconnect()


async def _noop(i: int, t: float, pad: str) -> None:
    """The submitted handler; it never runs here."""


def _call(index: int) -> dict[str, Any]:
    return {"i": index, "t": 0.0, "pad": PAD}


async def _submit_singly(load: Load, tasks: int) -> None:
    for _ in range(tasks):
        await load.one()


async def _from_coroutines(handler: TaskHandler[Any, Any, Any], tasks: int) -> None:
    numbers = iter(range(tasks))

    async def submit() -> None:
        for index in numbers:
            await handler.submit_async(**_call(index))

    await asyncio.gather(*(submit() for _ in range(COROUTINES)))


def _from_threads(handler: TaskHandler[Any, Any, Any], tasks: int) -> None:
    numbers = iter(range(tasks))

    def submit(_: int) -> None:
        for index in numbers:
            handler.submit(**_call(index))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(submit, range(THREADS)))  # raises the first error of a thread


async def _rate(submission: Awaitable[Any], tasks: int) -> float:
    started_at = time.monotonic()
    await submission
    return tasks / (time.monotonic() - started_at)
