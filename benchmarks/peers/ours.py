"""This project, with the settings that users get.

SUBMIT=blocking submits single tasks without an event loop, and TENANTS=50 gives the tasks 50 tenants in turn.
"""

import asyncio
import os
import sys
import time
from typing import Any

import sqlalchemy as sa

from benchmarks.contract import Peer, arrive, first, on_stop, record, run, second, task, url
from runner import Context, TaskHandler, connect, disconnect
from runner.db.database import Database
from runner.db.migrations.apply import upgrade
from runner.engine.main import tune_interpreter, work
from runner.engine.runner import Engine
from runner.handlers.call_options import CallOptions
from runner.handlers.registry import Options
from runner.settings import load


async def noop(i: int, t: float, pad: str) -> None:  # noqa: ARG001 - gives the payload its size
    """The handler of all systems."""
    record(i, t)


async def add(value: int) -> int:
    """The function of each step."""
    return value + 1


TENANTS = int(os.environ.get("TENANTS", "0"))


def tenant(i: int) -> str:
    """The tenant of a task."""
    return f"tenant {i % TENANTS}"


NOOP: TaskHandler[..., Any, Any] = TaskHandler(
    "bench", noop, Options(call_options=CallOptions(tenant=tenant if TENANTS else None))
)


def database_url() -> str:
    """The database as this project names it."""
    return url() if "://" in url() else f"sqlite:///{url()}"


class Ours(Peer):
    """This project."""

    async def open(self) -> None:
        """Connect."""
        self.settings = load(url=database_url())
        self.database = Database.of(self.settings)
        connect(self.settings)

    async def close(self) -> None:
        """Disconnect."""
        disconnect()
        await self.database.dispose()

    async def setup(self) -> None:
        """Create the tables."""
        await upgrade(self.database)

    async def submit(self, task: dict[str, Any]) -> None:
        """Submit one task."""
        await NOOP.submit_async(**task)

    async def submit_many(self, tasks: list[dict[str, Any]]) -> None:
        """Submit tasks in one transaction."""
        await NOOP.submit_many_async(tasks)

    async def work(self) -> None:
        """Run a runner until SIGTERM."""
        runner = Engine(self.settings, {NOOP.name: NOOP})
        on_stop(runner.stop)
        tune_interpreter(self.settings)
        await runner.run()

    async def steps(self, count: int) -> float:
        """Run one task with steps."""
        seconds: list[float] = []

        async def flow(ctx: Context) -> None:
            start, value = time.monotonic(), 0
            for number in range(count):
                value = await ctx.step(f"add-{number}", add, value)
            seconds.append(time.monotonic() - start)

        handler: TaskHandler[..., Any, Any] = TaskHandler("flow", flow)
        await handler.submit_async()
        await Engine(self.settings, {handler.name: handler}).run(until_idle=True)
        return seconds[0]

    async def flows(self, count: int) -> float:
        """Submit tasks of one step one by one, while a runner executes them."""
        ended, start = asyncio.Semaphore(0), time.monotonic()

        async def small(ctx: Context, number: int) -> int:
            ctx.after_settle(lambda _: ended.release())
            return await ctx.step("add", add, number)

        handler: TaskHandler[..., Any, Any] = TaskHandler("small", small)
        runner = Engine(self.settings, {handler.name: handler})
        running = asyncio.ensure_future(runner.run())
        for number in range(count):
            await handler.submit_async(number=number)
        for _ in range(count):
            await ended.acquire()
        seconds = time.monotonic() - start
        runner.stop()
        await running
        return seconds

    async def resume(self, lease: int, *, begin: bool) -> None:
        """Run a task of two steps in a process like that of `runner work`."""

        async def flow(ctx: Context) -> None:
            await ctx.step("first", first)
            await ctx.step("second", second)

        handler: TaskHandler[..., Any, Any] = TaskHandler("flow", flow)
        if begin:
            await handler.submit_async()
        arrive("ready")
        settings = load(url=database_url(), lease_timeout=f"{lease}s") if lease else self.settings
        await work(settings, {handler.name: handler})

    async def left(self) -> int:
        """Count the live tasks."""
        async with self.database.reading() as tx:
            return int(await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task)))


def submit_blocking(count: int) -> None:
    """Submit tasks one by one in the thread of the caller."""
    connect(url=database_url())
    start = time.monotonic()
    for number in range(count):
        NOOP.submit(**task(number))
    print(time.monotonic() - start)
    disconnect()


if __name__ == "__main__":
    if os.environ.get("SUBMIT") == "blocking" and sys.argv[1] == "one":
        submit_blocking(int(sys.argv[2]))
    else:
        run(Ours())
