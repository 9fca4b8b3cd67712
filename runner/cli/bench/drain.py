"""The parts that run tasks: `drain` runs a backlog, `latency` single tasks, `load` tasks that arrive all the time."""

import asyncio
import time
from collections.abc import Sequence
from statistics import quantiles

from runner.cli.bench.exchange import WorkerReport
from runner.cli.bench.load import CHUNK, Load
from runner.cli.bench.plan import Measurement
from runner.cli.bench.workers import COMMAND, BenchContext, Workers
from runner.errors import BenchFailed

MICRO = 1e6


async def drain(context: BenchContext) -> Measurement:
    """Run a backlog, from the first start until the database has no task left."""
    async with context.create_load() as load:
        measurement, _ = await drain_backlog(context, load, context.plan.runners)
        return measurement


async def drain_backlog(
    context: BenchContext, load: Load, runners: int, command: Sequence[str] = COMMAND
) -> tuple[Measurement, list[WorkerReport]]:
    """Submit a backlog and run it.

    Args:
        load: the load, with nothing submitted yet.
        command: arguments of Python that start a runner.

    Returns:
        The measurement, and the report of each runner.
    """
    tasks = context.plan.tasks
    await load.many(tasks)
    await load.analyze()
    async with Workers(context, runners, command=command) as workers:
        await workers.wait_for_starts(tasks)
        finished_at = await load.wait_until_done()
        first_start = workers.first
        reports = await workers.stop()
    hits = sum(report.hits for report in reports)
    cpu = sum(report.cpu for report in reports if report.hits)
    figures = {"rate": tasks / (finished_at - first_start), "cpu_us": MICRO * cpu / tasks}
    return Measurement(figures, tasks, runners, await load.proof(hits)), reports


BACKLOG = 5 * CHUNK
"""Maximum number of waiting tasks; the producer pauses at it."""

POLL_INTERVAL = 0.002
"""Seconds between two checks while the producer pauses."""

Sample = tuple[float, int]
"""The time in monotonic seconds, and the number of tasks started by then."""


async def sustained(context: BenchContext) -> Measurement:
    """Submit as fast as tasks run; measures the rate and whether it stays constant."""
    runners = context.plan.runners
    async with context.create_load() as load, Workers(context, runners) as workers:
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
MILLI = 1e3
PERCENT = 100


async def latency(context: BenchContext) -> Measurement:
    """Submit at a constant low rate; measures the time from before the submit to the start of the handler."""
    tasks = context.plan.latencies
    async with context.create_load() as load, Workers(context) as workers:
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


def _latencies(report: WorkerReport) -> dict[str, float]:
    if min(report.latencies) < 0:
        raise BenchFailed(why="a task started before its submit: the clocks of the two processes differ")
    return percentiles(report.latencies)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile, in milliseconds."""
    times = [MILLI * each for each in seconds]
    ranks = quantiles(times, n=PERCENT, method="inclusive") if len(times) > 1 else times * PERCENT
    return {"p50_ms": ranks[49], "p99_ms": ranks[98]}
