"""Huey on SQLite: WAL, synchronous=FULL, a consumer with 4 threads.

It has no bulk submit. It deletes a task when a thread takes it, before it runs: its tasks run at most once.
"""

import asyncio
import logging
from typing import Any

from huey import SqliteHuey

from benchmarks.contract import Peer, record, run, url

logging.disable(logging.CRITICAL)
queue = SqliteHuey("bench", filename=url(), fsync=True)


@queue.task()
def noop(i: int, t: float, pad: str) -> None:  # noqa: ARG001 - gives the payload its size
    """The handler of all systems."""
    record(i, t)


class Huey(Peer):
    """Huey; the import created its tables."""

    async def submit(self, task: dict[str, Any]) -> None:
        """Submit one task, in the thread of the event loop."""
        noop(**task)

    async def work(self) -> None:
        """Run a consumer until SIGTERM."""
        consumer = queue.create_consumer(workers=4, worker_type="thread", periodic=False, graceful_signal="TERM")
        await asyncio.sleep(0)
        consumer.run()

    async def left(self) -> int:
        """Count the pending tasks."""
        return int(queue.pending_count())


if __name__ == "__main__":
    run(Huey())
