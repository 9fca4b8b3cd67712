"""The parts that run tasks.

`drain` and `pinned` run a backlog, and `ticks` runs one beside schedules; the others mostly wait.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import quantiles
from typing import Any

import sqlalchemy as sa

from runner.cli.bench.load import CHUNK, TIMEOUT, Load
from runner.cli.bench.plan import Cost, Measurement
from runner.cli.bench.statements import Statements
from runner.cli.bench.stopwatch import HANDLER, STEPS, WorkerReport
from runner.cli.bench.workers import BenchContext, Workers
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import BenchFailed
from runner.model.task import Priority
from runner.queries.schedules import schedules as list_schedules

MICRO = 1e6


async def drain(context: BenchContext) -> Measurement:
    """Run a backlog, from the first start until the database has no task left."""
    async with context.create_load() as load:
        measurement, _ = await drain_backlog(context, load, context.plan.runners)
        return measurement


async def pinned(context: BenchContext) -> Measurement:
    """Run a backlog while an older transaction is open, so that no dead row can be removed."""
    async with context.create_load() as load, _snapshot(Database.of(context.sandbox.settings)):
        measurement, _ = await drain_backlog(context, load, context.plan.runners)
        return measurement


async def drain_backlog(
    context: BenchContext, load: Load, runners: int, *, profiling: bool = False
) -> tuple[Measurement, list[WorkerReport]]:
    """Submit a backlog and run it.

    Args:
        context: the context.
        load: the load, with nothing submitted yet.
        runners: number of runner processes.
        profiling: measure the cost of each step.

    Returns:
        The measurement, and the report of each runner.
    """
    tasks = context.plan.tasks
    await load.many(tasks)
    await load.analyze()
    async with context.workers(runners, profiling=profiling) as workers:
        await workers.wait_for_starts(tasks)
        finished_at = await load.wait_until_done()
        first_start = workers.first
        reports = await workers.stop()
    hits = sum(report.hits for report in reports)
    cpu = sum(report.cpu for report in reports if report.hits)
    figures = {"rate": tasks / (finished_at - first_start), "cpu_us": MICRO * cpu / tasks}
    return Measurement(figures, tasks, runners, await load.proof(hits)), reports


@asynccontextmanager
async def _snapshot(database: Database) -> AsyncIterator[None]:
    """Hold a transaction open on a snapshot of the current tables."""
    try:
        async with database.reading() as tx:
            await tx.rows(tx.tables.task.select().limit(1))  # PostgreSQL takes its snapshot with the first statement
            yield
    finally:
        await database.dispose()


async def profile(context: BenchContext) -> Measurement:
    """Run a backlog with a stopwatch around each step. Its overhead is the difference in CPU from `drain`."""
    async with context.create_load() as load:
        statements = Statements(load.database, context.sandbox.settings)
        await statements.begin()
        measurement, (report,) = await drain_backlog(context, load, 1, profiling=True)
        costs = [*_costs(report), *await statements.costs(load, context.plan.tasks)]
        return replace(measurement, costs=costs)


def _costs(report: WorkerReport) -> Iterator[Cost]:
    """The cost of each step, and of the rest."""
    per_task = MICRO / report.hits
    for name, description in STEPS.items():
        step = report.steps[name]
        took = per_task * step.took if step.took else None
        yield Cost(name, description, per_task * step.cpu, took, step.calls)
    rest = report.loop_cpu - sum(step.cpu for step in report.steps.values())
    yield Cost("rest", "event loop, connections, ticks", per_task * rest, None, 0)
    threads = max(0.0, report.cpu - report.loop_cpu)
    yield Cost("threads", "other threads: SQLite and its driver", per_task * threads, None, 0)


BACKLOG = 5 * CHUNK
"""Maximum number of waiting tasks; the producer pauses at it."""

POLL_INTERVAL = 0.002
"""Seconds between two checks while the producer pauses."""

Sample = tuple[float, int]
"""The time in monotonic seconds, and the number of tasks started by then."""


async def sustained(context: BenchContext) -> Measurement:
    """Submit as fast as tasks run; measures the rate and whether it stays constant."""
    runners = context.plan.runners
    async with context.create_load() as load, context.workers(runners) as workers:
        await load.many(CHUNK)
        await workers.wait_for_starts(CHUNK)
        samples = await _produce(context, load, workers)
        await workers.wait_for_starts(load.submitted)
        await load.wait_until_done()
        reports = await workers.stop()
        hits = sum(report.hits for report in reports)
        return Measurement(_rates(samples), load.submitted, runners, await load.proof(hits))


async def _produce(context: BenchContext, load: Load, workers: Workers) -> list[Sample]:
    started_at = time.monotonic()
    samples: list[Sample] = [(started_at, workers.hits)]
    while samples[-1][0] - started_at < context.plan.seconds:
        if load.submitted - workers.hits < BACKLOG:
            await load.many(CHUNK)
        else:
            await asyncio.sleep(POLL_INTERVAL)
        samples.append((time.monotonic(), workers.hits))
        context.show(f"{samples[-1][0] - started_at:.0f} of {context.plan.seconds:.0f} s")
    return samples


def _rates(samples: Sequence[Sample]) -> dict[str, float]:
    third = (samples[-1][0] - samples[0][0]) / 3
    early = [sample for sample in samples if sample[0] <= samples[0][0] + third]
    late = [sample for sample in samples if sample[0] >= samples[-1][0] - third]
    first, last = _rate(early), _rate(late)
    flat = {"flat": last / first} if first else {}
    return {"rate": _rate(samples), "first": first, "last": last} | flat


def _rate(samples: Sequence[Sample]) -> float:
    (started_at, before), (end, after) = samples[0], samples[-1]
    return (after - before) / (end - started_at) if end > started_at else 0.0


WARM_UP = 5
"""Tasks before the measurement."""

HERTZ = 50
SETTLE_SECONDS = 0.5
"""Pause after the last warm-up task."""

IDLE_SCHEDULES, TICKING_SCHEDULES = 10_000, 20
"""Schedules of the parts `schedules` and `ticks`."""

MOST_RUNS = 1_000
"""Runs of each schedule whose lateness is read."""

MILLI = 1e3
PERCENT = 100


async def latency(context: BenchContext) -> Measurement:
    """Submit at a constant low rate; measures the time from before the submit to the start of the handler."""
    tasks = context.plan.latencies
    async with context.create_load() as load, context.workers() as workers:
        await load.many(WARM_UP)
        await workers.wait_for_starts(WARM_UP)
        clock = asyncio.get_running_loop().time
        started_at = clock()
        for index in range(tasks):
            context.show(f"{index:,} of {tasks:,}")
            await asyncio.sleep(max(0.0, started_at + index / HERTZ - clock()))
            await load.one(timed=True)
        await workers.wait_for_starts(WARM_UP + tasks)
        await load.wait_until_done()
        (report,) = await workers.stop()
        return Measurement(_latencies(report), tasks, 1, await load.proof(report.hits))


async def idle(context: BenchContext) -> Measurement:
    """Measure the CPU usage of a runner without tasks."""
    async with context.create_load() as load:
        return await _idle(context, load)


async def schedules(context: BenchContext) -> Measurement:
    """Measure the CPU usage of a runner without tasks beside many schedules that are not due."""
    async with context.create_load() as load:
        later = datetime.now(UTC) + timedelta(days=1)
        await load.database.write(_add_schedules, IDLE_SCHEDULES, {"rule": "every 1h", "next_at": later})
        return await _idle(context, load)


async def _idle(context: BenchContext, load: Load) -> Measurement:
    async with context.workers() as workers:
        await load.many(WARM_UP)
        await workers.wait_for_starts(WARM_UP)
        await load.wait_until_done()
        await asyncio.sleep(SETTLE_SECONDS)
        workers.mark()
        await asyncio.sleep(context.plan.idle)
        (report,) = await workers.stop()
        (started_at, cpu_before), (end, cpu) = report.marks[-2:]
        share = PERCENT * (cpu - cpu_before) / (end - started_at)
        return Measurement({"cpu_share": share}, WARM_UP, 1, await load.proof(report.hits))


async def ticks(context: BenchContext) -> Measurement:
    """Measure how late the runs of schedules start while a runner works on a backlog of less urgent tasks."""
    plan = context.plan
    async with context.create_load() as load:
        await load.many(plan.tasks)
        await load.analyze()
        options = json.dumps({"priority": Priority.HIGHEST})
        rule = {"rule": "every 1s", "overlap": "allow", "misfire": "all 1000", "options": options}
        await load.database.write(_add_schedules, TICKING_SCHEDULES, rule)
        async with context.workers() as workers:
            await workers.wait_for_starts(1)
            await asyncio.sleep(plan.idle)
            lateness = await _lateness(load.database)
            await workers.stop()
    return Measurement(_percentiles(lateness), plan.tasks, 1)


async def _lateness(database: Database) -> list[float]:
    """Wait for the first run of a schedule, and return how many seconds after their ticks all runs started."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        runs = [run for row in await database.read(list_schedules, runs=MOST_RUNS) for run in row.runs]
        if started := [run.late.total_seconds() for run in runs if run.late is not None]:
            return started
        if time.monotonic() > deadline:
            raise BenchFailed(why=f"no run of a schedule started within {TIMEOUT:.0f} s")
        await asyncio.sleep(SETTLE_SECONDS)


async def _add_schedules(tx: Transaction, count: int, values: dict[str, Any]) -> None:
    payload = json.dumps({"i": 0, "t": 0, "pad": ""})
    row = {"handler": HANDLER, "payload": payload} | values
    await tx.execute(sa.insert(tx.tables.schedule), [row | {"id": f"s{number}"} for number in range(count)])


def _latencies(report: WorkerReport) -> dict[str, float]:
    if min(report.latencies) < 0:
        raise BenchFailed(why="a task started before its submit: the clocks of the two processes differ")
    return _percentiles(report.latencies)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    times = [MILLI * each for each in seconds]
    ranks = quantiles(times, n=PERCENT, method="inclusive") if len(times) > 1 else times * PERCENT
    return {"p50_ms": ranks[49], "p99_ms": ranks[98]}
