"""The growth parts: the time per task beside a number of rows, and beside twice as many.

Each part fills the tables with rows that a runner meets in production, runs a backlog, and repeats both with twice the
rows. A ratio near 1 means that the time per task does not grow with them. PostgreSQL has no statistics about the rows,
except in the part `burst`.
"""

import asyncio
import json
import random
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any

import sqlalchemy as sa

from runner.cli.bench.exchange import HANDLER
from runner.cli.bench.load import CHUNK, Load, TaskCounts, analyze, finished_count
from runner.cli.bench.plan import Measurement
from runner.cli.bench.workers import BenchContext, Workers
from runner.db.database import Database
from runner.db.schema import MINUTE_COUNTS, MINUTE_TIMES, is_state
from runner.db.transaction import Transaction, clock
from runner.db.types import db_later, db_now, minute_start
from runner.errors import BenchFailed
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import DependsOn, NewTask, State, UniqueKey
from runner.policy.retention import Retention
from runner.queries.failures import failures
from runner.queries.summary import summary
from runner.queries.task_list.search import page
from runner.store.retention import prune
from runner.store.submit import submit_many

MICRO = 1e6
DAY = 86_400.0
LAST_PRIORITY = 9

POLL_INTERVAL = 0.005
"""Seconds between two sums of the ended tasks."""

TIMEOUT = 60.0
"""Seconds after the last start within which every task must finish."""

FILL = 100_000
"""Rows per INSERT: a statement has a deadline."""

LARGE = 100 * 1_024
"""Bytes of a payload of the part `payloads`; twice as many in its second run."""

GAP = 0.5
"""Seconds between the ends of two finished tasks: twice as many cover twice as long a time, as in production."""

MINUTE = 60.0
PER_DEAD, PER_FAILURE = 500, 100
"""Finished tasks per dead task, and per failed attempt."""

CAUSES = 50
REPEATS = 15
"""Executions of each query; their median counts."""

PRUNED = 1_000
"""Tasks that one prune deletes."""

DEAD = Filter((Term("state", Operator.EQ, State.DEAD),))

Fill = Callable[[Load, int, int], Awaitable[int]]
"""Writes rows, submits the backlog of some size, and returns its size."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A growth part.

    Args:
        words: description for people.
        rows: number of rows at the scale 1.
        fill: writes them, and the backlog.
        is_plain: True if the handler is a plain function, which a thread calls.
        of_runners: True if `rows` is the number of runners.
        measure: measures more after the backlog, in microseconds by the beginning of a figure.
    """

    words: str
    rows: int
    fill: Fill
    is_plain: bool = False
    of_runners: bool = False
    measure: Callable[[Load, int], Awaitable[dict[str, float]]] | None = None


async def growth(context: BenchContext, part: str, scale: float) -> Measurement:
    """Measure a part of GROWTH beside a share of its rows: at the scale 0.1, a tenth."""
    rows = max(1, round(GROWTH[part].rows * scale))
    first, hits, once = await _run(context, GROWTH[part], rows)
    second, more_hits, twice = await _run(context, GROWTH[part], 2 * rows)
    figures: dict[str, float] = {}
    for name, took in once.items():
        figures |= {f"{name}once_us": took, f"{name}twice_us": twice[name], f"{name}growth": twice[name] / took}
    tasks = first + second
    proof = TaskCounts(tasks, hits + more_hits, tasks, 0)
    return Measurement(figures, tasks, 2 * rows if GROWTH[part].of_runners else context.plan.runners, proof)


async def _run(context: BenchContext, part: Growth, rows: int) -> tuple[int, int, dict[str, float]]:
    """Run a backlog beside rows.

    Returns:
        The number of its tasks, the starts, and the microseconds by the beginning of a figure: those per task, from the
        first start to the last end, begin with nothing.
    """
    runners = rows if part.of_runners else context.plan.runners
    async with context.create_load() as load:
        context.show(f"filling {rows:,} rows")
        tasks = await part.fill(load, rows, context.plan.tasks)
        async with Workers(context, runners, is_plain=part.is_plain) as workers:
            await workers.wait_for_starts(tasks)
            deadline = time.monotonic() + TIMEOUT
            # Each settle adds to these sums in its own transaction; counting the tasks would read all other rows.
            while (count := await load.database.read(finished_count)) < tasks:
                if time.monotonic() > deadline:
                    raise BenchFailed(why=f"{tasks - count:,} tasks started but did not finish within {TIMEOUT:.0f} s")
                await asyncio.sleep(POLL_INTERVAL)
            took = time.monotonic() - workers.first
            reports = await workers.stop()
        times = {"": MICRO * took / tasks}
        if part.measure is not None:
            times |= await part.measure(load, rows)
        return tasks, sum(report.hits for report in reports), times


