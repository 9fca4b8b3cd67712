"""Completion: stops a runner that has nothing left to do."""

import contextlib
from collections.abc import Awaitable, Callable

from runner.engine.claimer import Claimer
from runner.engine.dependency_resolver import DependencyResolver
from runner.engine.expiry import Expiry
from runner.engine.readiness import Readiness
from runner.engine.slots import InFlight
from runner.errors import DatabaseUnavailable
from runner.store.lanes import Pending


class Completion:
    """The conditions under which a runner stops by itself.

    Args:
        pending: reads the remaining work of the runner's handlers and queues.
        in_flight: claimed tasks of the runner.
        claimer: the scans of the runner.
        resolver: resolves the dependencies of finished tasks.
        readiness: the resources of the handlers.
        expiry: ends the tasks that are too late to run.
        stop: stops the runner.
    """

    def __init__(
        self,
        pending: Callable[[], Awaitable[Pending]],
        in_flight: InFlight,
        claimer: Claimer,
        resolver: DependencyResolver,
        readiness: Readiness,
        expiry: Expiry,
        stop: Callable[[], None],
    ) -> None:
        self._pending = pending
        self._in_flight = in_flight
        self._claimer = claimer
        self._resolver = resolver
        self._readiness = readiness
        self._expiry = expiry
        self._stop = stop
        self.scheduled_count = 0
        """Scheduled tasks that remain when the runner stops because it is idle."""

    @property
    def _at_rest(self) -> bool:
        """True after a scan that claimed all due tasks, when they have ended."""
        ready = self._claimer.scanned and self._readiness.complete
        return ready and self._claimer.idle and self._resolver.idle and not len(self._in_flight)

    async def stop_after_scan(self) -> None:
        """Stop if the first scan has claimed all due tasks and they have ended."""
        if self._at_rest and await self._resolver.resolve_all():
            self._stop()

    async def stop_if_idle(self) -> None:
        """Stop if nothing runs, is due or will be retried."""
        if not self._at_rest:
            return
        with contextlib.suppress(DatabaseUnavailable):
            await self._expiry.run()
            counts = await self._pending()
            if not counts.running and not counts.returning and await self._resolver.resolve_all():
                self.scheduled_count = counts.later
                self._stop()
