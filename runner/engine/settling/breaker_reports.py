"""BreakerReports: the ends of attempts that breakers count."""

import asyncio
import logging
from dataclasses import dataclass, field

from runner.db.database import Database
from runner.engine.events import AttemptsEnded, BreakerReviewed, Events
from runner.errors import StoreError
from runner.model.task import Claimed
from runner.policy.breaker import Probe
from runner.store.breaker import Report, review
from runner.store.settle import Settlement
from runner.text.sanitize import one_line

breaker_log = logging.getLogger("runner.breaker")

OPEN = "the breaker of its handler opened"
"""The reason for the release of tasks that have not started."""

ANSWERS = ("succeed", "retry", "die")
"""The moves of a probe that reached the service; the others decide nothing."""


@dataclass
class _Ends:
    """The ends of attempts of one handler since its last report."""

    failed: str = ""
    opens: str = ""
    passed: set[Probe] = field(default_factory=set)
    missed: set[Probe] = field(default_factory=set)

    def report(self, handler: str) -> Report:
        return Report(handler, self.failed, self.opens, frozenset(self.passed), frozenset(self.missed))


class BreakerReports:
    """Reports the ends of attempts to the breakers of their handlers.

    Args:
        database: the database with the registry of handlers.
        probes: the round of each probe in flight by task id, from the claims of the runner.
        events: has the ends of attempts, and receives the reviews of the breakers.
    """

    def __init__(self, database: Database, probes: dict[int, Probe], events: Events) -> None:
        self._database, self._probes, self._events = database, probes, events
        self._ends: dict[str, _Ends] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        """The report in progress of each handler: one whose row is locked does not delay the others."""
        events.subscribe(AttemptsEnded, self._add_ends)

    def _add_ends(self, event: AttemptsEnded) -> None:
        for running, settlement in event.attempts:
            if settlement.effect or self._probes:
                self._add(running.task, event.verb, settlement)

    def _add(self, task: Claimed, verb: str | None, settlement: Settlement) -> None:
        """Add the end of an attempt; `verb` is None if the runner had lost the task."""
        probe, effect = self._probes.pop(task.id, None), settlement.effect
        if verb is None or not (effect or probe):
            return
        handler = task.handler
        ends = self._ends.setdefault(handler, _Ends())
        if effect:
            failure = getattr(settlement.outcome, "failure", None)
            why = failure.reason if failure is not None else "a failure"
            ends.failed = why
            ends.opens = why if effect == "opens" else ends.opens
        if probe is not None and verb in ANSWERS:
            (ends.missed if effect else ends.passed).add(probe)
        if handler not in self._jobs:
            self._jobs[handler] = job = asyncio.get_running_loop().create_task(self._write(handler))
            job.add_done_callback(lambda _: self._jobs.pop(handler, None))

    async def _write(self, name: str) -> None:
        await asyncio.sleep(0)  # the other ends of the same batch
        while (ends := self._ends.pop(name, None)) is not None:
            report = ends.report(name)
            try:
                result = await self._database.write(review, report)
            except StoreError as error:
                # The next failure is reported again, and the next probes start after the wait of this round.
                breaker_log.warning("could not report to the breaker of %s: %s", one_line(name), error)
            else:
                self._events.publish(BreakerReviewed(name, result))

    async def drain(self, limit: float) -> None:
        """Wait for the reports in progress.

        Args:
            limit: maximum wait in seconds.
        """
        if self._jobs:
            await asyncio.wait([*self._jobs.values()], timeout=limit)
