"""Limited claims: when a runner claims from lanes with limits, beside its claims from the others.

A handler with a limit per runner has claims of its own, so that its tasks never take the slots of others.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from runner.db.database import Database
from runner.db.row_locks import locks_of
from runner.engine.slots import Slots
from runner.errors import StoreError
from runner.model.stuck_row import HeldLock
from runner.model.task import Claimed
from runner.policy.lanes import FULL, LOOK_AGAIN, Lane, Lanes, LimitName, lane_of
from runner.policy.positions import LanePosition, TenantPositions
from runner.policy.queue_shares import QueueShares
from runner.policy.rate import MAX_LIMIT
from runner.policy.suspicion import Ask
from runner.store.claim.limited import (
    BUSY,
    LimitedClaim,
    LimitedLanes,
    claim_limited,
    claim_limited_suspect,
)
from runner.store.claim.plain import Claimant, HandlerDefaults
from runner.store.claim.running_count import LastCount
from runner.text.sanitize import one_line
from runner.text.stuck_row import lock_text

if TYPE_CHECKING:
    from runner.policy.breaker import Probe

log = logging.getLogger("runner.claim")


BUSY_TRIES, NAMED_TRIES = 5, 14
"""Claims in a row that find a limit locked before their pause doubles, and before the log names it: 3 seconds."""

UNKNOWN = "another transaction locks the limits of queue {} or handler {} in task_queue or task_handler for seconds"
HELD = "%s: the tasks of this limit wait, others do not"

COUNT_EVERY = 300.0
"""Seconds between two full counts while surveys are slow, for running tasks that other programs change or add."""


class Turn(NamedTuple):
    """Lanes to claim from with one claim.

    Args:
        limited: True if they have limits over all runners.
        most: maximum number of tasks, from the limit per runner and the chunks of their handler.
        chunks: True if the tasks form chunks, so that the number of free slots does not bound them.
    """

    lanes: list[Lane]
    limited: bool = False
    most: int = MAX_LIMIT
    chunks: bool = False

    def divided(self, shares: QueueShares | None, room: int) -> list["Turn"]:
        """Divide a turn of lanes without limits between their queues.

        Args:
            shares: the shares of the queues; None if the order has no weights.
            room: number of tasks to claim.
        """
        room = self.most if self.chunks else min(room, self.most)
        if shares is None or self.limited or room <= 0:
            return [self]
        return [self._replace(lanes=lanes, most=tasks) for lanes, tasks in shares.divide(self.lanes, room)]


def reached_by(claimed: Iterable[Claimed]) -> dict[Lane, LanePosition]:
    """The position that a claim has reached in each lane; its tasks are in order within each lane."""
    return {lane_of(task): LanePosition(task.run_at, task.id) for task in claimed}


def _least(*rooms: int | None) -> int | None:
    return min((room for room in rooms if room is not None), default=None)


class LimitedClaims:
    """The claims of one runner from lanes with limits.

    Args:
        defaults: max_attempts and timeout for tasks without their own, by handler name.
        slots_of: returns the pool of a lane's tasks.
        room_of: returns the number of tasks that a handler's limit per runner still allows; None without one.
        chunk_room_of: returns the number of tasks that the chunks of a handler still take; None without chunks.
        probes: receives the round of each task that probes for an open breaker, by task id.
    """

    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        defaults: Mapping[str, HandlerDefaults],
        slots_of: Callable[[Lane], Slots],
        room_of: Callable[[str], int | None],
        chunk_room_of: Callable[[str], int | None],
        probes: "dict[int, Probe]",
    ) -> None:
        self._database = database
        self._lanes = lanes
        self._defaults = defaults
        self._slots_of = slots_of
        self._room_of, self._chunk_room_of = room_of, chunk_room_of
        self._busy: dict[Lane, int] = {}
        """Claims in a row that found the limits of a lane locked."""
        self._with_tenants: dict[Lane, float] = {}
        """Until when claims look for tasks without a tenant last, by lane, in monotonic seconds."""
        self._others: dict[Lane, LanePosition] = {}
        """The positions after which claims look for tasks without a tenant, by lane; see LimitedLanes."""
        self._counts = True
        """False if the last claim used no limit that counts running tasks."""
        self._walks: dict[Lane, int] = {}
        """The maximum number of tenants to visit in the first round trip of a claim, by lane."""
        self._last: dict[LimitName, LastCount] | None = None
        """The last counts of the running tasks by limit, while surveys are slow; None to count all of them."""
        self._count_at = 0.0
        """When to count all of them again, in monotonic seconds."""
        self._probes = probes

    def turns(self, slots: Slots) -> list[Turn]:
        """Return the claims of a pool in the order of their first tasks, so that a backlog leaves turns to others."""
        unlimited = list(Lanes.first(self._lanes.positions, lambda lane: self._slots_of(lane) is slots))
        ready = [lane for lane in self._lanes.limited.ready(time.monotonic()) if self._slots_of(lane) is slots]
        if not ready:
            return self._divided(unlimited)
        key, best = self._lanes.key, min(map(self._lanes.key, unlimited), default=None)
        first = [lane for lane in ready if best is None or key(lane) < best]
        last = [lane for lane in ready if best is not None and key(lane) >= best]
        return [*self._divided(first, limited=True), *self._divided(unlimited), *self._divided(last, limited=True)]

    def _divided(self, lanes: list[Lane], limited: bool = False) -> list[Turn]:
        """One turn for each handler with a limit per runner or chunks that has room, one for all others, in order."""
        chunks = {lane.handler: self._chunk_room_of(lane.handler) for lane in lanes}
        rooms = {handler: _least(self._room_of(handler), chunks[handler]) for handler in chunks}
        others = [lane for lane in lanes if rooms[lane.handler] is None]
        turns = [Turn(others, limited)] if others else []
        if len(others) == len(lanes):
            return turns
        for handler, room in rooms.items():
            if room is not None and room > 0:
                own = [lane for lane in lanes if lane.handler == handler]
                turns.append(Turn(own, limited, room, chunks[handler] is not None))
        return sorted(turns, key=lambda turn: min(map(self._lanes.key, turn.lanes)))

    async def claim(
        self, who: Claimant, lanes: list[Lane], limit: int, starts: bool, *, from_start: bool
    ) -> list[Claimed]:
        """Claim from these lanes, and record which of them have no room or no tasks; see `claim_limited`.

        Args:
            from_start: False to continue from the old position of each lane.
        """
        schedule = self._lanes.limited
        # Without other lanes to claim from, waiting for another runner's claim costs nothing.
        patient, now = not self._lanes.positions, time.monotonic()
        self._with_tenants = {lane: until for lane, until in self._with_tenants.items() if until > now}
        without_others = self._with_tenants.keys()
        if from_start:
            schedule.tenants.clear()
        passed = {} if from_start else self._lanes.passed(lanes)
        request = LimitedLanes(
            lanes,
            self._lanes.start,
            schedule.cursors,
            patient,
            without_others,
            self._others,
            self._counts,
            passed,
            schedule.tenants,
            self._walks,
            self._last_counts(now, from_start=from_start),
        )
        schedule.begin()
        result = await self._database.write(claim_limited, who, request, self._defaults, limit, starts)
        self._counts = result.counts
        if self._last is not None:
            counts = {**self._last, **result.last}
            self._last = {limit: each for limit, each in counts.items() if each.is_recent(now)}
        self._walks = {lane: most for lane, most in self._walks.items() if lane in schedule.due} | result.walks
        await self._report_locked(self._pause_busy(lanes, result))
        self._with_tenants |= dict.fromkeys(result.others, now + LOOK_AGAIN)
        others = self._others | result.others
        self._others = {lane: at for lane, at in others.items() if at is not None and lane in schedule.due}
        further = [lane for lane, at in result.others.items() if at is not None]
        schedule.record(lanes, result.waits, result.empty, result.cursors, time.monotonic(), further)
        if not from_start:
            self._record_tenants(result)
        in_order = [task for task in result.claimed if lane_of(task) not in result.cursors]  # turns leave tasks behind
        reached = reached_by(in_order)
        self._lanes.advance(reached, time.monotonic())
        for lane in reached:
            schedule.tenants.pop(lane, None)
        self._probes |= result.probes
        return result.claimed

    def _record_tenants(self, result: LimitedClaim) -> None:
        """Record the positions that a claim has passed, by tenant."""
        now, tenants = time.monotonic(), self._lanes.limited.tenants
        for lane, visits in result.visits.items():
            tenants.setdefault(lane, TenantPositions(self._lanes.start)).meet(visits, now)
        for task in result.claimed:
            if task.tenant is not None and (positions := tenants.get(lane_of(task))) is not None:
                positions.advance(task.tenant, LanePosition(task.run_at, task.id), now)

    def _last_counts(self, now: float, *, from_start: bool) -> Mapping[LimitName, LastCount] | None:
        """The counts from which the next claim continues; see RunningCount."""
        if from_start:
            self._last = None
        elif self._last is None or now >= self._count_at:
            last, self._count_at = self._last or {}, now + COUNT_EVERY
            self._last = {key: each._replace(locked_at=0.0, older=frozenset()) for key, each in last.items()}
        return self._last

    def _pause_busy(self, lanes: list[Lane], result: LimitedClaim) -> list[Lane]:
        """Try lanes less often whose limits stay locked: a claim holds them for milliseconds, a person for longer.

        Returns:
            The lanes to name in the log.
        """
        busy = {lane for lane, wait in result.waits.items() if wait == BUSY}
        others = {lane: tries for lane, tries in self._busy.items() if lane not in lanes}
        mine = {lane: self._busy.get(lane, 0) + 1 for lane in busy}
        self._busy = others | mine
        for lane, tries in mine.items():
            result.waits[lane] = min(FULL, BUSY * 2.0 ** max(0, tries - BUSY_TRIES))
        return [lane for lane, tries in mine.items() if tries == NAMED_TRIES]

    async def _report_locked(self, lanes: list[Lane]) -> None:
        """Log each locked row of a limit, and the session that locks it."""
        if not lanes:
            return
        tables, locks = self._database.tables, list[HeldLock]()
        with suppress(StoreError):
            for table, names in (
                (tables.queue, {each.queue for each in lanes}),
                (tables.handler, {each.handler for each in lanes}),
            ):
                sessions = await self._database.read(locks_of, table.c.name, sorted(names))
                locks += [HeldLock(table.name, name, session) for name, session in sessions.items()]
        keys = {lock.key for lock in locks}
        unknown = (lane for lane in lanes if keys.isdisjoint((lane.queue, lane.handler)))
        texts = [UNKNOWN.format(one_line(lane.queue), one_line(lane.handler)) for lane in unknown]
        for text in [*map(lock_text, locks), *texts]:
            log.warning(HELD, text)

    async def claim_part(self, who: Claimant, lanes: list[Lane], limit: int, starts: bool) -> list[Claimed] | None:
        """Claim the only tasks of a selection from these lanes, all or none; None if a lane has no room for them."""
        request = LimitedLanes(lanes, self._lanes.start)
        result = await self._database.write(claim_limited, who, request, self._defaults, limit, starts)
        self._probes |= result.probes
        return result.claimed or (None if result.waits else [])

    def within_rooms(self, lanes: Iterable[Lane], tasks: int) -> int:
        """Reduce a number of tasks so that any part of them fits in the limit per runner of each handler."""
        rooms = (self._room_of(lane.handler) for lane in lanes)
        return min([tasks, *(room for room in rooms if room is not None)])

    async def claim_suspect(self, who: Claimant, may_start: Callable[[Lane], bool], ask: Ask) -> list[Claimed]:
        """Claim a suspect from the lanes with limits that may start a task; see `claim_limited_suspect`."""
        has_limits = self._lanes.limited.has_limits
        # Also lanes in which the last claim found no other tasks: these are no longer due.
        lanes = list(Lanes.first(self._lanes.heads, lambda lane: has_limits(lane) and may_start(lane)))
        if not lanes:
            return []
        request = LimitedLanes(lanes, self._lanes.start, last=self._last)
        result = await self._database.write(claim_limited_suspect, who, request, self._defaults, ask)
        self._probes |= result.probes
        return result.claimed
