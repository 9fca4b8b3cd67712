"""The part `sleepers`: an idle runner, a wake and a drain, beside 100 sleeping tasks and beside a million."""

import asyncio
import time
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.cli.bench.exchange import HANDLER
from runner.cli.bench.load import TIMEOUT, Load, TaskCounts, finished_count
from runner.cli.bench.plan import Measurement
from runner.cli.bench.workers import BenchContext, Workers
from runner.db.types import db_later, db_now
from runner.errors import BenchFailed
from runner.model.step import StepKind
from tests.bench.growth import MICRO, execute, insert
from tests.bench.idle import IDLE_SHARE, PERCENT, SETTLE_SECONDS

SLEEPERS = 1_000_000
WOKEN = 100
"""Sleeping tasks that wake during the measurement; without scale, the others sleep on."""

MONTH = 30 * 86_400.0
WAKE_SECONDS = 1.0
"""The sleep of the woken tasks ends in so many seconds."""

MILLI = 1e3
POLL_INTERVAL = 0.002


class Beside(NamedTuple):
    """The figures beside a number of sleeping tasks.

    Args:
        idle: CPU of the runner without work, in percent of a core.
        wake_ms: from the end of the sleeps to the end of the last woken task.
        rate: tasks per second of the drain.
        cpu_us: CPU of the runner per task of the drain.
        hits: started tasks.
    """

    idle: float
    wake_ms: float
    rate: float
    cpu_us: float
    hits: int


async def sleepers(context: BenchContext, scale: float) -> Measurement:
    """Measure beside the tasks that wake alone, then beside a share of SLEEPERS."""
    few, many = await _run(context, WOKEN), await _run(context, WOKEN + round(SLEEPERS * scale))
    figures = {
        "idle_few": few.idle,
        "idle_many": many.idle,
        "wake_few_ms": few.wake_ms,
        "wake_many_ms": many.wake_ms,
        "rate": many.rate,
        "ratio": many.rate / few.rate,
        "cpu_us": many.cpu_us,
        "cpu_ratio": many.cpu_us / few.cpu_us,
    }
    tasks = 2 * (2 * WOKEN + context.plan.tasks)
    return Measurement(figures, tasks, 1, TaskCounts(tasks, few.hits + many.hits, tasks, 0))


async def _run(context: BenchContext, rows: int) -> Beside:
    tasks = context.plan.tasks
    async with context.create_load() as load:
        context.show(f"filling {rows:,} rows")
        await _fill(load, rows)
        async with Workers(context) as workers:
            await load.many(WOKEN)
            await _wait_for_ends(load, WOKEN)
            await asyncio.sleep(SETTLE_SECONDS)
            workers.mark()
            await asyncio.sleep(context.plan.seconds * IDLE_SHARE)
            workers.mark()
            await asyncio.sleep(SETTLE_SECONDS)
            task, wakes_at = load.database.tables.task, time.monotonic() + WAKE_SECONDS
            first = sa.select(sa.func.min(task.c.id)).scalar_subquery()
            wake = sa.update(task).values(run_at=db_later(db_now(), WAKE_SECONDS))
            await load.database.write(execute, wake.where(task.c.id < first + WOKEN))
            woken_at = await _wait_for_ends(load, 2 * WOKEN)
            (idle,) = await workers.stop()
        await load.many(tasks)
        await load.analyze()
        async with Workers(context) as workers:
            drained_at = await _wait_for_ends(load, 2 * WOKEN + tasks)
            took = drained_at - workers.first
            (drain,) = await workers.stop()
    (begin, cpu_before), (end, cpu) = idle.marks[1:3]
    share, hits = PERCENT * (cpu - cpu_before) / (end - begin), idle.hits + drain.hits
    return Beside(share, MILLI * (woken_at - wakes_at), tasks / took, MICRO * drain.cpu / tasks, hits)


async def _fill(load: Load, rows: int) -> None:
    """Add tasks of the handler that sleep after one step."""
    tables, name, until = load.database.tables, sa.literal("one"), db_later(db_now(), MONTH)
    one: Any = sa.literal_column("1")
    task = {"handler": sa.literal(HANDLER), "run_at": until, "fence": one, "error": sa.literal("sleeps for 30d")}
    task["payload"] = sa.cast(sa.literal('{"i": 0, "t": 0, "pad": ""}'), tables.task.c.payload.type)
    await insert(load.database, tables.task, rows, task)
    own: dict[str, Any] = {"task_id": lambda i: i, "fence": one, "attempt": one, "function": name}
    result = sa.cast(sa.literal("1"), tables.step.c.result.type)
    step = own | {"name": name, "kind": sa.literal(StepKind.FUNCTION.value), "number": one, "done_at": db_now()}
    await insert(load.database, tables.step, rows, step | {"result": result})
    sleep = own | {"name": sa.literal("sleep 1"), "kind": sa.literal(StepKind.SLEEP.value), "due_at": until}
    await insert(load.database, tables.step, rows, sleep | {"signal": sa.literal("sleep 1")})
    await load.analyze()


async def _wait_for_ends(load: Load, tasks: int) -> float:
    """Wait until as many tasks have succeeded, and return the time in monotonic seconds."""
    deadline = time.monotonic() + TIMEOUT
    while (count := await load.database.read(finished_count)) < tasks:
        if time.monotonic() > deadline:
            raise BenchFailed(why=f"{tasks - count:,} tasks did not finish within {TIMEOUT:.0f} s")
        await asyncio.sleep(POLL_INTERVAL)
    return time.monotonic()
