"""The growth parts: the time per task beside a number of rows, and beside twice as many.

Each part fills the tables with rows that a runner meets in production, runs a backlog, and repeats both with twice the
rows. A ratio near 1 means that the time per task does not grow with them. PostgreSQL has no statistics about the rows.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from runner.cli.bench.load import CHUNK, Load, TaskCounts, finished_count
from runner.cli.bench.plan import Measurement
from runner.cli.bench.stopwatch import HANDLER
from runner.cli.bench.workers import BenchContext
from runner.db.schema import is_state
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.errors import BenchFailed
from runner.model.task import DependsOn, NewTask, State, UniqueSpec
from runner.store.submit import submit_many

MICRO = 1e6
DAY = 86_400.0
LAST_PRIORITY = 9

FILL = 100_000
"""Rows per INSERT: a statement has a deadline."""

POLL_INTERVAL = 0.005
"""Seconds between two sums of the ended tasks."""

TIMEOUT = 60.0
"""Seconds after the last start within which every task must finish."""

LARGE = 100 * 1_024
"""Bytes of a payload of the part `payloads`; twice as many in its second run."""

Fill = Callable[[Load, int, int], Awaitable[int]]
"""Writes rows, submits the backlog of some size, and returns its size."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A growth part.

    Args:
        rows: number of rows at the scale 1.
        fill: writes them, and the backlog.
    """

    rows: int
    fill: Fill


async def growth(context: BenchContext, part: str) -> Measurement:
    """Measure a part of GROWTH."""
    rows = max(1, round(GROWTH[part].rows * context.plan.scale))
    first, hits, took = await _run(context, GROWTH[part].fill, rows)
    second, more_hits, took_twice = await _run(context, GROWTH[part].fill, 2 * rows)
    figures = {"once_us": MICRO * took / first, "twice_us": MICRO * took_twice / second}
    figures["growth"] = figures["twice_us"] / figures["once_us"]
    tasks = first + second
    proof = TaskCounts(tasks, hits + more_hits, tasks, 0)
    return Measurement(figures, tasks, context.plan.runners, proof)


async def _run(context: BenchContext, fill: Fill, rows: int) -> tuple[int, int, float]:
    """Run a backlog beside rows; return its tasks, the starts, and the seconds from the first start to the last end."""
    async with context.create_load() as load:
        context.show(f"filling {rows:,} rows")
        tasks = await fill(load, rows, context.plan.tasks)
        async with context.workers(context.plan.runners) as workers:
            await workers.wait_for_starts(tasks)
            deadline = time.monotonic() + TIMEOUT
            # Each settle adds to these sums in its own transaction; counting the tasks would read all other rows.
            while (count := await load.database.read(finished_count)) < tasks:
                if time.monotonic() > deadline:
                    raise BenchFailed(why=f"{tasks - count:,} tasks started but did not finish within {TIMEOUT:.0f} s")
                await asyncio.sleep(POLL_INTERVAL)
            took = time.monotonic() - workers.first
            reports = await workers.stop()
        return tasks, sum(report.hits for report in reports), took


async def _insert(load: Load, table: sa.Table, rows: int, values: dict[str, Any]) -> None:
    """Insert rows; a function among the values gets the column of their numbers from 1."""
    for first in range(1, rows + 1, FILL):
        n = sa.select(sa.literal_column(str(first)).label("i")).cte("n", recursive=True)
        n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < min(first + FILL - 1, rows)))
        columns = [value(n.c.i) if callable(value) else value for value in values.values()]
        await load.database.write(_execute, sa.insert(table).from_select([*values], sa.select(*columns).select_from(n)))


async def _execute(tx: Transaction, statement: sa.Executable) -> None:
    await tx.execute(statement)


async def _beside(load: Load, rows: int, tasks: int, **values: Any) -> int:
    """Live tasks that no claim takes, and a backlog behind them."""
    await _insert(load, load.database.tables.task, rows, {"handler": sa.literal(HANDLER), **values})
    await load.many(tasks)
    return tasks


async def _paused(load: Load, rows: int, tasks: int) -> int:
    queue = load.database.tables.queue
    await load.database.write(_execute, sa.insert(queue).values(name="paused", paused_at=db_now()))
    return await _beside(load, rows, tasks, queue=sa.literal("paused"), run_at=db_later(db_now(), -DAY))


async def _foreign(load: Load, rows: int, tasks: int) -> int:
    return await _beside(load, rows, tasks, handler=sa.literal("foreign"), run_at=db_later(db_now(), -DAY))


async def _future(load: Load, rows: int, tasks: int) -> int:
    return await _beside(load, rows, tasks, run_at=db_later(db_now(), DAY))


async def _history(load: Load, rows: int, tasks: int) -> int:
    succeeded = sa.literal(State.SUCCEEDED.value)
    values = {"id": lambda i: -i, "handler": sa.literal(HANDLER), "state": succeeded, "finished_at": db_now()}
    await _insert(load, load.database.tables.history, rows, values)
    await load.many(tasks)
    return tasks


async def _lanes(load: Load, rows: int, _: int, priorities: int = 1) -> int:
    """As many lanes as tasks."""
    await load.many(rows)
    task = load.database.tables.task
    lane = {"queue": "queue " + sa.cast(task.c.id / priorities, sa.Text), "priority": 1 + task.c.id % priorities}
    await load.database.write(_execute, sa.update(task).where(is_state(task.c.state, State.WAITING)).values(lane))
    return rows


async def _submit(load: Load, rows: int, _: int, task: Callable[[int], NewTask]) -> int:
    for first in range(0, rows, CHUNK):
        chunk = [task(number) for number in range(first, min(first + CHUNK, rows))]
        await load.database.write(submit_many, chunk, notify=False)
    return rows


def _task(number: int, pad: str = "") -> NewTask:
    return NewTask(HANDLER, json.dumps({"i": number, "t": 0.0, "pad": pad}))


async def _keys(load: Load, rows: int, tasks: int) -> int:
    return await _submit(load, rows, tasks, lambda number: _task(number)._replace(unique=UniqueSpec(str(number))))


async def _dependents(load: Load, rows: int, tasks: int) -> int:
    """Tasks that all wait for the first one."""
    (parent,) = await load.database.write(submit_many, [_task(0)], notify=False)
    child = (DependsOn(parent),)
    return 1 + await _submit(load, rows, tasks, lambda number: _task(number + 1)._replace(after=child))


async def _payloads(load: Load, rows: int, tasks: int) -> int:
    """Payloads of 100 KiB, then of 200 KiB; `rows` is their size."""
    return await _submit(load, max(1, tasks // 20), tasks, partial(_task, pad="x" * rows))


GROWTH = {
    "queues": Growth(20_000, _lanes),
    "lanes": Growth(50_000, partial(_lanes, priorities=LAST_PRIORITY)),
    "paused": Growth(500_000, _paused),
    "foreign": Growth(1_000_000, _foreign),
    "future": Growth(1_000_000, _future),
    "keys": Growth(200_000, _keys),
    "dependents": Growth(100_000, _dependents),
    "payloads": Growth(LARGE, _payloads),
    "history": Growth(5_000_000, _history),
}
"""Every growth part."""
