"""Limited claims: when a runner claims from lanes with limits, beside its claims from the others."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from runner.db.database import Database
from runner.engine.slots import Slots
from runner.model.task import Claimed
from runner.policy.claim_order import CLAIM_POLICY
from runner.policy.lanes import Lane, Lanes
from runner.store.claim import Claimant, HandlerDefaults
from runner.store.claim_limited import LimitedLanes, claim_limited, claim_limited_suspect


class Turns(NamedTuple):
    """The limited lanes of a pool, in order.

    Args:
        first: the lanes to claim from before the lanes without limits: their priority is at least as high.
        last: the lanes to claim from after them.
    """

    first: list[Lane]
    last: list[Lane]


class LimitedClaims:
    """The claims of one runner from lanes with limits.

    Args:
        database: the database to claim from.
        lanes: the lanes of the runner.
        defaults: max_attempts and timeout for tasks without their own, by handler name.
        slots_of: returns the pool of a lane's tasks.
    """

    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        defaults: Mapping[str, HandlerDefaults],
        slots_of: Callable[[Lane], Slots],
    ) -> None:
        self._database = database
        self._lanes = lanes
        self._defaults = defaults
        self._slots_of = slots_of
        self._timer: asyncio.TimerHandle | None = None

    def turns(self, slots: Slots) -> Turns:
        """Return the lanes of a pool that may have room."""
        ready = [lane for lane in self._lanes.limited.ready(time.monotonic()) if self._slots_of(lane) is slots]
        rank = CLAIM_POLICY.order.rank
        others = (rank(lane.priority) for lane in self._lanes.places if self._slots_of(lane) is slots)
        best = min(others, default=None) if ready else None
        first = [lane for lane in ready if best is None or rank(lane.priority) <= best]
        return Turns(first, ready[len(first) :])

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
        return result.claimed

    async def claim_suspect(self, who: Claimant, width: int) -> list[Claimed]:
        """Claim a suspect from the lanes with free slots; see `claim_limited_suspect`."""
        lanes = [lane for lane in self._lanes.limited.due if self._slots_of(lane).free]
        if not lanes:
            return []
        request = LimitedLanes(lanes, self._lanes.start)
        return await self._database.write(claim_limited_suspect, who, request, self._defaults, width)
