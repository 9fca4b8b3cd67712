"""suspect_claims: when a runner claims tasks that may have killed their runner, and how many at the same time."""

import random
import time
from collections.abc import Callable, Collection, Mapping

from runner.db.database import Database
from runner.db.errors import part_fault
from runner.engine.claiming.claims import Claims
from runner.engine.in_flight import InFlight
from runner.engine.slots import Slots
from runner.engine.stuck_rows import SessionEnds
from runner.errors import StoreError
from runner.model.task import Claimed
from runner.policy.lanes import Lane, lane_of
from runner.policy.polling import Pace
from runner.policy.positions import LanePosition
from runner.policy.selection import listed
from runner.policy.suspicion import ALONE, OLDEST_FIRST, WIDTHS, Ask, Proof, Suspect, first, is_suspect, more, width
from runner.store.claim.plain import Claimant, claim_suspect, first_due

MAX_PAUSE = 2.0
"""Maximum pause between two claims of suspects in a busy runner, in seconds."""


class SuspectClaims:
    """Claims the suspects of one runner in groups; see runner.policy.suspicion.

    Other tasks would take every slot of a busy runner. Suspects therefore come before the next other tasks as soon as
    their group has room again, and otherwise about once a second.

    Args:
        claims: the claims of the runner.
        proof: time that a suspect runs before the next one may start.
        allowed: returns True unless this runner must rescue the tasks of lost runners first.
    """

    def __init__(self, database: Database, claims: Claims, proof: Proof, allowed: Callable[[], bool]) -> None:
        self._database, self._claims = database, claims
        self._in_flight = claims.in_flight
        self._proof = proof
        self._allowed = allowed
        self._session_ends = SessionEnds()
        self._paces = {slots: Pace(most=MAX_PAUSE) for slots in self._in_flight.pools}
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

    async def _claim(self, ask: Ask, pools: Collection[Slots]) -> list[Claimed]:
        claims = self._claims

        def may_start(lane: Lane) -> bool:
            return claims.slots_of(lane) in pools and claims.room_of(lane.handler) != 0

        lanes = claims.lanes.first(claims.lanes.heads, may_start)
        ask = ask._replace(limit=claims.limited.within_rooms(lanes, min(ask.limit, claims.scope.room)))
        who = claims.current_claimant
        if not lanes or ask.limit <= 0 or not claims.may_claim:
            return []
        with claims.pending():
            try:
                claimed = await self._claim_of(who, lanes, ask, may_start)
            except StoreError as error:
                claimed = await self._claim_each(who, lanes, ask, may_start, error)
            self._session_ends.reset()
            claims.stuck.suspects_claimed(task.id for task in claimed)
            for task in claimed:
                claims.take([task], claims.slots_of(lane_of(task)), alone=True)
        return claimed

    async def _claim_of(
        self, who: Claimant, lanes: Mapping[Lane, LanePosition], ask: Ask, may_start: Callable[[Lane], bool]
    ) -> list[Claimed]:
        """Claim from the lanes without limits, and if they have no suspect, from the others."""
        claimed = await self._database.write(claim_suspect, who, lanes, self._claims.defaults, ask)
        return claimed or await self._claims.limited.claim_suspect(who, may_start, ask)

    async def _claim_each(
        self,
        who: Claimant,
        lanes: Mapping[Lane, LanePosition],
        ask: Ask,
        may_start: Callable[[Lane], bool],
        error: StoreError,
    ) -> list[Claimed]:
        """Claim suspects one by one after a claim that failed because of one of them; otherwise raise its error."""
        if self._session_ends.fault_of(error) is None:
            raise error
        due = await self._database.read(first_due, who, lanes, ask.limit, suspects=True)
        if not due:
            raise error
        claimed: list[Claimed] = []
        for suspect in due:
            one = who._replace(selection=who.selection._replace(only=listed([suspect.id])))
            try:
                claimed += await self._claim_of(one, lanes, ask._replace(limit=1), may_start)
            except StoreError as single:
                if (fault := part_fault(single)) is not None:
                    self._claims.stuck.refuse_suspect(suspect, fault)
                elif claimed:  # the next claim meets the error again
                    break
                else:
                    raise
        return claimed

    def _unproven(self) -> list[Suspect]:
        return self._proof.unproven(suspects(self._in_flight))

    def _room(self, pools: Collection[Slots]) -> int:
        """The smallest number of tasks to claim for these pools, at most the batch size."""
        return max(0, min([self._claims.batch, *(slots.room() for slots in pools)]))


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
