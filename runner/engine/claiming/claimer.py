"""Claimer: scans for due tasks and claims as many as fit."""

import asyncio
import contextlib
import contextvars
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from runner.db.database import Database
from runner.db.errors import is_server_fault, outage, part_fault, row_fault
from runner.db.types import EARLIEST
from runner.engine.claiming.limited_claims import LimitedClaims, Turn, reached_by
from runner.engine.claiming.scan_state import Gate, ScanState
from runner.engine.claiming.scans import ScanScope
from runner.engine.claiming.stuck_claims import MOST_RESTING, REST, StuckClaims
from runner.engine.claiming.survey import LaneSurvey
from runner.engine.claiming.survey_beside import SurveyBeside
from runner.engine.claiming.suspect_claims import SuspectClaims
from runner.engine.events import AttemptsEnded, Events, RoomFreed, TaskClaimedTwice, TasksClaimed
from runner.engine.slots import InFlight, Slots
from runner.engine.stuck_rows import SessionEnds, StuckRows, blocking_sessions
from runner.errors import DatabaseUnavailable, StoreError
from runner.handlers.registry import Handler
from runner.model.stuck_row import BlockingSession, RowFault, StuckCause
from runner.model.task import Claimed
from runner.own_code import fault_text, is_cancelled
from runner.policy.claim_order import STRICT, ClaimOrder, WeightedOrder
from runner.policy.lanes import Lane, Lanes, lane_of
from runner.policy.own_class import OwnPolicy
from runner.policy.positions import LanePosition
from runner.policy.queue_shares import QueueShares
from runner.policy.retry import BackOff, load_retry
from runner.policy.selection import listed
from runner.policy.suspicion import Ask, Proof
from runner.resource_limits import reached_limit
from runner.settings import Settings
from runner.store.claim.look import claim_and_look
from runner.store.claim.plain import Claimant, DueTask, HandlerDefaults, claim, claim_suspect, first_due
from runner.store.locked import locked
from runner.text.sanitize import one_line

log = logging.getLogger("runner.claim")

RESTS = (
    "tasks of queue %s, handler %s rest: the database refuses more than %d due tasks; the next try is in %.0f s. "
    "The last error: %s"
)

PARTS = 4
"""Claims of parts between two claims of other tasks, at most."""

PARTS_PAUSE = 0.01
"""The shortest time between two scans for tasks that are left out, in seconds."""

LOOK_EVERY = 1.0
"""Seconds between two looks for due tasks that claims do not take."""

SAMPLES = 8
"""Tasks to claim alone after an error of the whole server, at most."""

UNCHANGED = RowFault(
    StuckCause.REFUSED, "the claim changed nothing, without an error: a trigger on the table probably skips the row"
)

LINGER = 0.005
"""Seconds to wait for more free slots before a claim when only a few are free."""


