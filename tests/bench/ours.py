"""Ours, as one system of a comparison: a command with the verbs setup, one, bulk, lat, worker and left.

The comparison's own modules `contract` and `probe` must be on PYTHONPATH. OURS=sqlite in the environment chooses
SQLite; SUBMIT=blocking submits single tasks from code without an event loop. Settings are those that users get, unless
the environment changes them, such as RUNNER_RETENTION_SUCCEEDED=0s.
"""

import json
import os
import sys
import time
from typing import Any

import sqlalchemy as sa
from contract import Peer, dsn, on_sigterm, payload, run  # type: ignore[import-not-found]
from probe import hit  # type: ignore[import-not-found]

from runner import TaskHandler, connect, disconnect
from runner.db.database import Database
from runner.db.migrations.apply import upgrade
from runner.engine.main import tune_interpreter
from runner.engine.runner import Engine
from runner.settings import load


async def noop(i: int, t: float, pad: str) -> None:
    """What every system of the comparison executes."""
    hit(i, t)


NOOP: TaskHandler[..., Any, Any] = TaskHandler("bench", noop)


def database_url() -> str:
    """The database of the comparison."""
    return f"sqlite:///{os.environ['BENCH_SQLITE']}" if os.environ.get("OURS") == "sqlite" else str(dsn())


class Ours(Peer):  # type: ignore[misc]
    """This project."""

    async def open(self) -> None:
        """Prepare the way to the database."""
        self.settings = load(url=database_url())
        self.database = Database.of(self.settings)
        connect(self.settings)

    async def close(self) -> None:
        """Close all connections."""
        disconnect()
        await self.database.dispose()

    async def setup(self) -> None:
        """Create the tables."""
        await upgrade(self.database)

    async def submit(self, task: dict[str, Any]) -> None:
        """Submit one task in a transaction of its own."""
        await NOOP.submit_async(**task)

    async def submit_many(self, tasks: list[dict[str, Any]]) -> None:
        """Submit a thousand tasks in one transaction."""
        await NOOP.submit_many_async(tasks)

    async def work(self) -> None:
        """Run a runner until SIGTERM."""
        runner = Engine(self.settings, {NOOP.name: NOOP})
        on_sigterm(runner.stop)
        tune_interpreter(self.settings)
        await runner.run()

    async def left(self) -> int:
        """Count the tasks that are not finished and recorded."""
        async with self.database.reading() as tx:
            return int(await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task)))


def submit_blocking(count: int) -> None:
    """Submit tasks one by one without an event loop, and print the rate like the verb `one`."""
    connect(url=database_url())
    start = time.monotonic()
    for number in range(count):
        NOOP.submit(**payload(number))
    seconds = time.monotonic() - start
    disconnect()
    print(json.dumps({"n": count, "s": seconds, "rate": count / seconds}))


if __name__ == "__main__":
    if os.environ.get("SUBMIT") == "blocking" and sys.argv[1] == "one":
        submit_blocking(int(sys.argv[2]))
    else:
        run(Ours())
