"""RescueLoop: looks for the tasks of lost runners, and returns them to the queue."""

import contextlib
import time
from collections.abc import Callable

from runner.db.database import Database
from runner.engine.dependency_resolver import DependencyResolver
from runner.engine.heartbeat import Lease
from runner.engine.hooks import Hooks
from runner.engine.metrics import Metrics
from runner.engine.outcome_log import log_rescued
from runner.errors import DatabaseUnavailable
from runner.handlers.life_cycle import AttemptEnd
from runner.model.task import MOVES
from runner.policy.polling import Pace
from runner.store.dependencies import FinishedParent
from runner.store.rescue import any_lost, rescue

MAX_RESCUE_PAUSE = 2.0
"""Maximum pause between two searches for lost tasks in seconds; rescues have a deadline."""


class RescueLoop:
    """Rescues for one runner.

    Args:
        database: the database to search.
        lease: the lease of this runner, which allows rescues.
        grace: seconds after a task's deadline in which its runner may still end it.
        metrics: counts the rescues.
        resolver: receives the tasks that are dead or cancelled.
        hooks: receive the ends of the attempts.
        scan: called when rescued tasks are due.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        grace: float,
        metrics: Metrics,
        resolver: DependencyResolver,
        hooks: Hooks,
        scan: Callable[[], None],
    ) -> None:
        self._database = database
        self._lease = lease
        self._grace = grace
        self._metrics = metrics
        self._resolver = resolver
        self._hooks = hooks
        self._scan = scan
        self._pace = Pace(every=0.0, most=MAX_RESCUE_PAUSE)
        self.done = False
        """True unless others were lost before: a suspect that kills each new runner would prevent every rescue."""

    async def look(self) -> None:
        """Look for lost runners before the registration of this one."""
        self.done = not await self._database.read_single(any_lost, None, self._grace)

    async def run(self) -> None:
        """Rescue the tasks of lost runners."""
        started = time.monotonic()
        if not self._lease.may_rescue or not self._pace.is_due(started):
            return
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            lost = await self._database.read_single(any_lost, self._lease.rescuer, self._grace)
            self._pace.record(started, time.monotonic())
            rescued = await self._database.write(rescue, self._lease.rescuer, self._grace) if lost else {}
            self.done = True
            for task_id, task in rescued.items():
                self._metrics.verbs[task.verb] += 1
                if MOVES[task.verb].target.final:
                    self._resolver.add(FinishedParent(task_id, task.handler, task.key))
                log_rescued(task_id, task)
                end = (task_id, task.handler, task.queue, task.key, task.attempt, None, task.verb, None, task.text)
                self._hooks.publish(AttemptEnd(*end))
            if rescued:
                self._scan()
