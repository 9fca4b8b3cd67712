"""Claimer: scans for due tasks and claims as many as fit."""

import asyncio
import contextlib
import contextvars
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from runner.db.database import Database
from runner.db.errors import outage
from runner.engine.claiming.claims import Claims
from runner.engine.claiming.limited_claims import Turn, reached_by
from runner.engine.claiming.part_claims import PartClaims
from runner.engine.claiming.scan_state import Gate, ScanState
from runner.engine.claiming.survey import LaneSurvey
from runner.engine.claiming.survey_beside import SurveyBeside
from runner.engine.claiming.suspect_claims import SuspectClaims
from runner.engine.events import AttemptsEnded, Events, RoomFreed
from runner.engine.slots import Slots
from runner.errors import DatabaseUnavailable, StoreError
from runner.model.task import Claimed
from runner.own_code import fault_text, is_cancelled
from runner.policy.claim_order import WeightedOrder
from runner.policy.lanes import Lane
from runner.policy.positions import LanePosition
from runner.policy.queue_shares import QueueShares
from runner.policy.retry import BackOff
from runner.policy.suspicion import Proof
from runner.resource_limits import reached_limit
from runner.store.claim.next_due import claim_with_next_due
from runner.store.claim.plain import Claimant, claim

log = logging.getLogger("runner.claim")

PARTS_PAUSE = 0.01
"""The shortest time between two scans for tasks that are left out, in seconds."""

OTHERS_EVERY = 1.0
"""Seconds between two looks for tasks in other lanes, after one that saw a task for which a survey found no lane."""

LINGER = 0.005
"""Seconds to wait for more free slots before a claim when only a few are free."""


