"""The parts that submit, without a runner: `one`, `bulk`, `coalesced`."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from runner.cli.bench.exchange import HANDLER
from runner.cli.bench.load import PAD, Load
from runner.cli.bench.plan import Measurement
from runner.cli.bench.workers import BenchContext
from runner.client.client import connect, disconnect
from runner.client.handler import TaskHandler

COROUTINES, THREADS = 200, 32
"""Concurrent submitters in `coalesced`, each with one task at a time."""


async def one(context: BenchContext) -> Measurement:
    """Submit tasks one by one, each committed before the next one."""
    async with context.create_load() as load:
        rate = await _rate(_submit_singly(load, context.plan.one), context.plan.one)
        return Measurement({"rate": rate}, context.plan.one)


async def bulk(context: BenchContext) -> Measurement:
    """Submit many calls at the same time, as applications do: arguments are checked, and ids are returned."""
    tasks = context.plan.bulk
    calls = [_call(index) for index in range(tasks)]
    async with context.create_load():
        with _handler(context, coalesce=False) as handler:
            await handler.submit_async(**_call(0))
            return Measurement({"rate": await _rate(handler.submit_many_async(calls), tasks)}, tasks)


async def coalesced(context: BenchContext) -> Measurement:
    """Submit single tasks from many coroutines and threads; each waits until its task is durable."""
    tasks = context.plan.tasks
    async with context.create_load():
        with _handler(context, coalesce=True) as handler:
            await handler.submit_async(**_call(0))
            rate = await _rate(_from_coroutines(handler, tasks), tasks)
            threads = await _rate(asyncio.to_thread(_from_threads, handler, tasks), tasks)
            return Measurement({"rate": rate, "threads": threads}, 2 * tasks)


@contextmanager
def _handler(context: BenchContext, *, coalesce: bool) -> Iterator[TaskHandler[Any, Any, Any]]:
    """Connect this process to the sandbox like an application, and yield a handler to submit with."""
    connect(context.sandbox.settings.model_copy(update={"coalesce": coalesce}))
    try:
        yield TaskHandler(HANDLER, _noop)
    finally:
        disconnect()


async def _noop(i: int, t: float, pad: str) -> None:
    """The submitted handler; it never runs here."""


def _call(index: int) -> dict[str, Any]:
    return {"i": index, "t": 0.0, "pad": PAD}


async def _submit_singly(load: Load, tasks: int) -> None:
    for _ in range(tasks):
        await load.one()


async def _from_coroutines(handler: TaskHandler[Any, Any, Any], tasks: int) -> None:
    numbers = iter(range(tasks))

    async def submit() -> None:
        for index in numbers:
            await handler.submit_async(**_call(index))

    await asyncio.gather(*(submit() for _ in range(COROUTINES)))


def _from_threads(handler: TaskHandler[Any, Any, Any], tasks: int) -> None:
    numbers = iter(range(tasks))

    def submit(_: int) -> None:
        for index in numbers:
            handler.submit(**_call(index))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(submit, range(THREADS)))  # raises the first error of a thread


async def _rate(submission: Awaitable[Any], tasks: int) -> float:
    started_at = time.monotonic()
    await submission
    return tasks / (time.monotonic() - started_at)
