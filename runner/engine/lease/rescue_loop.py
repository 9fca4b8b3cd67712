"""RescueLoop: periodic scans for the tasks of lost runners."""

import contextlib
import logging
import time
from collections.abc import Sequence

from runner.db.database import Database
from runner.db.errors import row_fault
from runner.db.halves import write_in_halves
from runner.engine.events import Events, TasksRescued
from runner.engine.lease.lease import Lease
from runner.engine.stuck_rows import StuckRows, set_locked_apart
from runner.errors import DatabaseUnavailable, StoreError
from runner.model.stuck_row import RowFault, StuckCause
from runner.policy.polling import Pace
from runner.store.rescue import (
    CHUNK,
    Rescued,
    any_lost,
    expired_runners,
    lost_tasks,
    remove_lost_runners,
    rescue,
    stranded_tasks,
)

log = logging.getLogger("runner.recovery")

MAX_RESCUE_PAUSE = 2.0
"""Maximum pause between two searches for lost runners in seconds; rescues have a deadline."""

MAX_TASK_PAUSE = 60.0
"""The same between two searches for tasks without a runner, or beyond their deadline: they read the index of running
tasks, which an old snapshot of another client fills with dead entries."""


class RescueLoop:
    """Rescues for one runner.

    Args:
        lease: the lease of this runner, which allows rescues.
        grace: seconds after a task's deadline in which its runner may still end it.
        events: receives the rescued tasks.
    """

    def __init__(self, database: Database, lease: Lease, grace: float, events: Events, stuck: StuckRows) -> None:
        self._database = database
        self._stuck = stuck
        self._refused_runners: dict[int, float] = {}
        """When to try again to remove a runner, in monotonic seconds."""
        self._lease = lease
        self._grace = grace
        self._events = events
        self._pace = Pace(every=0.0, most=MAX_RESCUE_PAUSE)
        self._task_pace = Pace(every=0.0, most=MAX_TASK_PAUSE)
        self._is_done = False

    def is_done(self) -> bool:
        """True unless others were lost before: a suspect that kills each new runner would prevent every rescue."""
        return self._is_done

    async def look(self) -> None:
        """Look for lost runners before the registration of this one."""
        self._is_done = not await self._any_lost()

    async def _any_lost(self) -> bool:
        """True if there are tasks to rescue, by this runner or another one."""
        return await self._database.read(any_lost, None, self._grace)

    async def run(self) -> None:
        """Rescue the tasks of lost runners."""
        started = time.monotonic()
        if not self._lease.may_rescue or not self._pace.is_due(started):
            return
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            pace = self._task_pace if self._task_pace.is_due(started) else self._pace
            grace = self._grace if pace is self._task_pace else None
            try:
                lost = await self._database.read(any_lost, self._lease.rescuer, grace)
            finally:
                pace.record(started, time.monotonic())
            rescued = await self._rescue() if lost else {}
            self._stuck.free("rescue", rescued)
            # Without a result, another runner was faster, or this one has to renew its lease first: ask for any runner.
            self._is_done = self._is_done or bool(rescued) or not await self._any_lost()
            is_tried = self._stuck.tasks("rescue") - self._stuck.resting("rescue")
            # Not if the lease of this runner has expired: it may not rescue, and no row is the reason.
            if is_tried or (
                lost and not rescued and await self._database.read(any_lost, self._lease.rescuer, self._grace)
            ):
                await self._name_the_rest()
            if rescued:
                self._events.publish(TasksRescued(rescued))

    async def _rescue(self) -> dict[int, Rescued]:
        """Rescue all lost tasks in one transaction, or in parts if the database refuses to change one of the rows."""
        resting = self._stuck.resting("rescue")
        try:
            if not self._refused_runners:
                return await self._database.write(rescue, self._lease.rescuer, self._grace, without=resting)
        except StoreError as error:
            if row_fault(error) is None:
                raise
        await self._remove_runners_in_parts()
        rescued: dict[int, Rescued] = {}
        tasks = await self._database.read(lost_tasks, self._grace, resting)

        async def write(part: Sequence[int]) -> None:
            rescued.update(await self._database.write(rescue, self._lease.rescuer, self._grace, part))

        def set_apart(id: int, fault: RowFault) -> None:
            self._stuck.set_apart("rescue", id, tasks[id], fault)

        await write_in_halves(list(tasks), write, set_apart)
        return rescued

    async def _remove_runners_in_parts(self) -> None:
        now = time.monotonic()
        self._refused_runners = {id: at for id, at in self._refused_runners.items() if at > now}
        ids = [id for id in await self._database.read(expired_runners) if id not in self._refused_runners]

        def refuse(id: int, fault: RowFault) -> None:
            self._refused_runners[id] = now + REFUSED_RUNNER_PAUSE
            log.warning("%s: runner %d is lost and cannot be removed; its tasks are not rescued", fault.fact, id)

        async def write(part: Sequence[int]) -> None:
            await self._database.write(remove_lost_runners, self._lease.rescuer, part)

        await write_in_halves(ids, write, refuse)

    async def _name_the_rest(self) -> None:
        """Record the lost tasks that a rescue has skipped, because a row is locked or a runner cannot be removed."""
        resting = self._stuck.resting("rescue")
        tasks = await self._database.read(lost_tasks, self._grace, resting)
        await set_locked_apart(self._database, self._stuck, "rescue", tasks)
        stranded = await self._database.read(stranded_tasks)
        for id in stranded.keys() - resting:
            self._stuck.set_apart("rescue", id, stranded[id], RUNNER_KEPT)
        if max(len(tasks), len(stranded)) < CHUNK:
            self._stuck.retain("rescue", {*resting, *tasks, *stranded})
        # These wait for a person: they must not keep this runner from claiming suspects.
        self._is_done = self._is_done or bool(tasks or stranded or resting)


REFUSED_RUNNER_PAUSE = 30.0
"""Seconds until the next try to remove a runner whose row the database refuses to delete."""

RUNNER_KEPT = RowFault(StuckCause.LOCKED, "the row of its lost runner is locked by another transaction, or refused")
