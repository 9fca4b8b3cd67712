"""Completion: the end of a runner that stops when nothing is left to do."""

import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from runner.errors import DatabaseUnavailable, ResourceLimitReached

if TYPE_CHECKING:  # a worker process opens resources, and needs none of these
    from runner.engine.claiming.claimer import Claimer
    from runner.engine.periodic.expiry import Expiry
    from runner.engine.settling.dependency_resolver import DependencyResolver
    from runner.engine.worker import Worker
    from runner.store.claim.survey import Pending
from runner.engine.hosting.resources import RunnerResources

log = logging.getLogger("runner")

IDLE_EVERY = 0.1
"""Seconds between two looks at the remaining work."""


QUIET_WAIT = 2.0
"""Seconds for which a runner waits for tasks that do not run before it logs that."""

LOOK_SHARE, LONGEST_PAUSE = 0.2, 5.0
"""Share of the time that slow looks may take, and the maximum number of seconds between them."""


class Completion:
    """The conditions under which a runner stops by itself.

    Args:
        pending: reads the remaining work of the runner.
        worker: has the claimed tasks, and the outcomes that the database refuses.
        claimer: the scans of the runner.
        resolver: resolves the dependencies of finished tasks.
        expiry: ends the tasks that are too late to run.
        describe: returns a task that waits, as text.
        on_idle: called with the start of a look, in monotonic seconds, that found nothing to do.
    """

    def __init__(
        self,
        pending: Callable[[], "Awaitable[Pending]"],
        worker: "Worker",
        claimer: "Claimer",
        resolver: "DependencyResolver",
        resources: RunnerResources,
        expiry: "Expiry",
        describe: "Callable[[int], Awaitable[str]]",
        on_idle: Callable[[float], None],
    ) -> None:
        self._pending = pending
        self._in_flight, self._outcomes = worker.in_flight, worker.buffer
        self._claimer = claimer
        self._resolver = resolver
        self._resources = resources
        self._expiry = expiry
        self._describe = describe
        self._on_idle = on_idle
        self.scheduled_count = 0
        """Scheduled tasks that remain when the runner stops because it is idle."""
        self._pause = 0.0
        self._waits_since: float | None = None
        """When looks began to find tasks that do not run, monotonic; None if the last one found none."""
        self._is_away = False
        """True if the database was not available at the last look."""

    def pause(self) -> float:
        """Seconds until the next look at the remaining work, which reads many tasks if other runners take most."""
        return min(max(IDLE_EVERY, self._pause), LONGEST_PAUSE)

    @property
    def _at_rest(self) -> bool:
        """True after a scan that claimed all due tasks, when they have ended."""
        if not (self._resources.complete and self._claimer.idle and self._resolver.idle):
            return False
        return len(self._in_flight) == self._outcomes.refused

    async def stop_after_scan(self) -> None:
        """Stop if the first scan has claimed all due tasks and they have ended."""
        began = time.monotonic()
        if self._at_rest and await self._resolver.resolve_all():
            self._on_idle(began)

    async def stop_if_idle(self) -> None:
        """Stop if nothing runs, is due or will be retried."""
        began = time.monotonic()
        if not self._at_rest:
            return
        try:
            await self._expiry.run()
            begin = time.monotonic()
            counts = await self._pending()
            self._pause = (time.monotonic() - begin) / LOOK_SHARE
            await self._note_wait(counts.example)
            if counts.running == self._outcomes.refused and not counts.returning and await self._resolver.resolve_all():
                self.scheduled_count = counts.later
                self._on_idle(began)
        except DatabaseUnavailable as error:
            if not self._is_away:
                log.warning("the runner cannot look for remaining work, and does not end before it can: %s", error)
            if isinstance(error, ResourceLimitReached):
                self._outcomes.on_limit(error, self._outcomes.refused)
            self._is_away = True
        else:
            self._is_away = False

    async def _note_wait(self, example: int | None) -> None:
        """Log once that the runner does not end because tasks are left that do not run, such as this one."""
        if example is None:
            self._waits_since = None
            return
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since >= QUIET_WAIT:
            text = "no task runs; the runner waits for %s (runner why %d). Ctrl-c, or --until-none-due, ends it before"
            log.info(text, await self._describe(example), example)
            self._waits_since = math.inf
