"""The parts `one` and `bulk`: how fast tasks get into the table."""

import time
from collections.abc import Awaitable

from runner.bench.ground import Ground
from runner.bench.load import Load
from runner.bench.report import Measurement


async def one(ground: Ground) -> Measurement:
    """Submit tasks one by one, each committed before the next."""
    async with ground.loaded() as load:
        return await _timed(load, _singly(load, ground.plan.one))


async def bulk(ground: Ground) -> Measurement:
    """Submit a backlog, a thousand tasks in one transaction."""
    async with ground.loaded() as load:
        return await _timed(load, load.many(ground.plan.tasks))


async def _singly(load: Load, tasks: int) -> None:
    for _ in range(tasks):
        await load.one()


async def _timed(load: Load, submitting: Awaitable[None]) -> Measurement:
    began = time.monotonic()
    await submitting
    return Measurement({"rate": load.submitted / (time.monotonic() - began)}, load.submitted)