class Claimer:
    """Claims tasks for one runner.

    Args:
        claims: the claims of the runner.
        proof: time that a suspect runs before the next one may start.
        answer: returns the seconds after which an idle database answers.
        may_claim_suspects: returns True unless this runner must rescue the tasks of lost runners first.
        events: has the ends of tasks that make room for others.
    """

    def __init__(
        self,
        database: Database,
        claims: Claims,
        proof: Proof,
        *,
        answer: Callable[[], float],
        may_claim_suspects: Callable[[], bool],
        events: Events,
    ) -> None:
        self._database, self.claims = database, claims
        self.scope, self.lanes, self.limited = claims.scope, claims.lanes, claims.limited
        self.survey = LaneSurvey(database, self.scope, self.lanes)
        self._beside = SurveyBeside(self.survey, self.scope, answer, self._scan_again)
        self.parts = PartClaims(database, claims)
        self.suspects = SuspectClaims(database, claims, proof, may_claim_suspects)
        order = claims.lanes.order
        self._shares = QueueShares(order.weight) if isinstance(order, WeightedOrder) else None
        self._back_off = BackOff()
        self._retry_at = 0.0
        self.state = ScanState.NEW
        self._scan_done = asyncio.Event()
        self._scan_done.set()
        self._rescan_timer: asyncio.TimerHandle | None = None
        self._next_timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()
        """The context of the runner: a scan that starts when a task ends must not inherit the context of that task."""
        self._reads_next_due = False
        """True if the next claim also reads when tasks in other lanes are due, in place of a survey after it."""
        self._next_due_read_at = 0.0
        """Monotonic seconds before which claims do not read the next due time: a survey found no such lane."""
        self._others_wait: float | None = None
        """Seconds after the last claim until a task in another lane is due; None if it did not read that."""
        self._submitted = False
        """True after a submit, until the next claim, which may not be in progress then, recalls the lanes."""
        events.subscribe(AttemptsEnded, self.tasks_ended)
        events.subscribe(RoomFreed, self.rescan)

    async def scan(self, submitted: bool = False, *, news: bool = True, earlier: bool = False) -> None:
        """Claim due tasks until none are due or no slot is free.

        Args:
            submitted: True after a submit: claim from the recently due lanes before reading all lanes.
            news: False if only the tasks that it expects can have become due since the last scan.
            earlier: True if tasks may be due before the claimed ones: another runner had them.
        """
        self._submitted |= submitted
        self._beside.is_asked |= news
        self._beside.is_early |= earlier
        is_running, self.state = self.state.is_running, ScanState.AGAIN
        if is_running:
            return
        self._scan_done.clear()
        if self._rescan_timer is not None:
            self._rescan_timer.cancel()
            self._rescan_timer = None
        try:
            while self.state is ScanState.AGAIN and self.may_claim():
                self.state, submitted = ScanState.RUNNING, self._recall()
                self.survey.order_keys.record_scan()
                await self._claim_parts()
                await (self._scan_known(submitted) if self._beside.is_needed() else self._scan(submitted))
                self._back_off.reset()
        except BaseException as error:  # a bug, or an own order that exits, must not stop all claiming
            if is_cancelled(error):
                raise
            if not isinstance(error, StoreError):
                log.exception("scan failed")
            self.state = ScanState.AGAIN
            self._beside.ask(early=True)
            wait = self._back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
            self._retry_at = time.monotonic() + wait
            problem = outage(error) if isinstance(error, DatabaseUnavailable) else "claim failed"
            text = str(error) if isinstance(error, StoreError) else fault_text(error)
            log.warning("%s: retrying in %.1f s: %s", problem, wait, reached_limit(error) or text)
        finally:
            self.state = ScanState.IDLE if self.state is ScanState.RUNNING else ScanState.WORK_LEFT
            if self.state is ScanState.IDLE or not self.may_claim():
                for slots in self.claims.in_flight.pools:
                    slots.ask(_nothing)
            if self.state is ScanState.IDLE and self.scope.is_open and self.scope.is_extended:
                self.scope.end()
                self.lanes.restrict(heads=True)
            self._scan_done.set()
            self._schedule_next()

    def rescan(self, _: object = None) -> None:
        """Schedule a scan if due tasks may remain. Call it when a slot is free or the database is back."""
        if self._rescan_timer is not None or self.state.is_running:
            return  # the most frequent case: this is called at the end of each task
        if not (self.state is ScanState.WORK_LEFT or self.suspects.may_follow) or not self.may_claim():
            return
        loop = asyncio.get_running_loop()
        # One claim per finished task costs more than the task: wait briefly for more free slots.
        wait = 0.0 if self._enough_room() else LINGER
        self._rescan_timer = loop.call_later(wait, self._scan_again, context=self._context)

    def _expect_work(self) -> None:
        """Record that tasks may be due of which no submit reports: the next chance begins a scan."""
        self._beside.ask()
        self.state = ScanState.AGAIN if self.state.is_running else ScanState.WORK_LEFT

    def _schedule_next(self) -> None:
        """Scan again when lanes without room may have some, or tasks that are left out may be claimed."""
        if self._next_timer is not None:
            self._next_timer.cancel()
            self._next_timer = None
        now = time.monotonic()
        full, parts = self.lanes.limited.wait(now), self.claims.stuck.wait()
        # Otherwise the next scan decides.
        others = (self._beside.wait(now), self.survey.order_keys.wait(now)) if self.may_claim() else ()
        shortly = (None if wait is None else max(PARTS_PAUSE, wait) for wait in (parts, *others))
        waits = [wait for wait in (full, *shortly) if wait is not None]
        if waits and self.open:
            loop = asyncio.get_running_loop()
            self._next_timer = loop.call_later(min(waits), self._scan_again, context=self._context)

    def _scan_again(self) -> None:
        self._background = asyncio.ensure_future(self.scan(news=False))

    async def close(self, limit: float) -> None:
        """Stop claiming and wait for the current scan.

        Args:
            limit: maximum wait in seconds.
        """
        self.claims.gate = Gate.DRAINING
        self._beside.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._scan_done.wait()

    @property
    def open(self) -> bool:
        """False before the runner is registered and while it drains."""
        return self.claims.gate is Gate.OPEN

    @property
    def idle(self) -> bool:
        """True if no scan is running and the last one claimed all due tasks."""
        return self.state is ScanState.IDLE

    def _enough_room(self) -> bool:
        """True if the slots of a due lane have room for a claim of reasonable size."""
        lanes = (*self.lanes.positions, *self.lanes.limited.ready(time.monotonic()))
        pools = {self.claims.slots_of(lane) for lane in lanes}
        return not pools or any(slots.to_claim(self.claims.batch) >= max(1, slots.size // 4) for slots in pools)

    async def _scan(self, submitted: bool) -> None:
        self._beside.reset()
        now = time.monotonic()
        is_due = self.survey.pace.is_due(now) and not submitted
        surveyed = self.scope.is_new or not self.lanes.has_ready(now) or is_due
        if surveyed:
            await self.survey.run(self.claims.claimant)
        total, self._reads_next_due = 0, submitted and not surveyed
        while self.lanes.has_ready(time.monotonic()) and self.may_claim():
            self._others_wait = None
            self._recall()  # a backlog lets no scan end, and an urgent task must not wait for the next survey
            started = time.monotonic()
            if (claimed_count := await self._claim_round()) is None:
                break
            total += claimed_count
            await asyncio.sleep(0)  # the claimed tasks start, before the runner looks for more
            if surveyed and not total and not self.lanes.has_ready(time.monotonic()):
                # A survey also returns tasks that a claim skips, e.g. suspects: do not loop. Other lanes come next.
                self.survey.skip_untaken(started, time.monotonic())
                if not await self.parts.leave_out_untaken():
                    break
            await self._claim_parts()
            is_dry = not self.lanes.has_ready(time.monotonic())
            if is_dry or self.survey.pace.is_due(time.monotonic()):
                if is_dry and self._is_alone():
                    break
                if self._beside.is_needed():  # the last one was long
                    self._expect_work()
                    break
                await self.survey.run(self.claims.claimant)
                surveyed, total = True, 0
                self._note_survey()
        # A busy runner ends many scans, and each claim of suspects is a statement.
        if self.lanes.heads or not self.suspects.rest:
            await (self.suspects.claim() if self.state is ScanState.RUNNING else self.suspects.claim_if_due())

    async def _scan_known(self, submitted: bool) -> None:
        """Claim from the lanes that lately had due tasks, and let a survey run beside the claims when it is due."""
        self.lanes.recall(from_start=False)
        self.lanes.next_due, self._reads_next_due = None, False  # the surveys beside the claims take care of both
        self.survey.order_keys.record_survey(has_heads=False)
        surveyed, self._beside.has_ended = self._beside.has_ended, False
        total = 0
        while self.lanes.has_ready(time.monotonic()) and self.may_claim():
            self._beside.begin_if_due()  # a backlog lets no scan end
            submitted |= self._recall()
            if (claimed_count := await self._claim_round()) is None:
                break
            total += claimed_count
            await asyncio.sleep(0)
            await self._claim_parts()
        if surveyed and (self.lanes.heads or not self.suspects.rest):
            await self.suspects.claim()
        if surveyed and not total and self.lanes.heads and self.state is ScanState.RUNNING:
            if not self.parts.may_look:
                self._beside.ask()
            elif await self.parts.leave_out_untaken():
                self._expect_work()
        if submitted and not total:
            self._beside.ask(early=True)
        if self.may_claim():
            self._beside.begin_if_due()

    def _is_alone(self) -> bool:
        """True if the claim saw that no task in another lane is due: a survey would find none."""
        wait = self._others_wait
        if wait is None or wait <= 0 or self.survey.pace.is_due(time.monotonic()):
            return False
        self.lanes.leave(None if wait == inf else wait)
        return True

    def _note_survey(self) -> None:
        """Look less often if a survey finds no lane for the task that a claim saw: others take it, or it is paused."""
        now, wait = time.monotonic(), self._others_wait
        if wait is not None and wait <= 0 and not self.lanes.has_ready(now):
            self._next_due_read_at = now + OTHERS_EVERY
        self._reads_next_due, self._others_wait = False, None

    def _may_read_next_due(self, lanes: Mapping[Lane, LanePosition]) -> bool:
        """True if these are all lanes that may be due, each from its start, so that other due tasks are news."""
        return (
            self._reads_next_due
            and self._database.dialect.writing_ctes
            and not self.scope.is_extended
            and lanes.keys() == self.lanes.positions.keys()
            and all(position == self.lanes.start for position in lanes.values())
            and time.monotonic() >= self._next_due_read_at
        )

    def _find_no_room(self) -> None:
        if self.state is ScanState.RUNNING:
            self.state = ScanState.NO_ROOM

    def _recall(self) -> bool:
        if submitted := self._submitted:
            self._submitted = False
            self.lanes.recall(from_start=not self._beside.is_needed())
        return submitted

    def tasks_ended(self, event: AttemptsEnded) -> None:
        """Try the lanes again that wait for the end of such tasks, or have them back; `rescan` follows."""
        for queue, handler in {(running.task.queue, running.task.handler) for running, _ in event.attempts}:
            room = self.claims.room_of(handler)
            # Without room in this runner, its suspects were left out, and no lane remembers them.
            if self.lanes.limited.reopen(queue, handler) or (room is not None and room <= len(event.attempts)):
                self._expect_work()
        if event.verb == "release":
            self._expect_work()
        order_keys = self.survey.order_keys
        if any(running.task.has_order_key for running, _ in event.attempts) and order_keys.record_end():
            if order_keys.wait(time.monotonic()) == 0:
                self._expect_work()
            elif not self.state.is_running:
                self._schedule_next()

    def may_claim(self) -> bool:
        """True while the runner may claim: it does not drain, its lease is valid, and the last error is long ago."""
        return self.claims.may_claim and time.monotonic() >= self._retry_at

    async def _claim_round(self) -> int | None:
        """Claim once per turn and return the number of tasks; None if no due lane has a free slot.

        Suspects come first, unless their last claim was too recent.
        """
        if self.lanes.heads or not self.suspects.rest:
            await self.suspects.claim_if_due()
        counts: list[int | None] = []
        for slots in self._pools():
            room = slots.to_claim(self.claims.batch)
            if room <= 0:
                slots.ask(lambda slots=slots: bool(self.limited.turns(slots)))  # type: ignore[misc] # a default
                continue
            turns = [part for turn in self.limited.turns(slots) for part in turn.divided(self._shares, room)]
            counts += [await self._claim_turn(slots, turn) for turn in turns]
        self.suspects.record_others()
        claimed = [count for count in counts if count is not None]
        if not claimed:
            self._find_no_room()
        return sum(claimed) if claimed else None

    def _pools(self) -> Iterable[Slots]:
        """The pools. Those with shared slots are in the order of their first tasks: the first may take all slots."""
        in_flight, slots_of = self.claims.in_flight, self.claims.slots_of
        if not in_flight.sharing:
            if len(self.lanes.positions) == 1 and not self.lanes.limited.due:  # the most frequent case
                return (slots_of(next(iter(self.lanes.positions))),)
            return in_flight.pools
        first: dict[Slots, Any] = {}
        for lane in (*self.lanes.positions, *self.lanes.limited.ready(time.monotonic())):
            slots, key = slots_of(lane), self.lanes.key(lane)
            first[slots] = min(key, first.get(slots, key))
        return [*sorted(first, key=first.__getitem__), *(each for each in in_flight.pools if each not in first)]

    async def _claim_parts(self) -> None:
        if not await self.parts.claim():
            self._find_no_room()

    async def _claim_turn(self, slots: Slots, turn: Turn) -> int | None:
        # An earlier turn may have ended the scan of some of these lanes.
        if not (lanes := [lane for lane in turn.lanes if self.lanes.is_due(lane)]):
            return 0
        turn = turn._replace(lanes=lanes)
        if (limit := self.claims.room_for(turn, slots)) <= 0:
            return None
        free = slots.free_count
        starts, dry = limit <= free and not turn.chunks, 2 * free > slots.size and not turn.chunks
        with self.claims.pending():
            slots.claiming = min(limit, free)
            who = self.claims.current_claimant
            try:
                claimed = await self._claim_from(who, turn, limit, starts)
            except StoreError as error:
                positions = {lane: self.lanes.positions.get(lane, self.lanes.start) for lane in lanes}
                await self.parts.leave_out_refused(who, positions, limit, error)
                return 0
            finally:
                slots.claiming = 0
            self.parts.record_success()
            if self.scope.is_extended and self.lanes.has_ready(time.monotonic()):
                self.scope.record_claim(claimed, self.lanes.is_due)
                self.lanes.restrict()
            if dry and len(claimed) == limit:
                slots.look_ahead.waited(limit)
            self.claims.take(claimed, slots, prefetched=not starts, limited=turn.limited)
        if self._shares is not None:
            self._shares.record(task.queue for task in claimed)
        return len(claimed)

    async def _claim_from(self, who: Claimant, turn: Turn, limit: int, starts: bool) -> list[Claimed]:
        """Claim from the lanes of a turn, and record how far the claim went."""
        if turn.limited:
            from_start = not self._beside.is_needed()
            return await self.limited.claim(who, turn.lanes, limit, starts, from_start=from_start)
        lanes = {lane: self.lanes.positions[lane] for lane in turn.lanes}
        if self._may_read_next_due(lanes):
            result = await self._database.write(claim_with_next_due, who, lanes, self.claims.defaults, limit, starts)
            claimed, self._others_wait = result
        else:
            claimed = await self._database.write(claim, who, lanes, self.claims.defaults, limit, starts)
        last = claimed[-1:] if len(lanes) == 1 else claimed  # in order within each lane
        self.lanes.advance(reached_by(last), time.monotonic())
        if len(claimed) < limit:
            self.lanes.remove(lanes)
        return claimed


def _nothing() -> bool:
    return False
