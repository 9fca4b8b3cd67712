"""absurd: one task with many steps, and many with one, with the defaults of its SDK. It has no other part.

Its worker runs one task at a time by default: `flows` gives it 16, and a poll each 50 ms in the place of 250.
"""

import asyncio
import time
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.contract import Peer, arrive, first, run, second, url

CONCURRENCY, POLL = 16, 0.05


class Absurd(Peer):
    """A client of absurd, whose connection also works."""

    async def open(self) -> None:
        """Connect."""
        self.client = AsyncAbsurd(url())

    async def close(self) -> None:
        """Disconnect."""
        await self.client.close()

    async def setup(self) -> None:
        """Create the tables of its queue, with the SQL that its command line contains."""
        async with await psycopg.AsyncConnection.connect(url(), autocommit=True) as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL)
        await self.client.create_queue()

    async def steps(self, count: int) -> float:
        """Run one task with steps."""
        ended = asyncio.get_running_loop().create_future()

        @self.client.register_task("flow")
        async def flow(_: Any, ctx: Any) -> None:
            start, value = time.monotonic(), 0
            for number in range(count):
                value = await ctx.step(f"add-{number}", lambda value=value: add(value))
            ended.set_result(time.monotonic() - start)

        await self.client.spawn("flow", {})
        await self.client.work_batch()
        return float(await ended)

    async def flows(self, count: int) -> float:
        """Start tasks of one step one by one on a connection of their own, while a worker executes them."""
        left, ended = count, asyncio.Event()

        @self.client.register_task("small")
        async def small(params: Any, ctx: Any) -> int:
            nonlocal left
            value: int = await ctx.step("add", lambda: add(params["number"]))
            left -= 1
            if not left:
                ended.set()
            return value

        start = time.monotonic()
        worker = asyncio.ensure_future(self.client.start_worker(concurrency=CONCURRENCY, poll_interval=POLL))
        client = AsyncAbsurd(url())
        for number in range(count):
            await client.spawn("small", {"number": number}, queue="default")
        await ended.wait()
        seconds = time.monotonic() - start
        self.client.stop_worker()
        await worker
        await client.close()
        return seconds

    async def resume(self, lease: int, *, begin: bool) -> None:
        """Run a task of two steps in a worker."""

        @self.client.register_task("resumed")
        async def resumed(_: Any, ctx: Any) -> None:
            await ctx.step("first", first)
            await ctx.step("second", second)

        if begin:
            await self.client.spawn("resumed", {})
        arrive("ready")
        await self.client.start_worker(**({"claim_timeout": lease} if lease else {}))


async def add(value: int) -> int:
    """The function of each step."""
    return value + 1


if __name__ == "__main__":
    run(Absurd())
