"""The part `sustained`: a producer that keeps up with the runners, for a while."""

import asyncio
import time
from collections.abc import Sequence

from runner.bench.crew import Crew
from runner.bench.ground import Ground
from runner.bench.load import BATCH, Load
from runner.bench.report import Measurement

BACKLOG = 5 * BATCH
"""Tasks that wait at most: the producer is ahead of the runners, and no further."""

LOOK = 0.002
"""Seconds until a producer that is far enough ahead looks again."""

Sample = tuple[float, int]
"""The time in monotonic seconds, and the tasks started by then."""


async def sustained(ground: Ground) -> Measurement:
    """Submit as fast as tasks are run: the rate, and whether it stays what it was."""
    runners = ground.plan.runners
    async with ground.loaded() as load, ground.crew(runners) as crew:
        await load.many(BATCH)
        await crew.started(BATCH)
        samples = await _produced(ground, load, crew)
        await crew.started(load.submitted)
        await load.done()
        accounts = await crew.stop()
        hits = sum(account.hits for account in accounts)
        return Measurement(_rates(samples), load.submitted, runners, await load.proof(hits))


async def _produced(ground: Ground, load: Load, crew: Crew) -> list[Sample]:
    began = time.monotonic()
    samples: list[Sample] = [(began, crew.hits)]
    while samples[-1][0] - began < ground.plan.seconds:
        if load.submitted - crew.hits < BACKLOG:
            await load.many(BATCH)
        else:
            await asyncio.sleep(LOOK)
        samples.append((time.monotonic(), crew.hits))
        ground.show(f"{samples[-1][0] - began:.0f} of {ground.plan.seconds:.0f} s")
    return samples


def _rates(samples: Sequence[Sample]) -> dict[str, float]:
    third = (samples[-1][0] - samples[0][0]) / 3
    early = [sample for sample in samples if sample[0] <= samples[0][0] + third]
    late = [sample for sample in samples if sample[0] >= samples[-1][0] - third]
    first, last = _rate(early), _rate(late)
    flat = {"flat": last / first} if first else {}
    return {"rate": _rate(samples), "first": first, "last": last} | flat


def _rate(samples: Sequence[Sample]) -> float:
    (began, before), (ended, after) = samples[0], samples[-1]
    return (after - before) / (ended - began) if ended > began else 0.0
