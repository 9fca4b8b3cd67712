"""Expiry: cancels the tasks that did not start in time."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from runner.db.database import Database
from runner.engine.metrics import Metrics
from runner.errors import DatabaseUnavailable
from runner.policy.polling import Pace
from runner.store.dependencies import FinishedParent
from runner.store.expire import CHUNK, any_expired, expire
from runner.text.sanitize import count_noun, one_line

log = logging.getLogger("runner.expiry")

MAX_PAUSE = 5.0
"""Maximum pause between two checks in seconds. No claim takes an expired task, so a late check only shows it longer."""


class Expiry:
    """Cancels expired tasks. Several runners may do this at the same time.

    Args:
        database: the database with the tasks.
        metrics: counts the cancelled tasks.
        on_final: called with each cancelled task.
        stopping: returns True when the runner is stopping.
    """

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        on_final: Callable[[FinishedParent], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._on_final = on_final
        self._stopping = stopping
        self._pace = Pace(every=0.0, most=MAX_PAUSE)

    async def run(self) -> None:
        """Cancel all expired tasks, in small transactions."""
        started = time.monotonic()
        if not self._pace.is_due(started):
            return
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            if await self._database.read_single(any_expired):
                while not self._stopping() and await self._expire() == CHUNK:
                    pass
        self._pace.record(started, time.monotonic())

    async def _expire(self) -> int:
        tasks = await self._database.write(expire)
        for task in tasks:
            self._metrics.verbs["cancel"] += 1
            self._on_final(task.ended)
        for handler, number in Counter(task.handler for task in tasks).items():
            log.warning("%s of %s expired without a start", count_noun(number, "task"), one_line(handler))
        return len(tasks)
