"""The part `handlers`: handlers that take time, beside a plain executor of Python with as many slots.

A handler sleeps. The runner drains a backlog of PostgreSQL. The executor has its calls in memory, and keeps nothing.
Each takes its rate from the end of its first round on, in which each slot runs one task.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.rig import Rig
from benchmarks.systems import SYSTEMS, Home
from runner import TaskHandler, connect, disconnect, handler
from runner.db.database import Database
from runner.engine.main import tune_interpreter
from runner.engine.runner import Engine
from runner.settings import Settings, load
from tests.postgres.server import Server

SLEEPS, SLOTS = (1, 10, 100), (1, 10, 100)
"""Milliseconds, and tasks at the same time."""
SECONDS, MOST = 2.0, 20_000
"""The length of a measurement if nothing but the handlers took time, and its tasks at most."""
CHUNK = 1_000


@handler("threads")
def threads(seconds: float) -> None:
    """Sleep in a thread."""
    time.sleep(seconds)


@handler("processes", executor="process")
def processes(seconds: float) -> None:
    """Sleep in a process."""
    time.sleep(seconds)


@handler("coroutines")
async def coroutines(seconds: float) -> None:
    """Sleep on the event loop."""
    await asyncio.sleep(seconds)


HANDLERS: dict[str, TaskHandler[..., Any, Any]] = {each.name: each for each in (threads, processes, coroutines)}


def rate(ends: list[float], slots: int) -> float:
    """Tasks per second, without the first round."""
    ends.sort()
    return (len(ends) - slots) / (ends[-1] - ends[slots - 1])


def plain(kind: str, seconds: float, slots: int, count: int) -> float:
    """The rate of an executor of Python."""
    if kind == "coroutines":
        return rate(asyncio.run(_gathered(seconds, slots, count)), slots)
    ends: list[float] = []
    pool: Executor = (ThreadPoolExecutor if kind == "threads" else ProcessPoolExecutor)(slots)
    with pool:
        for _ in range(count):
            call: Future[None] = pool.submit(time.sleep, seconds)
            call.add_done_callback(lambda _: ends.append(time.monotonic()))
    return rate(ends, slots)


async def _gathered(seconds: float, slots: int, count: int) -> list[float]:
    ends: list[float] = []
    rest = iter(range(count))

    async def slot() -> None:
        for _ in rest:
            await asyncio.create_task(asyncio.sleep(seconds))
            ends.append(time.monotonic())

    await asyncio.gather(*(slot() for _ in range(slots)))
    return ends


def ours(rig: Rig, kind: str, seconds: float, slots: int, count: int) -> float:
    """The rate of a runner."""
    settings = load(url=rig.url, concurrency=slots, threads=slots, processes=slots)
    return rate(asyncio.run(_drained(settings, HANDLERS[kind], seconds, count)), slots)


async def _drained(settings: Settings, task: TaskHandler[..., Any, Any], seconds: float, count: int) -> list[float]:
    connect(settings)
    for first in range(0, count, CHUNK):
        await task.submit_many_async([{"seconds": seconds}] * min(CHUNK, count - first))
    tune_interpreter(settings)
    await Engine(settings, {task.name: task}).run(until_idle=True)
    disconnect()
    database = Database.of(settings)
    try:
        async with database.reading() as tx:
            rows = await tx.rows(sa.select(sa.extract("epoch", tx.tables.history.c.finished_at)))
    finally:
        await database.dispose()
    return [float(row[0]) for row in rows]


def rows(server: Server, folder: Path, most: int) -> Iterator[str]:
    """The lines of the table.

    Args:
        most: maximum number of tasks of a measurement.
    """
    yield "| handlers | sleep, ms | slots | runner /s | executor /s | executor : runner |"
    yield f"|---|{'---:|' * 5}"
    for kind in HANDLERS:
        for milliseconds in SLEEPS:
            for slots in SLOTS if kind != "processes" else SLOTS[:-1]:  # more need a larger machine
                seconds = milliseconds / 1_000
                rounds = max(3, int(min(most, MOST, SECONDS * slots / seconds) / slots))
                with Rig(SYSTEMS["ours"], folder, server, Home(), "handlers") as rig:
                    own = ours(rig, kind, seconds, slots, rounds * slots)
                other = plain(kind, seconds, slots, rounds * slots)
                yield f"| {kind} | {milliseconds} | {slots} | {own:,.0f} | {other:,.0f} | {other / own:.2f} |"
