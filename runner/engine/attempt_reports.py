"""Reports on attempts beside their outcomes: starts of prefetched tasks, and the ends that breakers count."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from runner.db.database import Database
from runner.engine.slots import Running
from runner.errors import StoreError
from runner.policy.breaker import Probe
from runner.store.attempts import Start, mark_started
from runner.store.breaker import Report, Review, review
from runner.store.settle import Settlement
from runner.text.sanitize import one_line

log = logging.getLogger("runner")

QUICK = 0.1
"""Seconds that a prefetched task runs before it is marked, at most twice as many; most tasks end earlier."""

RETRY = 1.0
"""Seconds until a failed statement is retried."""

CHUNK = 500
"""Maximum number of tasks per statement."""


class Starts:
    """Marks prefetched tasks that run longer than QUICK.

    It looks at the tasks in flight once per QUICK: a record per task would cost more than its mark is worth, as most
    tasks end earlier.

    Args:
        database: the database with the tasks.
        runner_id: returns the id of the runner.
        running: returns the tasks that run.
    """

    def __init__(
        self, database: Database, runner_id: Callable[[], int], running: Callable[[], Iterable[Running]]
    ) -> None:
        self._database = database
        self._runner_id = runner_id
        self._running = running
        self.timer: asyncio.TimerHandle | asyncio.Task[None] | None = None
        """The next look, or the marks in progress; None if no prefetched task has started since."""
        self._closed = False

    def expect(self) -> None:
        """Record that the body of a prefetched task starts."""
        if self.timer is None and not self._closed:
            self._check_in(QUICK)

    async def close(self, limit: float) -> None:
        """Mark no further tasks and wait for the current statement.

        Args:
            limit: maximum wait in seconds.
        """
        self._closed = True
        if isinstance(self.timer, asyncio.Task):
            await asyncio.wait([self.timer], timeout=limit)
        elif self.timer is not None:
            self.timer.cancel()

    def _check_in(self, seconds: float) -> None:
        self.timer = None if self._closed else asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self.timer, before = None, time.monotonic() - QUICK
        unmarked = [each for each in self._running() if each.prefetched and each.started and not each.settled]
        batch = [running for running in unmarked if running.started <= before]
        if batch:
            self.timer = asyncio.ensure_future(self._mark(batch[:CHUNK], more=len(batch) > CHUNK))
        elif unmarked:
            self._check_in(QUICK)

    async def _mark(self, batch: list[Running], more: bool) -> None:
        now = time.monotonic()
        starts = [Start(running.task.id, running.task.fence, running.started - now) for running in batch]
        try:
            await self._database.write_single(mark_started, self._runner_id(), starts)
        except StoreError as error:
            log.warning("could not mark %d tasks as started: %s", len(batch), error)
            self._check_in(RETRY)
        else:
            for running in batch:
                running.prefetched = False  # its attempt counts from the mark
                running.task = running.task._replace(address=None)  # the row has a new address
            self._check_in(0.0 if more else QUICK)


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
        on_open: called with each handler whose breaker is open after a report.
    """

    def __init__(self, database: Database, on_open: Callable[[str], None]) -> None:
        self._database = database
        self._on_open = on_open
        self.probes: dict[int, Probe] = {}
        """The round of each probe in flight by task id, from the claims of the runner."""
        self._on_closed: Callable[[], None] = lambda: None
        self._ends: dict[str, _Ends] = {}
        self._job: asyncio.Task[None] | None = None

    def connect(self, probes: dict[int, Probe], on_closed: Callable[[], None]) -> None:
        """Connect the claims of the runner.

        Args:
            probes: the round of each probe in flight by task id, which `add` removes.
            on_closed: called when a report has closed a breaker, so that waiting tasks start.
        """
        self.probes, self._on_closed = probes, on_closed

    def add(self, running: Running, verb: str | None, settlement: Settlement) -> None:
        """Add the end of an attempt whose outcome is written.

        Args:
            running: the task.
            verb: the resulting move; None if the runner had lost the task.
            settlement: its settlement.
        """
        probe, effect = self.probes.pop(running.task.id, None), settlement.effect
        if verb is None or not (effect or probe):
            return
        ends = self._ends.setdefault(running.task.handler, _Ends())
        if effect:
            failure = getattr(settlement.outcome, "failure", None)
            why = failure.reason if failure is not None else "a failure"
            ends.failed = why
            ends.opens = why if effect == "opens" else ends.opens
        if probe is not None and verb in ANSWERS:
            (ends.missed if effect else ends.passed).add(probe)
        if self._job is None or self._job.done():
            self._job = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        await asyncio.sleep(0)  # the other ends of the same batch
        while self._ends:
            name = next(iter(self._ends))
            report = self._ends.pop(name).report(name)
            try:
                result = await self._database.write(review, report)
            except StoreError as error:
                # The next failure is reported again, and the next probes start after the wait of this round.
                breaker_log.warning("could not report to the breaker of %s: %s", one_line(name), error)
            else:
                self._apply(name, result)

    def _apply(self, name: str, result: Review) -> None:
        match result.change:
            case "opened":
                breaker_log.warning("breaker of %s opened: %s", one_line(name), one_line(result.why))
            case "waits":
                breaker_log.warning("probe of %s failed: the next one starts in %s", one_line(name), result.why)
            case "closed":
                breaker_log.info("breaker of %s closed: a probe succeeded", one_line(name))
                self._on_closed()
        if result.is_open:
            self._on_open(name)

    async def drain(self, limit: float) -> None:
        """Wait for the reports in progress.

        Args:
            limit: maximum wait in seconds.
        """
        if self._job is not None and not self._job.done():
            await asyncio.wait([self._job], timeout=limit)
