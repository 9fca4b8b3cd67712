"""Maintenance: creates partitions of the history ahead of the ids and deletes old tasks."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import timedelta

from runner.db.database import Database
from runner.db.migrations.revisions import check
from runner.db.migrations.roles import missing_grant
from runner.errors import DatabaseRefused, DatabaseUnavailable, StoreError
from runner.model.task import State
from runner.settings import Settings
from runner.store.partitions import extend, read_layout
from runner.store.retention import enforce, retention_of

log = logging.getLogger("runner.maintenance")

ADVICE = "this runner continues; a runner of this version that starts now fails"


class SchemaWatch:
    """Logs when the schema stops matching this version, and when it matches again.

    The runner continues to claim: a deployment migrates first and then restarts the runners.

    Args:
        database: the database to check.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reported: str | None = None

    async def check_schema(self) -> None:
        """Check the schema and log a change."""
        try:
            await check(self._database)
        except DatabaseUnavailable:  # claims and heartbeats already log this
            return
        except StoreError as error:
            problem: str | None = str(error)
        else:
            problem = None
        if problem is not None and problem != self._reported:
            log.error("%s (%s)", problem, ADVICE)
        if problem is None and self._reported is not None:
            log.warning("the schema matches this runner again")
        self._reported = problem


PAUSE = 0.2
"""Seconds between two deleting transactions."""

NO_RIGHTS = (
    "role %s does not own task_history and cannot create partitions: old tasks are deleted row by row. "
    "Run `runner prune` regularly as the owner: it creates and drops partitions"
)

KEEPS_ROWS = (
    "succeeded tasks keep their rows until they are pruned, although retention_succeeded is 0s: this login may not "
    "read a sequence. Run as the owner of the tables: %s"
)


class Maintenance:
    """Maintains one database. Several runners may do this at the same time.

    Args:
        database: the database to maintain.
        settings: retention of finished tasks.
        stopping: returns True when the runner is stopping.
    """

    def __init__(self, database: Database, settings: Settings, stopping: Callable[[], bool]) -> None:
        self._database = database
        self._retention = retention_of(settings)
        self._statistics = settings.retention_statistics
        self._stopping = stopping
        self._warned = False
        self._checks_grant = self._retention.get(State.SUCCEEDED) == timedelta(0)

    async def run(self) -> None:
        """Create partitions and delete old tasks; a large backlog is deleted in small transactions."""
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            await self._check_grant()
            await self._extend()
            rounds = enforce(self._database, self._retention, statistics=self._statistics)
            async with contextlib.aclosing(rounds):
                async for _ in rounds:
                    if self._stopping():
                        break
                    await asyncio.sleep(PAUSE)

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