class Claimer:
    """Claims tasks for one runner.

    Args:
        handlers: handlers that this runner executes, by name.
        defaults: max_attempts and timeout for tasks without their own, by handler name.
        scope: what scans may take.
        in_flight: claimed tasks of this runner, and its slots.
        batch: maximum number of tasks per claim.
        order: order in which this runner claims.
        proof: time that a suspect runs before the next one may start.
        answer: returns the seconds that an idle database takes for an answer.
        may_claim_suspects: returns True unless this runner must rescue the tasks of lost runners first.
        events: receives the claimed tasks, and has the ends of tasks that make room for others.
    """

    def __init__(  # noqa: PLR0913 - the parts of a runner
        self,
        database: Database,
        handlers: Mapping[str, Handler],
        defaults: Mapping[str, HandlerDefaults],
        scope: ScanScope,
        in_flight: InFlight,
        batch: int,
        order: ClaimOrder,
        proof: Proof,
        *,
        stuck: StuckRows,
        answer: Callable[[], float],
        may_claim_suspects: Callable[[], bool],
        events: Events,
    ) -> None:
        self._database, self._handlers, self._defaults = database, handlers, defaults
        self.scope = scope
        self._in_flight, self._batch = in_flight, batch
        self._events = events
        self.stuck = StuckClaims(stuck)
        start = LanePosition(database.dialect.position(EARLIEST), 0)
        self.lanes = Lanes(lambda lane: scope.accepts(lane) and self.stuck.accepts(lane), start, order)
        rooms = self._room_of, self._chunk_room_of
        self.limited = LimitedClaims(database, self.lanes, defaults, self._slots, *rooms, in_flight.probes)
        self.survey = LaneSurvey(database, scope, self.lanes)
        self._beside = SurveyBeside(self.survey, scope, answer, self._scan_again)
        self.suspects = SuspectClaims(self._claim_group, in_flight, batch, proof, may_claim_suspects)
        self._shares = QueueShares(order.weight) if isinstance(order, WeightedOrder) else None
        self._back_off = BackOff()
        self._session_ends, self._suspect_ends = SessionEnds(), SessionEnds()
        self._retry_at = 0.0
        self.state = ScanState.NEW
        self.gate = Gate.UNOPENED
        self._scan_done = asyncio.Event()
        self._scan_done.set()
        self.claim_done = asyncio.Event()
        """Set while no claim is in progress: its tasks are in flight."""
        self.claim_done.set()
        self._rescan_timer: asyncio.TimerHandle | None = None
        self._next_timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        """When to look again for due tasks that claims do not take, in monotonic seconds."""
        self._context = contextvars.copy_context()
        """The context of the runner: a scan that starts when a task ends must not inherit the context of that task."""
        self._looks = False
        """True if the next claim also looks for tasks in other lanes, in place of a survey after it."""
        self._next_look = 0.0
        """The time in monotonic seconds before which claims do not look: a survey found no lane for what one saw."""
        self._others_wait: float | None = None
        """Seconds after the last claim until a task in another lane is due; None if it did not look."""
        self._submitted = False
        """True after a submit, until the next claim, which may not be in progress then, recalls the lanes."""
        self.claimant = Claimant(0, "")
        events.subscribe(AttemptsEnded, self.tasks_ended)
        events.subscribe(RoomFreed, self.rescan)

    def register(self, runner_id: int, host: str, payload_limit: int) -> None:
        """Claim as this runner from now on."""
        self.scope.runner_id, self.scope.host = runner_id, host
        self.claimant = Claimant(runner_id, host, payload_limit, self.lanes.order)

    async def scan(self, submitted: bool = False, *, news: bool = True, earlier: bool = False) -> None:
        """Claim due tasks until none are due or no slot is free.

        Args:
            submitted: True after a submit: claim from the recently due lanes before reading all lanes.
            news: False if only the tasks that it expects can have become due since the last scan.
            earlier: True if tasks may be due before those that claims have taken: another runner had them.
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
                for slots in self._in_flight.pools:
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
        full, parts = self.lanes.limited.wait(now), self.stuck.wait()
        # Otherwise the next scan decides.
        others = (self._beside.wait(now), self.survey.order_keys.wait(now)) if self.may_claim() else ()
        shortly = (None if wait is None else max(PARTS_PAUSE, wait) for wait in (parts, *others))
        waits = [wait for wait in (full, *shortly) if wait is not None]
        if waits and self.gate is Gate.OPEN:
            loop = asyncio.get_running_loop()
            self._next_timer = loop.call_later(min(waits), self._scan_again, context=self._context)

    def _scan_again(self) -> None:
        self._background = asyncio.ensure_future(self.scan(news=False))

    async def close(self, limit: float) -> None:
        """Stop claiming and wait for the current scan.

        Args:
            limit: maximum wait in seconds.
        """
        self.gate = Gate.DRAINING
        self._beside.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._scan_done.wait()

    @property
    def open(self) -> bool:
        """False before the runner is registered and while it drains."""
        return self.gate is Gate.OPEN

    @property
    def idle(self) -> bool:
        """True if no scan is running and the last one claimed all due tasks."""
        return self.state is ScanState.IDLE

    def _enough_room(self) -> bool:
        """True if the slots of a due lane have room for a claim of reasonable size."""
        pools = {self._slots(lane) for lane in (*self.lanes.positions, *self.lanes.limited.ready(time.monotonic()))}
        return not pools or any(slots.to_claim(self._batch) >= max(1, slots.size // 4) for slots in pools)

    async def _scan(self, submitted: bool) -> None:
        self._beside.reset()
        now = time.monotonic()
        is_due = self.survey.pace.is_due(now) and not submitted
        surveyed = self.scope.is_new or not self.lanes.has_ready(now) or is_due
        if surveyed:
            await self.survey.run(self.claimant)
        total, self._looks = 0, submitted and not surveyed
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
                if not await self._leave_out_untaken():
                    break
            await self._claim_parts()
            is_dry = not self.lanes.has_ready(time.monotonic())
            if is_dry or self.survey.pace.is_due(time.monotonic()):
                if is_dry and self._is_alone():
                    break
                if self._beside.is_needed():  # the last one was long
                    self._expect_work()
                    break
                await self.survey.run(self.claimant)
                surveyed, total = True, 0
                self._note_survey()
        # A busy runner ends many scans, and each claim of suspects is a statement.
        if self.lanes.heads or not self.suspects.rest:
            await (self.suspects.claim() if self.state is ScanState.RUNNING else self.suspects.claim_if_due())

    async def _scan_known(self, submitted: bool) -> None:
        """Claim from the lanes that lately had due tasks, and let a survey run beside the claims when it is due."""
        self.lanes.recall(from_start=False)
        self.lanes.next_due, self._looks = None, False  # the surveys beside the claims take care of both
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
            if time.monotonic() < self._look_at:
                self._beside.ask()
            elif await self._leave_out_untaken():
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
            self._next_look = now + LOOK_EVERY
        self._looks, self._others_wait = False, None

    def _may_look(self, lanes: Mapping[Lane, LanePosition]) -> bool:
        """True if these are all lanes that may be due, each from its start, so that other due tasks are news."""
        return (
            self._looks
            and self._database.dialect.writing_ctes
            and not self.scope.is_extended
            and lanes.keys() == self.lanes.positions.keys()
            and all(position == self.lanes.start for position in lanes.values())
            and time.monotonic() >= self._next_look
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
            room = self._room_of(handler)
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
        return self.gate is Gate.OPEN and self.scope.is_open and time.monotonic() >= self._retry_at

    async def _claim_round(self) -> int | None:
        """Claim once per turn and return the number of tasks; None if no due lane has a free slot.

        Suspects come first, unless their last claim was too recent.
        """
        if self.lanes.heads or not self.suspects.rest:
            await self.suspects.claim_if_due()
        counts: list[int | None] = []
        for slots in self._pools():
            room = slots.to_claim(self._batch)
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
        """The pools; those that share slots in the order of their first tasks, because the first ones may take all."""
        if not self._in_flight.sharing:
            if len(self.lanes.positions) == 1 and not self.lanes.limited.due:  # the most frequent case
                return (self._slots(next(iter(self.lanes.positions))),)
            return self._in_flight.pools
        first: dict[Slots, Any] = {}
        for lane in (*self.lanes.positions, *self.lanes.limited.ready(time.monotonic())):
            slots, key = self._slots(lane), self.lanes.key(lane)
            first[slots] = min(key, first.get(slots, key))
        return [*sorted(first, key=first.__getitem__), *(each for each in self._in_flight.pools if each not in first)]

    async def _claim_turn(self, slots: Slots, turn: Turn) -> int | None:
        # An earlier turn may have ended the scan of some of these lanes.
        if not (lanes := [lane for lane in turn.lanes if self.lanes.is_due(lane)]):
            return 0
        turn = turn._replace(lanes=lanes)
        room = self._room_of(turn.lanes[0].handler)  # an earlier turn may have taken tasks of the handler
        most = turn.most if room is None else min(turn.most, room)
        if turn.chunks:
            most = min(most, self._chunk_room_of(turn.lanes[0].handler) or 0)
        limit = min(most if turn.chunks else slots.room(), self._batch, most, self.scope.room)
        if limit <= 0:
            return None
        free = slots.free_count
        starts, dry = limit <= free and not turn.chunks, 2 * free > slots.size and not turn.chunks
        with self._claim_pending():
            slots.claiming = min(limit, free)
            who = self.scope.claimant(self.claimant, self.stuck.without)
            try:
                claimed = await self._claim_from(who, turn, limit, starts)
            except StoreError as error:
                await self._leave_out_refused(who, turn, limit, error)
                return 0
            finally:
                slots.claiming = 0
            self.stuck.succeeded()
            self._session_ends.reset()
            if self.scope.is_extended and self.lanes.has_ready(time.monotonic()):
                self.scope.record_claim(claimed, self.lanes.is_due)
                self.lanes.restrict()
            if dry and len(claimed) == limit:
                slots.look_ahead.waited(limit)
            self._take(claimed, slots, prefetched=not starts, limited=turn.limited)
        if self._shares is not None:
            self._shares.record(task.queue for task in claimed)
        return len(claimed)

    async def _claim_from(self, who: Claimant, turn: Turn, limit: int, starts: bool) -> list[Claimed]:
        """Claim from the lanes of a turn, and record how far the claim went."""
        if turn.limited:
            from_start = not self._beside.is_needed()
            return await self.limited.claim(who, turn.lanes, limit, starts, from_start=from_start)
        lanes = {lane: self.lanes.positions[lane] for lane in turn.lanes}
        if self._may_look(lanes):
            look = await self._database.write(claim_and_look, who, lanes, self._defaults, limit, starts)
            claimed, self._others_wait = look
        else:
            claimed = await self._database.write(claim, who, lanes, self._defaults, limit, starts)
        last = claimed[-1:] if len(lanes) == 1 else claimed  # in order within each lane
        self.lanes.advance(reached_by(last), time.monotonic())
        if len(claimed) < limit:
            self.lanes.remove(lanes)
        return claimed

    async def _leave_out_refused(self, who: Claimant, turn: Turn, limit: int, error: StoreError) -> None:
        """Leave out the first tasks of a claim that failed because of one of them; otherwise raise its error."""
        if (fault := self._session_ends.fault_of(error)) is None:
            raise error
        lanes = {lane: self.lanes.positions.get(lane, self.lanes.start) for lane in turn.lanes}
        try:
            due = await self._database.read(first_due, who, lanes, self.stuck.size_after(limit))
        except StoreError as refusal:
            if type(who.order) is not OwnPolicy or (fault := row_fault(refusal)) is None:
                raise
            await self._database.read(first_due, who._replace(order=STRICT), lanes, limit)
            who.order.replace(fault.fact)  # only the SQL of the own order is refused
            return
        may_be_general = fault.of_statement or (row_fault(error) is not None and is_server_fault(error))
        if not due or (may_be_general and not await self._any_claimed(due)):
            raise error
        for lane in self.stuck.leave_out(due, tried=len(due) <= limit):
            log.warning(RESTS, one_line(lane.queue), one_line(lane.handler), MOST_RESTING, REST, error)
        self.lanes.restrict(heads=True)

    async def _any_claimed(self, due: Sequence[DueTask]) -> bool:
        """Claim one of some tasks: if none can be claimed, an error of the whole server is no fault of a row."""
        for task in due[:: max(1, len(due) // SAMPLES)]:
            slots, limited = self._kind(task.lane)
            with contextlib.suppress(StoreError):
                if await self._claim_only((task.id,), [task.lane], slots, limited=limited):
                    return True
        return False

    async def _leave_out_untaken(self) -> bool:
        """Leave out due tasks that a claim from their lanes did not take: they are locked, or a trigger skips them.

        They would hide the tasks of later lanes, because a claim counts the first tasks of all lanes before it locks
        them. Returns True if there are such tasks.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY
        waits = self.lanes.limited.waits
        lanes = self.lanes.first(self.lanes.heads, lambda lane: self._slots(lane).room() > 0 and not waits(lane))
        if not lanes:
            return False
        size = self.stuck.size_after(self._batch)
        is_held = self.lanes.limited.has_limits
        due = await self._database.read(
            first_due, self.scope.claimant(self.claimant, self.stuck.without), lanes, size, is_held=is_held
        )
        locks = await self._locks([task.id for task in due])
        self.stuck.lock({task: locks[task.id] for task in due if task.id in locks})
        self.stuck.leave_out([task for task in due if task.id not in locks], tried=False)
        return bool(due)

    async def _claim_parts(self) -> None:
        """Claim tasks that are left out of the other claims, in parts."""
        if due_locks := self.stuck.due_locks():
            locks = await self._locks(due_locks)
            for id in due_locks:
                self.stuck.look_at_lock(id, still=id in locks, blocker=locks.get(id))
        self.stuck.collect()
        without_room: list[tuple[int, ...]] = []
        for _ in range(PARTS):
            if not self.may_claim() or (part := self.stuck.next(self._kind)) is None:
                break
            ids, lanes = part
            if lanes[0].handler not in self._handlers:
                self.stuck.claimed(ids)
                continue
            slots, limited = self._kind(lanes[0])
            limit = min(slots.room(), self._batch, self.scope.room, self.limited.within_rooms(lanes, len(ids)))
            if limit <= 0 or not all(map(self.scope.accepts, lanes)):
                without_room.append(ids)
                continue
            ids = self.stuck.cut(ids, limit)
            if not await self._claim_part(ids, lanes, slots, limited=limited):
                without_room.append(ids)
        self.stuck.has_no_room = bool(without_room)
        if without_room:
            self._find_no_room()
        for ids in without_room:
            self.stuck.put_back(ids)

    async def _locks(self, ids: list[int]) -> dict[int, BlockingSession | None]:
        """The sessions that lock rows of tasks, by task id; None for one that is not known."""
        rows = sorted(await self._database.write(locked, ids)) if ids else []
        sessions = await blocking_sessions(self._database, rows) if rows else {}
        return {id: sessions.get(id) for id in rows}

    def _kind(self, lane: Lane) -> tuple[Slots, bool]:
        """The lanes with the same pool, and either with or without limits, share a claim."""
        return self._slots(lane), self.lanes.limited.has_limits(lane)

    async def _claim_part(self, ids: tuple[int, ...], lanes: list[Lane], slots: Slots, *, limited: bool) -> bool:
        """Claim some tasks, all or none of them; return False if their lanes have no room."""
        try:
            claimed = await self._claim_only(ids, lanes, slots, limited=limited)
        except StoreError as error:
            if (fault := part_fault(error)) is None:
                self.stuck.put_back(ids)
                raise
            self.stuck.failed(ids, fault)
            return True
        if claimed is None:
            return False
        self.stuck.claimed(claimed)
        if rest := [id for id in ids if id not in claimed]:
            await self._judge_untaken(lanes, rest, limited=limited)
        return True

    async def _claim_only(
        self, ids: tuple[int, ...], lanes: list[Lane], slots: Slots, *, limited: bool
    ) -> set[int] | None:
        """Claim only these tasks, and return their ids; None if their lanes have no room."""
        who = self.claimant._replace(selection=self.scope.selection._replace(only=listed(ids)))
        starts, claimed = len(ids) <= slots.free_count, None
        with self._claim_pending():
            if limited:
                claimed = await self.limited.claim_part(who, lanes, len(ids), starts)
            else:
                positions = dict.fromkeys(lanes, self.lanes.start)
                claimed = await self._database.write(claim, who, positions, self._defaults, len(ids), starts)
            self._take(claimed or [], slots, prefetched=not starts, limited=limited)
        return None if claimed is None else {task.id for task in claimed}

    async def _judge_untaken(self, lanes: list[Lane], ids: list[int], *, limited: bool) -> None:
        """Record the tasks as stuck that are still due although a claim of them succeeded; forget the others."""
        who = self.claimant._replace(selection=self.scope.selection._replace(only=listed(ids)))
        positions = dict.fromkeys(lanes, self.lanes.start)
        due = await self._database.read(first_due, who, positions, len(ids), is_held=lambda _: limited)
        locks = await self._locks([task.id for task in due])
        self.stuck.claimed(set(ids) - {task.id for task in due})
        self.stuck.lock({task: locks[task.id] for task in due if task.id in locks})
        for id in {task.id for task in due} - locks.keys():
            if limited:  # other tasks of its tenant may run
                self.stuck.claimed([id])
            else:
                self.stuck.refuse(id, UNCHANGED)

    async def _claim_group(self, ask: Ask, pools: Collection[Slots]) -> list[Claimed]:
        def may_start(lane: Lane) -> bool:
            return self._slots(lane) in pools and self._room_of(lane.handler) != 0

        lanes = self.lanes.first(self.lanes.heads, may_start)
        ask = ask._replace(limit=self.limited.within_rooms(lanes, min(ask.limit, self.scope.room)))
        who = self.scope.claimant(self.claimant, self.stuck.without)
        if not lanes or ask.limit <= 0 or not self.may_claim():
            return []
        with self._claim_pending():
            try:
                claimed = await self._database.write(claim_suspect, who, lanes, self._defaults, ask)
                claimed = claimed or await self.limited.claim_suspect(who, may_start, ask)
            except StoreError as error:
                claimed = await self._claim_each_suspect(who, lanes, ask, may_start, error)
            self._suspect_ends.reset()
            self.stuck.suspects_claimed(task.id for task in claimed)
            for task in claimed:
                self._take([task], self._slots(lane_of(task)), alone=True)
        return claimed

    async def _claim_each_suspect(
        self,
        who: Claimant,
        lanes: Mapping[Lane, LanePosition],
        ask: Ask,
        may_start: Callable[[Lane], bool],
        error: StoreError,
    ) -> list[Claimed]:
        """Claim suspects one by one after a claim that failed because of one of them; otherwise raise its error."""
        if self._suspect_ends.fault_of(error) is None:
            raise error
        due = await self._database.read(first_due, who, lanes, ask.limit, suspects=True)
        if not due:
            raise error
        claimed: list[Claimed] = []
        for suspect in due:
            one = who._replace(selection=who.selection._replace(only=listed([suspect.id])))
            try:
                claimed += await self._database.write(
                    claim_suspect, one, lanes, self._defaults, ask._replace(limit=1)
                ) or await self.limited.claim_suspect(one, may_start, ask._replace(limit=1))
            except StoreError as single:
                if (fault := part_fault(single)) is not None:
                    self.stuck.refuse_suspect(suspect, fault)
                elif claimed:  # the next claim meets the error again
                    break
                else:
                    raise
        return claimed

    @contextlib.contextmanager
    def _claim_pending(self) -> Iterator[None]:
        """Mark that the database may have claimed tasks that are not in flight yet. Claims never overlap."""
        self.claim_done.clear()
        try:
            yield
        finally:
            self.claim_done.set()

    def _take(self, claimed: list[Claimed], slots: Slots, prefetched: bool = False, **how: bool) -> None:
        self.scope.room -= len(claimed)
        for task in claimed:
            if self._in_flight.add(task, self._handlers[task.handler], prefetched, slots, **how) is None:
                self._events.publish(TaskClaimedTwice(task))
        self._events.publish(TasksClaimed(slots, claimed, self.gate is Gate.OPEN))

    def _slots(self, lane: Lane) -> Slots:
        return self._in_flight.slots_of(self._handlers[lane.handler])

    def _room_of(self, handler: str) -> int | None:
        most = self._handlers[handler].defaults.limit_per_runner
        return None if most is None else max(0, most - self._in_flight.capped[handler])

    def _chunk_room_of(self, handler: str) -> int | None:
        spec = self._handlers[handler]
        return None if spec.defaults.chunk is None else self._in_flight.slots_of(spec).chunks().room(spec)


def _nothing() -> bool:
    return False


def handler_defaults(handler: Handler, settings: Settings) -> HandlerDefaults:
    """Return max_attempts and timeout for the tasks of a handler.

    Raises:
        InvalidRetryPlan: the retry plan in force is invalid. The check runs here, not at the first failure.
    """
    options = handler.defaults
    default = settings.timeout.total_seconds() if settings.timeout else None
    timeout = default if options.timeout is None else options.timeout
    load_retry(options.retry or settings.retry)
    return HandlerDefaults(options.max_attempts or settings.max_attempts, None if timeout == inf else timeout)
