"""Load: the tasks that a bench submits, how they get into the table, and what has become of them."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from runner.bench.orders import HANDLER
from runner.errors import BenchFailed
from runner.schema import is_state
from runner.store.database import Database
from runner.store.submit import submit, submit_many
from runner.store.transaction import Transaction
from runner.task import NewTask, State

BATCH = 1_000
"""Tasks that are submitted at a time."""

LOOK = 0.001
"""Seconds between two looks at what is left."""

PATIENCE = 60.0
"""Seconds after its start in which every task must have ended."""

PAD = "x" * 64
"""Makes a payload about 100 bytes long."""


class Proof(NamedTuple):
    """What has become of the tasks of one measurement.

    Args:
        tasks: that were submitted.
        hits: how often one of them was started.
        ended: that stand in the history, each after one attempt.
        left: that have not ended.
    """

    tasks: int
    hits: int
    ended: int
    left: int

    @property
    def holds(self) -> bool:
        """Each task ended once, and so many starts are one for each."""
        return self.ended == self.hits == self.tasks and not self.left

    def __str__(self) -> str:
        if self.holds:
            return f"each of {self.tasks:,} tasks ended exactly once"
        return f"of {self.tasks:,} tasks {self.ended:,} ended, with {self.hits:,} starts, and {self.left:,} are left"


class Load:
    """Submits tasks to one database.

    Args:
        database: with empty tables.
        notify: wake runners that listen.
    """

    def __init__(self, database: Database, *, notify: bool) -> None:
        self.database = database
        self._notify = notify
        self.submitted = 0

    async def one(self, *, timed: bool = False) -> None:
        """Submit one task, committed on return.

        Args:
            timed: let its runner note how long it took from now to its start.
        """
        task = _task(self.submitted, time.monotonic() if timed else 0.0)
        await self.database.state(submit, task, notify=self._notify)
        self.submitted += 1

    async def many(self, tasks: int) -> None:
        """Submit tasks, BATCH of them in one transaction."""
        for size in _sizes(tasks):
            batch = [_task(self.submitted + number) for number in range(size)]
            await self.database.write(submit_many, batch, notify=self._notify)
            self.submitted += size

    async def settled(self) -> None:
        """Give the database statistics of the tasks, as it would within a minute by itself (PostgreSQL)."""
        if self.database.dialect.isolates_rows:
            await self.database.write(_analyze)

    async def done(self) -> float:
        """Wait until no task is left.

        Returns:
            The time of that, in monotonic seconds.

        Raises:
            BenchFailed: when some do not end, though all have started.
        """
        give_up = time.monotonic() + PATIENCE
        while left := await self.database.read(_left):
            if time.monotonic() > give_up:
                raise BenchFailed(why=f"{left:,} tasks have started and do not end")
            await asyncio.sleep(LOOK)
        return time.monotonic()

    async def proof(self, hits: int) -> Proof:
        """Find out what has become of the tasks, after so many starts."""
        return Proof(self.submitted, hits, *await self.database.read(_counts))


def _task(number: int, at: float = 0.0) -> NewTask:
    return NewTask(HANDLER, json.dumps({"i": number, "t": at, "pad": PAD}))


def _sizes(tasks: int) -> Iterator[int]:
    for first in range(0, tasks, BATCH):
        yield min(BATCH, tasks - first)


async def _analyze(tx: Transaction) -> None:
    name = tx.connection.dialect.identifier_preparer.format_table(tx.tables.task)
    await tx.execute(sa.text(f"ANALYZE {name}"))


async def _left(tx: Transaction) -> int:
    return int(await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task)))


async def _counts(tx: Transaction) -> Sequence[int]:
    past = tx.tables.history.c
    ended = sa.select(sa.func.count()).where(is_state(past.state, State.SUCCEEDED), past.attempt == 1)
    return int(await tx.scalar(ended)), await _left(tx)