async def insert(database: Database, table: sa.Table, rows: int, values: dict[str, Any]) -> None:
    """Insert rows; a function among the values gets the column of their numbers from 1."""
    for first in range(1, rows + 1, FILL):
        n = sa.select(sa.literal_column(str(first)).label("i")).cte("n", recursive=True)
        n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < min(first + FILL - 1, rows)))
        columns = [value(n.c.i) if callable(value) else value for value in values.values()]
        await database.write(execute, sa.insert(table).from_select([*values], sa.select(*columns).select_from(n)))


async def execute(tx: Transaction, statement: sa.Executable) -> None:
    """Execute one statement."""
    await tx.execute(statement)


async def _beside(load: Load, rows: int, tasks: int, **values: Any) -> int:
    """Live tasks that no claim takes, and a backlog behind them."""
    await insert(load.database, load.database.tables.task, rows, {"handler": sa.literal(HANDLER), **values})
    await load.many(tasks)
    return tasks


async def _paused(load: Load, rows: int, tasks: int) -> int:
    queue = load.database.tables.queue
    await load.database.write(execute, sa.insert(queue).values(name="paused", paused_at=db_now()))
    return await _beside(load, rows, tasks, queue=sa.literal("paused"), run_at=db_later(db_now(), -DAY))


async def _foreign(load: Load, rows: int, tasks: int) -> int:
    return await _beside(load, rows, tasks, handler=sa.literal("foreign"), run_at=db_later(db_now(), -DAY))


async def _future(load: Load, rows: int, tasks: int) -> int:
    return await _beside(load, rows, tasks, run_at=db_later(db_now(), DAY))


async def _history(load: Load, rows: int, tasks: int) -> int:
    await _add_history(load.database, rows)
    await load.many(tasks)
    return tasks


async def _burst(load: Load, rows: int, _: int) -> int:
    """As many tasks as rows, after statistics of a table that has held so many rows and is all but empty."""
    task = load.database.tables.task
    later = {"handler": sa.literal(HANDLER), "run_at": db_later(db_now(), DAY)}
    await insert(load.database, task, rows, later)
    last = sa.select(sa.func.max(task.c.id)).scalar_subquery()
    await load.database.write(execute, sa.delete(task).where(task.c.id != last))
    await load.database.write(analyze)
    await load.database.write(execute, sa.delete(task))
    await load.many(rows)
    return rows


async def _backlog(load: Load, _: int, tasks: int) -> int:
    await load.many(tasks)
    return tasks


async def _tasks(load: Load, rows: int, _: int) -> int:
    """As many tasks as rows."""
    return await _backlog(load, rows, rows)


async def _lanes(load: Load, rows: int, _: int, priorities: int = 1) -> int:
    """As many lanes as tasks."""
    await load.many(rows)
    task = load.database.tables.task
    lane = {"queue": "queue " + sa.cast(task.c.id / priorities, sa.Text), "priority": 1 + task.c.id % priorities}
    await load.database.write(execute, sa.update(task).where(is_state(task.c.state, State.WAITING)).values(lane))
    return rows


async def _submit(load: Load, rows: int, _: int, task: Callable[[int], NewTask]) -> int:
    for first in range(0, rows, CHUNK):
        chunk = [task(number) for number in range(first, min(first + CHUNK, rows))]
        await load.database.write(submit_many, chunk, notify=False)
    return rows


def _task(number: int, pad: str = "") -> NewTask:
    return NewTask(HANDLER, json.dumps({"i": number, "t": 0.0, "pad": pad}))


async def _keys(load: Load, rows: int, tasks: int) -> int:
    return await _submit(load, rows, tasks, lambda number: _task(number)._replace(unique_key=UniqueKey(str(number))))


async def _dependents(load: Load, rows: int, tasks: int) -> int:
    """Tasks that all wait for the first one."""
    (parent,) = await load.database.write(submit_many, [_task(0)], notify=False)
    child = (DependsOn(parent),)
    return 1 + await _submit(load, rows, tasks, lambda number: _task(number + 1)._replace(after=child))


