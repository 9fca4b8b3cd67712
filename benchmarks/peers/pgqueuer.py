"""PGQueuer: the driver asyncpg, and one connection per worker, as in its first example.

Batches of 1,000 drain a backlog fastest; batches of 10 have the shortest latency.
"""

import json
import os
from typing import Any

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks.contract import Peer, on_stop, record, run, url


class PGQueuer(Peer):
    """PGQueuer."""

    async def open(self) -> None:
        """Connect."""
        self.connection = await asyncpg.connect(url())
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def close(self) -> None:
        """Disconnect."""
        await self.connection.close()

    async def setup(self) -> None:
        """Create the tables."""
        await self.queries.install()

    async def submit(self, task: dict[str, Any]) -> None:
        """Submit one task."""
        await self.queries.enqueue("noop", json.dumps(task).encode())

    async def submit_many(self, tasks: list[dict[str, Any]]) -> None:
        """Submit tasks with one statement."""
        payloads = [json.dumps(task).encode() for task in tasks]
        await self.queries.enqueue(["noop"] * len(tasks), payloads, [0] * len(tasks))

    async def work(self) -> None:
        """Run a queue manager until SIGTERM."""
        manager = QueueManager(self.queries)

        @manager.entrypoint("noop")
        async def noop(job: Job) -> None:
            task = json.loads(job.payload or b"{}")
            record(task["i"], task["t"])

        on_stop(manager.shutdown.set)
        await manager.run(batch_size=10 if os.environ.get("BENCH_PART") == "latency" else 1_000)

    async def left(self) -> int:
        """Count the rows of the queue."""
        return int(await self.connection.fetchval("SELECT count(*) FROM pgqueuer"))


if __name__ == "__main__":
    run(PGQueuer())
