"""The load: submits the tasks of a bench and counts how they end."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from runner.cli.bench.exchange import HANDLER
from runner.db.database import Database
from runner.db.schema import NO_BIN
from runner.db.transaction import Transaction
from runner.errors import BenchFailed
from runner.model.task import NewTask
from runner.store.submit import submit, submit_many

CHUNK = 1_000
"""Tasks per transaction."""

POLL_INTERVAL = 0.001
"""Seconds between two counts of the unfinished tasks."""

TIMEOUT = 60.0
"""Seconds after the last start within which every task must finish."""

PAD = "x" * 64
"""Makes a payload about 100 bytes long."""


class TaskCounts(NamedTuple):
    """The fate of the tasks of one measurement.

    Args:
        ended: tasks that succeeded, each at its first attempt.
    """

    tasks: int
    hits: int
    ended: int
    unfinished: int

    @property
    def holds(self) -> bool:
        """True if each task started once and finished once."""
        return self.ended == self.hits == self.tasks and not self.unfinished

    def __str__(self) -> str:
        if self.holds:
            return f"each of {self.tasks:,} tasks finished exactly once"
        finished = f"{self.ended:,} of {self.tasks:,} tasks finished"
        return f"{finished}, with {self.hits:,} starts; {self.unfinished:,} unfinished"


class Load:
    """Submits tasks to one database.

    Args:
        database: a database with empty tables.
        notify: wake listening runners.
    """

    def __init__(self, database: Database, *, notify: bool) -> None:
        self.database = database
        self._notify = notify
        self.submitted = 0

    async def one(self, *, timed: bool = False) -> None:
        """Submit one task, committed on return.

        Args:
            timed: make the runner record the latency of its start.
        """
        task = _task(self.submitted, time.monotonic() if timed else 0.0)
        await self.database.write(submit, task, notify=self._notify)
        self.submitted += 1

    async def many(self, tasks: int, change: Callable[[NewTask, int], NewTask] | None = None) -> None:
        """Submit tasks, CHUNK of them per transaction.

        Args:
            change: gives each task its options, from its number.
        """
        for size in _sizes(tasks):
            numbers = range(self.submitted, self.submitted + size)
            chunk = [change(_task(number), number) if change else _task(number) for number in numbers]
            await self.database.write(submit_many, chunk, notify=self._notify)
            self.submitted += size

    async def analyze(self) -> None:
        """Update the planner statistics, as PostgreSQL would within a minute on its own."""
        if self.database.dialect.is_server:
            await self.database.write(analyze)

    async def wait_until_done(self) -> float:
        """Wait until every task has finished.

        Returns:
            The time in monotonic seconds.

        Raises:
            BenchFailed: tasks have started but do not finish.
        """
        deadline = time.monotonic() + TIMEOUT
        while unfinished := await self.database.read(_unfinished):
            if time.monotonic() > deadline:
                raise BenchFailed(why=f"{unfinished:,} tasks started but did not finish within {TIMEOUT:.0f} s")
            await asyncio.sleep(POLL_INTERVAL)
        return time.monotonic()

    async def proof(self, hits: int) -> TaskCounts:
        """Count the tasks, after this many starts."""
        return TaskCounts(self.submitted, hits, *await self.database.read(_counts))


def _task(index: int, submitted_at: float = 0.0) -> NewTask:
    return NewTask(HANDLER, json.dumps({"i": index, "t": submitted_at, "pad": PAD}))


def _sizes(tasks: int) -> Iterator[int]:
    for first in range(0, tasks, CHUNK):
        yield min(CHUNK, tasks - first)


async def analyze(tx: Transaction) -> None:
    """Update the planner statistics of the live tasks."""
    name = tx.connection.dialect.identifier_preparer.format_table(tx.tables.task)
    await tx.execute(sa.text(f"ANALYZE {name}"))


async def _unfinished(tx: Transaction) -> int:
    return int(await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task)))


async def _counts(tx: Transaction) -> Sequence[int]:
    return await finished_count(tx), await _unfinished(tx)


async def finished_count(tx: Transaction) -> int:
    """Count the tasks that succeeded at their first attempt, also those that the retention has deleted."""
    minute = tx.tables.minute.c
    counted = minute.bin_ms == sa.literal_column(str(NO_BIN))
    return int(await tx.scalar(sa.select(sa.func.coalesce(sa.func.sum(minute.first_try), 0)).where(counted)))