async def _payloads(load: Load, rows: int, tasks: int) -> int:
    """Payloads of 100 KiB, then of 200 KiB; `rows` is their size. PostgreSQL can hardly compress them."""

    def task(number: int) -> NewTask:
        return _task(number, b64encode(random.Random(number).randbytes(3 * rows // 4)).decode())

    return await _submit(load, max(1, tasks // 20), tasks, task)


async def _add_history(database: Database, rows: int) -> None:
    """Add finished tasks, and their failed attempts."""
    finish, error = _before(GAP), sa.literal("ConnectionError: no route to host")
    values: dict[str, Any] = {
        "id": lambda i: -i,
        "handler": sa.literal(HANDLER),
        "state": lambda i: sa.case((i % PER_DEAD == 0, State.DEAD.value), else_=State.SUCCEEDED.value),
        "error": lambda i: sa.case((i % PER_DEAD == 0, error)),
        **dict.fromkeys(("submitted_at", "run_at", "finished_at"), finish),
    }
    await insert(database, database.tables.history, rows, values)
    values = {
        "task_id": lambda i: -PER_FAILURE * i,
        "queue": sa.literal("default"),
        "handler": sa.literal(HANDLER),
        **dict.fromkeys(("started_at", "ended_at"), _before(PER_FAILURE * GAP)),
        **dict.fromkeys(("fence", "attempt"), sa.literal_column("1")),
        "verb": sa.literal("retry"),
        "error_type": sa.literal("ConnectionError"),
        "message": error,
        "traceback": sa.literal("Traceback (most recent call last): ..."),
        "fingerprint": lambda i: sa.literal("cause ") + sa.cast(i % CAUSES, sa.Text),
    }
    await insert(database, database.tables.attempt, rows // PER_FAILURE, values)


async def _measure_history(load: Load, rows: int) -> dict[str, float]:
    """Measure the work of HISTORY_WORK.

    Args:
        load: the load, after its backlog: until then its end is found in the minute statistics.
        rows: number of finished tasks besides the backlog.

    Returns:
        Microseconds of each, by the beginning of its figures.
    """
    database = load.database
    await _add_minutes(database, max(1, round(rows * GAP / MINUTE)))
    day = await database.read(clock) - timedelta(days=1)
    times = {
        "page": await _median(lambda: database.read(page, Filter())),
        "by_state": await _median(lambda: database.read(page, DEAD)),
        "report": await _median(lambda: database.read(summary, day)),
        "failures": await _median(lambda: database.read(failures, None, day)),
    }
    # The oldest tasks are due, enough for all repetitions.
    kept = max(0, rows - 2 * REPEATS * PRUNED) * GAP
    limit = min(PRUNED, max(1, rows // (2 * REPEATS)))
    retention = Retention({State.SUCCEEDED: timedelta(seconds=kept)})
    times["prune"] = await _median(lambda: database.write(prune, retention, limit)) / limit
    return {f"{name}_": MICRO * seconds for name, seconds in times.items()}


async def _median(work: Callable[[], Awaitable[object]]) -> float:
    """The median of the seconds that the work takes."""
    times = []
    for _ in range(REPEATS):
        started_at = time.perf_counter()
        await work()
        times.append(time.perf_counter() - started_at)
    return median(times)


async def _add_minutes(database: Database, minutes: int) -> None:
    """Add the statistics of as many minutes."""
    values: dict[str, Any] = {
        "minute": lambda i: minute_start(db_later(db_now(), -MINUTE * i)),
        "queue": sa.literal("default"),
        "handler": sa.literal(HANDLER),
        "runner_id": sa.literal_column("-1"),
    }
    counts: dict[str, Any] = dict.fromkeys(MINUTE_COUNTS[:3], sa.literal_column("120"))
    await insert(database, database.tables.minute, minutes, values | counts)
    times: dict[str, Any] = dict.fromkeys(MINUTE_TIMES, sa.literal_column("120"))
    await insert(database, database.tables.minute, minutes, values | times | {"bin_ms": sa.literal_column("1000")})


def _before(gap: float) -> Callable[[Any], sa.ColumnElement[Any]]:
    """The end of a row, by the column of its number."""
    return lambda i: db_later(db_now(), -gap * i)


GROWTH = {
    "queues": Growth("20,000 and 40,000 queues of one task each", 20_000, _lanes),
    "lanes": Growth("50,000 and 100,000 queues and priorities", 50_000, partial(_lanes, priorities=LAST_PRIORITY)),
    "paused": Growth("beside 500,000 and 1,000,000 tasks of a paused queue", 500_000, _paused),
    "foreign": Growth("beside 1,000,000 and 2,000,000 due tasks of others", 1_000_000, _foreign),
    "future": Growth("beside 1,000,000 and 2,000,000 tasks for later", 1_000_000, _future),
    "keys": Growth("200,000 and 400,000 tasks with unique keys", 200_000, _keys),
    "dependents": Growth("100,000 and 200,000 dependents of one task", 100_000, _dependents),
    "payloads": Growth("payloads of 100 and 200 KiB", LARGE, _payloads),
    "sync": Growth("20,000 and 40,000 tasks of a plain function", 20_000, _tasks, is_plain=True),
    "burst": Growth("100,000 and 200,000 tasks, statistics of an empty table", 100_000, _burst),
    "runners": Growth("by 5 and 10 runners", 5, _backlog, of_runners=True),
    "history": Growth("beside 5,000,000 and 10,000,000 finished tasks", 5_000_000, _history, measure=_measure_history),
}
"""Every growth part."""
