"""Upkeep: what a runner does for the history: partitions ahead of the ids, and nothing that is too old."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from runner.errors import DatabaseAway, DatabaseRefused
from runner.settings import Settings
from runner.store.database import Database
from runner.store.partitions import extend, look
from runner.store.prune import retention_of
from runner.store.retention import enforce

log = logging.getLogger("runner.upkeep")

PAUSE = 0.2
"""Seconds between two transactions that delete, for other work."""

NO_RIGHTS = (
    "role %s does not own the table task_history and makes no partitions of it: old tasks are deleted row by row. "
    "Let the owner run `runner prune` now and then, which makes and drops partitions"
)


class Upkeep:
    """The upkeep of one database by one runner; any number of runners may do it at once.

    Args:
        database: to keep up.
        settings: how long finished tasks are kept.
        stopping: tells that the runner wants to stop.
    """

    def __init__(self, database: Database, settings: Settings, stopping: Callable[[], bool]) -> None:
        self._database = database
        self._retention = retention_of(settings)
        self._stopping = stopping
        self._told = False

    async def run(self) -> None:
        """Make partitions, and delete some of what is old; a large backlog goes a little at a time."""
        with contextlib.suppress(DatabaseAway):  # claims and beats say so already
            await self._extend()
            async with contextlib.aclosing(enforce(self._database, self._retention)) as rounds:
                async for _ in rounds:
                    if self._stopping():
                        break
                    await asyncio.sleep(PAUSE)

    async def _extend(self) -> None:
        layout = await self._database.read(look)
        if layout is not None and not layout.may_change:
            self._tell(layout.role)
            return
        try:
            while not self._stopping() and (made := await self._database.write(extend)):
                log.info("the history has a partition for the tasks %d to %d", made.first, made.end - 1)
        except DatabaseRefused as error:
            log.warning("the history got no further partition: %s", error)

    def _tell(self, role: str) -> None:
        if not self._told:
            self._told = True
            log.warning(NO_RIGHTS, role)
