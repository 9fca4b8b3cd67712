"""Limited claims: when a runner claims from lanes with limits, beside its claims from the others.

A handler with a limit per runner has claims of its own, so that its tasks never take the slots of others.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.db.database import Database
from runner.engine.slots import Running, Slots
from runner.errors import StoreError
from runner.model.task import Claimed
from runner.policy.breaker import Probe
from runner.policy.fairness import QueueShares
from runner.policy.lanes import Lane, LanePosition, Lanes
from runner.policy.rate import MOST
from runner.store.attempts import Report, Review, review
from runner.store.claim import Claimant, HandlerDefaults
from runner.store.claim_limited import LimitedLanes, claim_limited, claim_limited_suspect
from runner.store.settle import Settlement
from runner.text.sanitize import one_line


class Turn(NamedTuple):
    """Lanes to claim from with one claim.

    Args:
        lanes: the lanes, in order.
        limited: True if they have limits over all runners.
        most: maximum number of tasks, from the limit per runner of their handler.
    """

    lanes: list[Lane]
    limited: bool = False
    most: int = MOST

    def divided(self, shares: QueueShares | None, room: int) -> list["Turn"]:
        """Divide a turn of lanes without limits between their queues.

        Args:
            shares: the shares of the queues; None if the order has no weights.
            room: number of tasks to claim.
        """
        room = min(room, self.most)
        if shares is None or self.limited or room <= 0:
            return [self]
        return [self._replace(lanes=lanes, most=tasks) for lanes, tasks in shares.divide(self.lanes, room)]


class LimitedClaims:
    """The claims of one runner from lanes with limits.

    Args:
        database: the database to claim from.
        lanes: the lanes of the runner.
        defaults: max_attempts and timeout for tasks without their own, by handler name.
        slots_of: returns the pool of a lane's tasks.
        room_of: returns the number of tasks that a handler's limit per runner still allows; None without one.
    """

    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        defaults: Mapping[str, HandlerDefaults],
        slots_of: Callable[[Lane], Slots],
        room_of: Callable[[str], int | None],
    ) -> None:
        self._database = database
        self._lanes = lanes
        self._defaults = defaults
        self._slots_of = slots_of
        self._room_of = room_of
        self._timer: asyncio.TimerHandle | None = None
        self.probes: dict[int, Probe] = {}
        """The round of each task in flight that probes for an open breaker, by task id."""

    def turns(self, slots: Slots) -> list[Turn]:
        """Return the claims of a pool in order: limited lanes first, unless a lane of another priority comes before."""
        places = list(Lanes.first(self._lanes.places, lambda lane: self._slots_of(lane) is slots))
        ready = [lane for lane in self._lanes.limited.ready(time.monotonic()) if self._slots_of(lane) is slots]
        if not ready:
            return self._divided(places)
        key, best = self._lanes.key, min(places, key=self._lanes.key, default=None)
        first = [lane for lane in ready if best is None or lane.priority == best.priority or key(lane) < key(best)]
        last = [lane for lane in ready if lane not in first]
        return [*self._divided(first, limited=True), *self._divided(places), *self._divided(last, limited=True)]

    def _divided(self, lanes: list[Lane], limited: bool = False) -> list[Turn]:
        """One turn for each handler with a limit per runner that has room, and one for all others."""
        rooms = {lane.handler: self._room_of(lane.handler) for lane in lanes}
        others = [lane for lane in lanes if rooms[lane.handler] is None]
        turns = [Turn(others, limited)] if others else []
        for handler, room in rooms.items():
            if room is not None and room > 0:
                turns.append(Turn([lane for lane in lanes if lane.handler == handler], limited, room))
        return turns

    def schedule(self, scan: Callable[[], None], context: contextvars.Context) -> None:
        """Call `scan` when the first lane without room may have some, in place of an earlier call."""
        if self._timer is not None:
            self._timer.cancel()
        wait, loop = self._lanes.limited.wait(time.monotonic()), asyncio.get_running_loop()
        self._timer = None if wait is None else loop.call_later(wait, scan, context=context)

    async def claim(self, who: Claimant, lanes: list[Lane], limit: int, starts: bool) -> list[Claimed]:
        """Claim from these lanes, and record which of them have no room or no tasks; see `claim_limited`."""
        schedule = self._lanes.limited
        request = LimitedLanes(lanes, self._lanes.start, schedule.cursors)
        result = await self._database.write(claim_limited, who, request, self._defaults, limit, starts)
        schedule.record(lanes, result.waits, result.empty, result.cursors, time.monotonic())
        self.probes |= result.probes
        return result.claimed

    def may_start(self, lane: Lane) -> bool:
        """True if a task of a lane has a free slot now, and its handler has room in this runner."""
        return self._slots_of(lane).free and self._room_of(lane.handler) != 0

    def within_rooms(self, lanes: Mapping[Lane, LanePosition], tasks: int) -> int:
        """Reduce a number of tasks so that any part of them fits in the limit per runner of each handler."""
        rooms = (self._room_of(lane.handler) for lane in lanes)
        return min([tasks, *(room for room in rooms if room is not None)])

    async def claim_suspect(self, who: Claimant, width: int) -> list[Claimed]:
        """Claim a suspect from the lanes that have room in this runner; see `claim_limited_suspect`."""
        has_limits = self._lanes.limited.has_limits
        # Also lanes in which the last claim found no other tasks: these are no longer due.
        lanes = list(Lanes.first(self._lanes.known, lambda lane: has_limits(lane) and self.may_start(lane)))
        if not lanes:
            return []
        request = LimitedLanes(lanes, self._lanes.start)
        result = await self._database.write(claim_limited_suspect, who, request, self._defaults, width)
        self.probes |= result.probes
        return result.claimed


log = logging.getLogger("runner.breaker")

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
        self._probes: dict[int, Probe] = {}
        self._on_closed: Callable[[], None] = lambda: None
        self._ends: dict[str, _Ends] = {}
        self._job: asyncio.Task[None] | None = None

    def connect(self, probes: dict[int, Probe], on_closed: Callable[[], None]) -> None:
        """Connect the claims of the runner.

        Args:
            probes: the round of each probe in flight by task id, which `add` removes.
            on_closed: called when a report has closed a breaker, so that waiting tasks start.
        """
        self._probes, self._on_closed = probes, on_closed

    def add(self, running: Running, verb: str | None, settlement: Settlement | None = None) -> None:
        """Add the end of an attempt whose outcome is written.

        Args:
            running: the task.
            verb: the resulting move; None if the runner had lost the task.
            settlement: its settlement; None for a success in the handler's own transaction.
        """
        probe = self._probes.pop(running.task.id, None) if self._probes else None
        effect = settlement.effect if settlement is not None else ""
        if verb is None or not (effect or probe):
            return
        ends = self._ends.setdefault(running.task.handler, _Ends())
        if effect:
            failure = getattr(settlement.outcome, "failure", None) if settlement is not None else None
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
                log.warning("could not report to the breaker of %s: %s", one_line(name), error)
            else:
                self._apply(name, result)

    def _apply(self, name: str, result: Review) -> None:
        match result.change:
            case "opened":
                log.warning("breaker of %s opened: %s", one_line(name), one_line(result.why))
            case "waits":
                log.warning("probe of %s failed: the next one starts in %s", one_line(name), result.why)
            case "closed":
                log.info("breaker of %s closed: a probe succeeded", one_line(name))
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
