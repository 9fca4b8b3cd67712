"""Round: the tasks that one run of the demo has submitted, told from all others, and how far they are."""

import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.schema import is_state
from runner.store.database import Database
from runner.store.submit import submit_many
from runner.store.transaction import Transaction
from runner.task import NewTask, State


class Standing(NamedTuple):
    """How far a round is.

    Args:
        submitted: tasks so far.
        left: tasks that have not ended.
        failures: attempts that failed.
        dead: tasks that were given up.
    """

    submitted: int
    left: int
    failures: int
    dead: int

    @property
    def ended(self) -> int:
        """Tasks that have come to their end, whichever."""
        return self.submitted - self.left


class Round:
    """What one run of the demo submits.

    Args:
        database: to submit to.
    """

    def __init__(self, database: Database) -> None:
        self.by = f"runner demo, {socket.gethostname()} {os.getpid()}"
        self.first = 0
        """The lowest id."""
        self.submitted = 0
        self._database = database

    async def submit(self, tasks: Sequence[NewTask], *, notify: bool = True) -> None:
        """Submit tasks in one transaction.

        Args:
            tasks: at least one.
            notify: wake runners that listen.
        """
        ids = await self._database.write(submit_many, tasks, notify=notify)
        self.first = self.first or ids[0]
        self.submitted += len(ids)

    async def standing(self) -> Standing:
        """See how far the round is."""
        return Standing(self.submitted, *await self._database.read(self._count))

    def owns(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """The condition that a live or finished task is of this round."""
        return (table.c.id >= self.first) & (table.c.submitted_by == self.by)

    async def _count(self, tx: Transaction) -> tuple[Any, ...]:
        task, history, attempt = tx.tables.task, tx.tables.history, tx.tables.attempt
        left = sa.select(sa.func.count()).select_from(task).where(self.owns(task))
        dead = sa.select(sa.func.count()).where(is_state(history.c.state, State.DEAD), self.owns(history))
        # Attempts do not know who submitted: another demo at the same moment would be counted in, for the bar only.
        failures = sa.select(sa.func.count()).select_from(attempt).where(attempt.c.task_id >= self.first)
        counts = (query.scalar_subquery() for query in (left, failures, dead))
        (row,) = await tx.rows(sa.select(*counts))
        return tuple(row)
