"""Maintenance: creates partitions of the history ahead of the ids and deletes old tasks."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from math import inf

from runner.db.database import Database
from runner.db.migrations.roles import missing_grant
from runner.db.server_watch import answer_within
from runner.engine.stuck_rows import StuckRows
from runner.errors import DatabaseRefused, DatabaseUnavailable
from runner.model.stuck_row import RowFault
from runner.policy.retention import AgeGroup
from runner.settings import Settings
from runner.store.partitions import extend, read_layout
from runner.store.retention import enforce, retention_of
from runner.text.sanitize import one_line
from runner.text.stuck_row import LONGEST_FACT

log = logging.getLogger("runner.maintenance")


PAUSE = 0.2
"""Seconds between two deleting transactions."""

LOOK_AGAIN = 86_400.0
"""Seconds after which a runner looks at all tasks of queues with a retention of their own: some were locked before."""

NO_RIGHTS = (
    "role %s does not own task_history and cannot create partitions: old tasks are deleted row by row. "
    "Run `runner prune` regularly as the owner: it creates and drops partitions"
)

NOT_DROPPED = (
    "could not drop the history partition of tasks %d to %d: %s. A view or a foreign key of another application may "
    "depend on it. Its old tasks are deleted row by row, except referenced ones; the next prune tries again"
)

IN_USE = (
    "could not drop the history partition of tasks %d to %d: %s. Another transaction or a vacuum uses it; the next "
    "prune tries again"
)

KEEPS_ROWS = (
    "succeeded tasks keep their rows until they are pruned, although retention_succeeded is 0s: this login may not "
    "read a sequence. Run as the owner of the tables: %s"
)


class Maintenance:
    """Maintains one database. Several runners may do this at the same time.

    Args:
        settings: retention of finished tasks.
        stopping: returns True when the runner is stopping.
    """

    def __init__(self, database: Database, settings: Settings, stopping: Callable[[], bool], stuck: StuckRows) -> None:
        self._database = database
        self._stuck = stuck
        self._retention, self._reached = retention_of(settings), dict[AgeGroup, datetime]()
        self._look_again_at = -inf
        self._statistics = settings.retention_statistics
        self._stopping = stopping
        self._warned = False
        self._checks_grant = settings.retention_succeeded == timedelta(0)

    async def run(self) -> None:
        """Create partitions and delete old tasks; a large backlog is deleted in small transactions."""
        # Deleting a chunk of large tasks takes long on a slow disk.
        with answer_within(None), contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            await self._check_grant()
            await self._extend()
            await self._prune()

    async def _prune(self) -> None:
        faults = set[int]()

        def set_apart(id: int, handler: str, fault: RowFault) -> None:
            faults.add(id)
            self._stuck.set_apart("prune", id, handler, fault)

        without = partial(self._stuck.resting, "prune")
        due = self._stuck.tasks("prune") - without()
        if (now := time.monotonic()) >= self._look_again_at:
            self._reached.clear()
            self._look_again_at = now + LOOK_AGAIN
        rounds = enforce(
            self._database,
            self._retention,
            statistics=self._statistics,
            on_fault=set_apart,
            without=without,
            reached=dict(self._reached),
        )
        async with contextlib.aclosing(rounds):
            async for pruned in rounds:
                self._reached.update(pruned.reached)
                for text, reasons in ((NOT_DROPPED, pruned.refused), (IN_USE, pruned.in_use)):
                    for part, fact in reasons.items():
                        log.warning(text, part.first, part.end - 1, one_line(fact, LONGEST_FACT))
                if self._stopping():
                    return
                await asyncio.sleep(PAUSE)
        self._stuck.free("prune", due - faults)

    async def _extend(self) -> None:
        layout = await self._database.read(read_layout)
        if layout is not None and not layout.may_change:
            self._warn_once(layout.role)
            return
        try:
            while not self._stopping() and (partition := await self._database.write(extend)):
                log.info("created a history partition for tasks %d to %d", partition.first, partition.end - 1)
        except DatabaseRefused as error:
            log.warning("could not create a history partition: %s", error)

    async def _check_grant(self) -> None:
        """Log once if the settle of a success may not delete its row."""
        if self._checks_grant:
            grant = await self._database.read(missing_grant, own=True)
            self._checks_grant = False
            if grant is not None:
                log.warning(KEEPS_ROWS, grant)

    def _warn_once(self, role: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(NO_RIGHTS, role)
