"""The parts `one`, `bulk` and `coalesced`: how fast tasks get into the table."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from runner.bench.ground import Ground
from runner.bench.load import PAD, Load
from runner.bench.orders import HANDLER
from runner.bench.report import Measurement
from runner.door.door import connect, disconnect
from runner.producer.handler import TaskHandler

COROUTINES, THREADS = 200, 32
"""So many submit at the same time in `coalesced`, one task after the other."""


async def one(ground: Ground) -> Measurement:
    """Submit tasks one by one, each committed before the next."""
    async with ground.loaded() as load:
        rate = await _rate(_singly(load, ground.plan.one), ground.plan.one)
        return Measurement({"rate": rate}, ground.plan.one)


async def bulk(ground: Ground) -> Measurement:
    """Submit many calls at once, as applications do: arguments are checked, and ids come back."""
    tasks = ground.plan.bulk
    calls = [_call(number) for number in range(tasks)]
    async with ground.loaded():
        with _connected(ground, coalesce=False) as handler:
            await handler.submit_async(**_call(0))
            return Measurement({"rate": await _rate(handler.submit_many_async(calls), tasks)}, tasks)


async def coalesced(ground: Ground) -> Measurement:
    """Submit single tasks from many places at once; each is told when its own is durable."""
    tasks = ground.plan.tasks
    async with ground.loaded():
        with _connected(ground, coalesce=True) as handler:
            await handler.submit_async(**_call(0))
            rate = await _rate(_from_coroutines(handler, tasks), tasks)
            threads = await _rate(asyncio.to_thread(_from_threads, handler, tasks), tasks)
            return Measurement({"rate": rate, "threads": threads}, 2 * tasks)


@contextmanager
def _connected(ground: Ground, *, coalesce: bool) -> Iterator[TaskHandler[Any, Any, Any]]:
    """Connect this process to the place as an application would be, and give a handler to submit to."""
    connect(replace(ground.place.settings, coalesce=coalesce))
    try:
        yield TaskHandler(HANDLER, _noop)
    finally:
        disconnect()


async def _noop(i: int, t: float, pad: str) -> None:
    """What is submitted here and never run."""


def _call(number: int) -> dict[str, Any]:
    return {"i": number, "t": 0.0, "pad": PAD}


async def _singly(load: Load, tasks: int) -> None:
    for _ in range(tasks):
        await load.one()


async def _from_coroutines(handler: TaskHandler[Any, Any, Any], tasks: int) -> None:
    numbers = iter(range(tasks))

    async def submit() -> None:
        for number in numbers:
            await handler.submit_async(**_call(number))

    await asyncio.gather(*(submit() for _ in range(COROUTINES)))


def _from_threads(handler: TaskHandler[Any, Any, Any], tasks: int) -> None:
    numbers = iter(range(tasks))

    def submit(_: int) -> None:
        for number in numbers:
            handler.submit(**_call(number))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(submit, range(THREADS)))  # so that what one of them raises is raised here


async def _rate(submitting: Awaitable[Any], tasks: int) -> float:
    began = time.monotonic()
    await submitting
    return tasks / (time.monotonic() - began)
