"""suspect_claims: when a runner claims tasks that may have killed their runner, and how many at the same time."""

import random
import time
from collections.abc import Awaitable, Callable, Collection

from runner.engine.slots import InFlight, Slots
from runner.model.task import Claimed
from runner.policy.polling import Pace
from runner.policy.suspicion import ALONE, OLDEST_FIRST, WIDTHS, Ask, Proof, Suspect, first, is_suspect, more, width

MAX_PAUSE = 2.0
"""Maximum pause between two claims of suspects in a busy runner, in seconds."""


class SuspectClaims:
    """Claims the suspects of one runner in groups; see runner.policy.suspicion.

    Other tasks would take every slot of a busy runner. Suspects therefore come before the next other tasks as soon as
    their group has room again, and otherwise about once a second.

    Args:
        claim: claims suspects for some pools.
        in_flight: the tasks of the runner, and its pools.
        batch: maximum number of tasks per claim.
        proof: time that a suspect runs before the next one may start.
        allowed: returns True unless this runner must rescue the tasks of lost runners first.
    """

    def __init__(
        self,
        claim: Callable[[Ask, Collection[Slots]], Awaitable[list[Claimed]]],
        in_flight: InFlight,
        batch: int,
        proof: Proof,
        allowed: Callable[[], bool],
    ) -> None:
        self._claim = claim
        self._in_flight = in_flight
        self._batch = batch
        self._proof = proof
        self._allowed = allowed
        self._paces = {slots: Pace(most=MAX_PAUSE) for slots in in_flight.pools}
        self._stale: set[Slots] = set()
        """Pools that got other tasks since the last claim of suspects for them."""
        self._draw = random.random
        self._expected = True
        """False if the last claim found no suspect, so that the next one needs a single statement."""
        self._oldest_next = False
        """True while the oldest suspect waits for its group: no younger one starts, until it has its turn."""
        self._group = 0
        """Unproven suspects after the last claim; more may be due."""

    @property
    def may_follow(self) -> bool:
        """True if the group has room again, and more suspects may be due."""
        return self._group > 0 and len(self._unproven()) < self._group

    @property
    def rest(self) -> bool:
        """True if the last claim found none: without a lane that a survey has found, the next one finds none either."""
        return self._group == 0

    def record_others(self) -> None:
        """Record that other tasks were claimed."""
        self._stale.update(self._in_flight.pools)

    async def claim_if_due(self) -> None:
        """Claim the suspects that come before the next other tasks, if it is their turn."""
        now, all_pools = time.monotonic(), self.may_follow
        due = [slots for slots, pace in self._paces.items() if slots in self._stale and pace.is_due(now)]
        if all_pools or due:
            await self.claim(None if all_pools else due)

    async def claim(self, pools: Collection[Slots] | None = None) -> None:
        """Claim the suspects that may run now, of some pools or of all."""
        pools = [slots for slots in (self._in_flight.pools if pools is None else pools) if slots.room() > 0]
        if not pools or not self._allowed():
            return
        started, claimed = time.monotonic(), await self._claim_first(pools)
        self._group = len(claimed)
        while claimed:
            await self._claim(more(self._unproven(), width_of(claimed[0]), self._room(pools)), pools)
            claimed = await self._claim_first(pools)
        self._group = max(self._group, len(self._unproven()))
        self._stale.difference_update(pools)
        for slots in pools:
            self._paces[slots].record(started, time.monotonic())

    async def _claim_first(self, pools: Collection[Slots]) -> list[Claimed]:
        """Claim the next suspect: from the widest groups if there is one, but often enough the oldest of all."""
        unproven, room = self._unproven(), self._room(pools)
        if not first(unproven, room).limit:
            return []
        self._oldest_next = self._oldest_next or not self._expected or self._draw() < OLDEST_FIRST
        claimed: list[Claimed] = []
        for among in (ALONE,) if self._oldest_next else WIDTHS:
            claimed = claimed or await self._claim(first(unproven, room, among), pools)
        self._oldest_next &= not claimed and bool(unproven)
        self._expected = bool(claimed or unproven)
        return claimed

    def _unproven(self) -> list[Suspect]:
        return self._proof.unproven(suspects(self._in_flight))

    def _room(self, pools: Collection[Slots]) -> int:
        """The smallest number of tasks to claim for these pools, at most the batch size."""
        return max(0, min([self._batch, *(slots.room() for slots in pools)]))


def suspects(in_flight: InFlight) -> list[Suspect]:
    """Return the tasks in flight that may have killed their last runner."""
    now = time.monotonic()
    return [
        Suspect(width_of(running.task), now - running.started if running.started else 0.0)
        for running in in_flight.tasks.values()
        if running.task.rescues
        and is_suspect(running.task.rescues, _attempts_left(running.task), running.task.attempt - 1)
    ]


def width_of(task: Claimed) -> int:
    """Return the maximum number of suspects that may run together with this one."""
    return width(task.rescues, _attempts_left(task))


def _attempts_left(task: Claimed) -> int:
    """Return the number of attempts left before the claim."""
    return task.max_attempts - task.attempt + 1
