"""Limited claims: when a runner claims from lanes with limits, beside its claims from the others.

A handler with a limit per runner has claims of its own, so that its tasks never take the slots of others.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from runner.db.database import Database
from runner.engine.slots import Slots
from runner.model.task import Claimed
from runner.policy.claim_policy import QueueShares
from runner.policy.lanes import Lane, LanePosition, Lanes
from runner.policy.rate import MOST
from runner.policy.suspicion import Ask
from runner.store.claim import Claimant, HandlerDefaults
from runner.store.claim_limited import LimitedLanes, claim_limited, claim_limited_suspect

if TYPE_CHECKING:
    from runner.policy.breaker import Probe


LOOK_AGAIN = 0.05
"""Seconds until tasks without a tenant have a turn again in a lane that had none."""


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
        self._with_tenants: dict[Lane, float] = {}
        """Until when claims look for tasks without a tenant last, by lane, in monotonic seconds."""
        self._counts = True
        """False if the last claim used no limit that counts running tasks."""
        self.probes: dict[int, Probe] = {}
        """The round of each task in flight that probes for an open breaker, by task id."""

    def turns(self, slots: Slots) -> list[Turn]:
        """Return the claims of a pool in order: limited lanes first, unless a lane of another priority comes before."""
        unlimited = list(Lanes.first(self._lanes.positions, lambda lane: self._slots_of(lane) is slots))
        ready = [lane for lane in self._lanes.limited.ready(time.monotonic()) if self._slots_of(lane) is slots]
        if not ready:
            return self._divided(unlimited)
        key, best = self._lanes.key, min(unlimited, key=self._lanes.key, default=None)
        first = [lane for lane in ready if best is None or lane.priority == best.priority or key(lane) < key(best)]
        last = [lane for lane in ready if lane not in first]
        return [*self._divided(first, limited=True), *self._divided(unlimited), *self._divided(last, limited=True)]

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
        # Without other lanes to claim from, waiting for another runner's claim costs nothing.
        patient, now = not self._lanes.positions, time.monotonic()
        self._with_tenants = {lane: until for lane, until in self._with_tenants.items() if until > now}
        without_others = self._with_tenants.keys()
        request = LimitedLanes(lanes, self._lanes.start, schedule.cursors, patient, without_others, self._counts)
        result = await self._database.write_prepared(claim_limited, who, request, self._defaults, limit, starts)
        self._counts = result.counts
        self._with_tenants |= dict.fromkeys(result.with_tenants, now + LOOK_AGAIN)
        schedule.record(lanes, result.waits, result.empty, result.cursors, time.monotonic())
        self.probes |= result.probes
        return result.claimed

    def within_rooms(self, lanes: Mapping[Lane, LanePosition], tasks: int) -> int:
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
        request = LimitedLanes(lanes, self._lanes.start)
        result = await self._database.write_prepared(claim_limited_suspect, who, request, self._defaults, ask)
        self.probes |= result.probes
        return result.claimed
