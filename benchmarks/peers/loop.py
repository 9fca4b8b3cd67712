"""A loop without features on PostgreSQL: claim 500, run, delete. The difference to it is the price of features."""

import asyncio
import json
import time
from typing import Any

import psycopg

from benchmarks.contract import Peer, on_stop, record, run, url

BATCH = 500
CLAIM = """
WITH due AS MATERIALIZED (
    SELECT id FROM job WHERE NOT taken ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) UPDATE job SET taken = true FROM due WHERE job.id = due.id RETURNING job.id, payload
"""
IDLE = 2.0
"""Seconds between two claims without a notification."""


class Loop(Peer):
    """Two statements and a coroutine per task."""

    async def open(self) -> None:
        """Connect."""
        self.connection = await psycopg.AsyncConnection.connect(url(), autocommit=True)

    async def close(self) -> None:
        """Disconnect."""
        await self.connection.close()

    async def setup(self) -> None:
        """Create the table."""
        columns = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, taken bool DEFAULT false, payload jsonb"
        await self.connection.execute(f"CREATE TABLE job ({columns}) WITH (fillfactor = 70)")
        await self.connection.execute("CREATE INDEX ON job (id) WHERE NOT taken")

    async def submit(self, task: dict[str, Any]) -> None:
        """Submit one task."""
        await self.submit_many([task])

    async def submit_many(self, tasks: list[dict[str, Any]]) -> None:
        """Submit tasks with one statement."""
        insert = "INSERT INTO job (payload) SELECT value FROM jsonb_array_elements(%s)"
        async with self.connection.transaction():
            await self.connection.execute(insert, [json.dumps(tasks)])
            await self.connection.execute("NOTIFY job")

    async def steps(self, count: int) -> float:
        """Update one row with a commit for each step: the least that a durable step can cost."""
        await self.submit({"step": 0})
        start = time.monotonic()
        for number in range(count):
            update = "UPDATE job SET payload = jsonb_build_object('step', %s::int)"
            await self.connection.execute(update, [number], prepare=True)
        return time.monotonic() - start

    async def work(self) -> None:
        """Claim and settle until SIGTERM."""
        stopped = asyncio.Event()
        on_stop(stopped.set)
        listener = await psycopg.AsyncConnection.connect(url(), autocommit=True)
        await listener.execute("LISTEN job")
        while not stopped.is_set():
            rows = await (await self.connection.execute(CLAIM, [BATCH])).fetchall()
            if not rows:
                async for _ in listener.notifies(timeout=IDLE, stop_after=1):
                    pass
                continue
            await asyncio.gather(*(self.noop(**payload) for _, payload in rows))
            await self.connection.execute("DELETE FROM job WHERE id = ANY(%s)", [[id for id, _ in rows]])
        await listener.close()

    async def noop(self, i: int, t: float, pad: str) -> None:  # noqa: ARG002 - gives the payload its size
        """The handler of all systems."""
        record(i, t)

    async def left(self) -> int:
        """Count the rows."""
        cursor = await self.connection.execute("SELECT count(*) FROM job")
        return int((await cursor.fetchall())[0][0])


if __name__ == "__main__":
    run(Loop())
