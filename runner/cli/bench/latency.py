"""The parts `latency` and `idle`: runners that mostly wait."""

import asyncio
from statistics import quantiles

from runner.cli.bench.report import Measurement
from runner.cli.bench.worker_config import WorkerReport
from runner.cli.bench.workers import BenchContext
from runner.errors import BenchFailed

WARM_UP = 5
"""Tasks before the measurement."""

HERTZ = 50
SETTLE_SECONDS = 0.5
"""Pause after the last warm-up task."""

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
    async with context.create_load() as load, context.workers() as workers:
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


def _latencies(report: WorkerReport) -> dict[str, float]:
    times = [MILLI * seconds for seconds in report.latencies]
    if min(times) < 0:
        raise BenchFailed(why="a task started before its submit: the clocks of the two processes differ")
    ranks = quantiles(times, n=PERCENT, method="inclusive") if len(times) > 1 else times * PERCENT
    return {"p50_ms": ranks[49], "p99_ms": ranks[98]}
