"""Expiry: cancels the tasks whose time has passed."""

import contextlib
import time
from collections.abc import Callable, Sequence

from runner.db.database import Database
from runner.db.errors import row_fault
from runner.db.halves import write_in_halves
from runner.engine.events import Events, TasksCancelled, TasksUnbound
from runner.engine.stuck_rows import StuckRows, set_locked_apart
from runner.errors import DatabaseUnavailable, StoreError
from runner.model.stuck_row import RowFault
from runner.policy.polling import Pace
from runner.store.expire import CHUNK, Overdue, any_overdue, expire, overdue_tasks, unbind

MAX_PAUSE = 5.0
"""Maximum pause between two checks in seconds. No claim takes an expired task, so a late check only shows it longer."""


class Expiry:
    """Cancels expired tasks, and unbinds tasks from their hosts. Several runners may do this at the same time.

    Args:
        events: receives the cancelled and the unbound tasks.
        stopping: returns True when the runner is stopping.
    """

    def __init__(self, database: Database, events: Events, stopping: Callable[[], bool], stuck: StuckRows) -> None:
        self._database = database
        self._stuck = stuck
        self._events = events
        self._stopping = stopping
        self._pace = Pace(every=0.0, most=MAX_PAUSE)

    async def run(self) -> None:
        """Cancel all expired tasks, and unbind tasks whose time on their hosts is over, in small transactions."""
        started = time.monotonic()
        if not self._pace.is_due(started):
            return
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            overdue = await self._database.read(any_overdue)
            if overdue.expired or overdue.unbound:
                await self._end_overdue(overdue)
            else:
                self._stuck.retain("expire", ())
        self._pace.record(started, time.monotonic())

    async def _end_overdue(self, overdue: Overdue) -> None:
        try:
            while overdue.expired and not self._stopping() and await self._expire() == CHUNK:
                pass
            while overdue.unbound and not self._stopping() and await self._unbind() == CHUNK:
                pass
        except StoreError as error:
            if row_fault(error) is None:
                raise
            await self._end_in_parts()
        else:
            await self._name_the_rest()

    async def _end_in_parts(self) -> None:
        """Expire and unbind in parts, because the database refuses to change one of the rows."""
        expired, unbound = await self._find()

        def set_apart(id: int, fault: RowFault) -> None:
            self._stuck.set_apart("expire", id, expired.get(id) or unbound[id], fault)

        await write_in_halves(list(expired), self._expire, set_apart)
        await write_in_halves(list(unbound), self._unbind, set_apart)

    async def _name_the_rest(self) -> None:
        expired, unbound = await self._find()
        await set_locked_apart(self._database, self._stuck, "expire", expired | unbound)

    async def _find(self) -> tuple[dict[int, str], dict[int, str]]:
        """Find the tasks to expire and those to unbind whose tries are due, and drop the stuck rows of others."""
        resting = self._stuck.resting("expire")
        expired, unbound = await self._database.read(overdue_tasks, resting)
        if max(len(expired), len(unbound)) < CHUNK:
            self._stuck.retain("expire", {*resting, *expired, *unbound})
        return expired, unbound

    async def _unbind(self, only: Sequence[int] | None = None) -> int:
        tasks = await self._database.write(unbind, only, self._without(only))
        self._stuck.free("expire", tasks)
        if tasks:
            self._events.publish(TasksUnbound(len(tasks)))
        return len(tasks)

    def _without(self, only: Sequence[int] | None) -> frozenset[int]:
        return self._stuck.resting("expire") if only is None else frozenset()

    async def _expire(self, only: Sequence[int] | None = None) -> int:
        tasks = await self._database.write(expire, only, self._without(only))
        self._stuck.free("expire", [task.id for task in tasks])
        if tasks:
            self._events.publish(TasksCancelled([task.as_parent for task in tasks], expired=True))
        return len(tasks)
