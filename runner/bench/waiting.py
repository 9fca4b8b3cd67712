"""The parts `latency` and `idle`: a runner that mostly waits."""

import asyncio
from statistics import quantiles

from runner.bench.ground import Ground
from runner.bench.orders import Account
from runner.bench.report import Measurement
from runner.errors import BenchFailed

WARM_UP = 5
"""Tasks that are run before anything is measured."""

HERTZ = 50
CALM = 0.5
"""Seconds after the last of them."""

MILLI = 1e3
PERCENT = 100


async def latency(ground: Ground) -> Measurement:
    """Submit at a leisurely pace: the time from before the submit to the start of its handler."""
    tasks = ground.plan.latencies
    async with ground.loaded() as load, ground.crew() as crew:
        await load.many(WARM_UP)
        await crew.started(WARM_UP)
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in range(tasks):
            ground.show(f"{number:,} of {tasks:,}")
            await asyncio.sleep(max(0.0, began + number / HERTZ - clock()))
            await load.one(timed=True)
        await crew.started(WARM_UP + tasks)
        await load.done()
        (account,) = await crew.stop()
        return Measurement(_latencies(account), tasks, 1, await load.proof(account.hits))


async def idle(ground: Ground) -> Measurement:
    """Watch a runner with nothing to do: the CPU that it uses all the same."""
    async with ground.loaded() as load, ground.crew() as crew:
        await load.many(WARM_UP)
        await crew.started(WARM_UP)
        await load.done()
        await asyncio.sleep(CALM)
        crew.mark()
        await asyncio.sleep(ground.plan.idle)
        (account,) = await crew.stop()
        (began, cpu_before), (ended, cpu) = account.marks[-2:]
        share = PERCENT * (cpu - cpu_before) / (ended - began)
        return Measurement({"cpu_share": share}, WARM_UP, 1, await load.proof(account.hits))


def _latencies(account: Account) -> dict[str, float]:
    times = [MILLI * seconds for seconds in account.latencies]
    if min(times) < 0:
        raise BenchFailed(why="a task started before it was submitted: the clocks of two processes differ here")
    ranks = quantiles(times, n=PERCENT, method="inclusive") if len(times) > 1 else times * PERCENT
    return {"p50_ms": ranks[49], "p99_ms": ranks[98]}
