"""Claimer: scans for due tasks and claims as many as fit."""

import asyncio
import contextlib
import contextvars
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf

from runner.db.database import Database
from runner.db.types import EARLIEST
from runner.engine.limited_claims import LimitedClaims, Turn
from runner.engine.scans import ScanScope
from runner.engine.slots import InFlight, Slots
from runner.engine.suspect_claims import SuspectClaims
from runner.errors import DatabaseUnavailable, StoreError
from runner.handlers.registry import Handler
from runner.model.task import Claimed
from runner.policy.claim_order import ClaimOrder, WeightedOrder
from runner.policy.claim_policy import QueueShares
from runner.policy.lanes import Head, Lane, LanePosition, Lanes, lane_of
from runner.policy.polling import Pace
from runner.policy.retry import BackOff, parse_plan
from runner.policy.suspicion import Ask, Proof
from runner.settings import Settings
from runner.store.claim import Claimant, HandlerDefaults, claim, claim_suspect, prepare_claims
from runner.store.lanes import DENSE, MANY, survey
from runner.text.sanitize import one_line

log = logging.getLogger("runner.claim")

NEVER_CLAIMED = "task %d (%s) in queue %s is never claimed: `runner why %d` names the reason and the remedy"

LINGER = 0.005
"""Seconds to wait for more free slots before a claim when only a few are free."""


class Claimer:
    """Claims tasks for one runner.

    Args:
        database: the database to claim from.
        handlers: handlers that this runner executes, by name.
        defaults: max_attempts and timeout for tasks without their own, by handler name.
        scope: what scans may take.
        in_flight: claimed tasks of this runner, and its slots.
        batch: maximum number of tasks per claim.
        order: order in which this runner claims.
        proof: time that a suspect runs before the next one may start.
        may_claim_suspects: returns True unless this runner must rescue the tasks of lost runners first.
        on_start: called with the slots for which tasks were claimed.
        on_duplicate: called with a task that was claimed while an earlier claim of it is still in flight.
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
        may_claim_suspects: Callable[[], bool],
        on_start: Callable[[Slots], None],
        on_duplicate: Callable[[Claimed], None],
    ) -> None:
        self._database, self._handlers, self._defaults = database, handlers, defaults
        self.scope = scope
        self._in_flight, self._batch = in_flight, batch
        self._on_start, self._on_duplicate = on_start, on_duplicate
        self.lanes = Lanes(scope.accepts, LanePosition(database.dialect.position(EARLIEST), 0), order)
        self.limited = LimitedClaims(database, self.lanes, defaults, self._slots, self._room_of)
        self.suspects = SuspectClaims(self._claim_group, in_flight, batch, proof, may_claim_suspects)
        self._shares = QueueShares(order.weight) if isinstance(order, WeightedOrder) else None
        self._pace = Pace()
        self._back_off = BackOff()
        self._retry_at = 0.0
        self._scan_done = asyncio.Event()
        self._scan_done.set()
        self._claim_done = asyncio.Event()
        self._claim_done.set()
        self._scan_pending = False
        self._rescan_timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()
        """The context of the runner: a scan that starts when a task ends must not inherit the context of that task."""
        self._submitted = False
        self.work_left = False
        """True if due tasks may remain because slots were full or a scan failed; the next chance triggers a scan."""
        self._reported: frozenset[int] = frozenset()
        """Tasks that block no others, but are never claimed, as of the last survey."""
        self._skip = 0
        """Lanes to leave out of the next survey: no claim took a task from them."""
        self._skipped = 0
        """Lanes that the last survey left out for that reason."""
        self._many = False
        """True if the last survey left lanes out."""
        self.scanned = False
        """True after the first scan."""
        self.open = False
        """False before the runner is registered and while it drains."""
        self.closed = False
        """True from the begin of the drain."""
        self.claimant = Claimant(0, "")

    def register(self, runner_id: int, host: str, payload_limit: int) -> None:
        """Claim as this runner from now on."""
        self.scope.runner_id, self.scope.host = runner_id, host
        self.claimant = Claimant(runner_id, host, payload_limit, self.lanes.order)

    async def scan(self, submitted: bool = False) -> None:
        """Claim due tasks until none are due or no slot is free.

        Args:
            submitted: True after a submit: claim from the recently due lanes before reading all lanes.
        """
        self._scan_pending = True
        self._submitted |= submitted
        if not self._scan_done.is_set():
            return  # the current scan runs once more
        self._scan_done.clear()
        try:
            while self._scan_pending and self._allowed():
                self._scan_pending = False
                await self._scan()
                self._back_off.reset()
                self.scanned = True
        except Exception as error:  # a bug must not stop all claiming
            if not isinstance(error, StoreError):
                log.exception("scan failed")
            self._scan_pending = True
            wait = self._back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
            self._retry_at = time.monotonic() + wait
            problem = "database unavailable" if isinstance(error, DatabaseUnavailable) else "claim failed"
            log.warning("%s: retrying in %.1f s: %s", problem, wait, error)
        finally:
            self.work_left |= self._scan_pending
            if not self.work_left and self.scope.is_open:
                self.scope.end()
            self._scan_done.set()
            self.limited.schedule(self._scan_again, self._context)

    def rescan(self) -> None:
        """Schedule a scan if due tasks may remain. Call it when a slot is free or the database is back."""
        if self._rescan_timer is not None or not self._scan_done.is_set():
            return  # the most frequent case: this is called at the end of each task
        if not (self.work_left or self.suspects.may_follow) or not self._allowed():
            return
        loop = asyncio.get_running_loop()
        # One claim per finished task costs more than the task: wait briefly for more free slots.
        wait = 0.0 if self._enough_room() else LINGER
        self._rescan_timer = loop.call_later(wait, self._scan_again, context=self._context)

    def expect_release(self) -> None:
        """Record that a task of this runner waits again: the next chance triggers a scan, though no submit wakes it."""
        if self._scan_done.is_set():
            self.work_left = True
        else:
            self._scan_pending = True  # the current scan may have read its lane before

    def _scan_again(self) -> None:
        self._rescan_timer = None
        self.work_left = False
        self._background = asyncio.ensure_future(self.scan())

    async def close(self, limit: float) -> None:
        """Stop claiming and wait for the current scan.

        Args:
            limit: maximum wait in seconds.
        """
        self.open, self.closed = False, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._scan_done.wait()

    async def claim_done(self) -> None:
        """Wait until the current claim has ended and its tasks are in flight."""
        await self._claim_done.wait()

    @property
    def idle(self) -> bool:
        """True if no scan is running and the last one claimed all due tasks."""
        return self._scan_done.is_set() and not self.work_left

    def _enough_room(self) -> bool:
        """True if the slots of a due lane have room for a claim of reasonable size."""
        pools = {self._slots(lane) for lane in (*self.lanes.positions, *self.lanes.limited.ready(time.monotonic()))}
        return not pools or any(slots.to_claim(self._batch) >= max(1, slots.size // 4) for slots in pools)

    async def _scan(self) -> None:
        self.work_left = False
        submitted, now = self._recall(), time.monotonic()
        surveyed = self.scope.is_new or not self.lanes.has_ready(now) or (self._pace.is_due(now) and not submitted)
        if surveyed:
            await self._survey()
        total = 0
        while self.lanes.has_ready(time.monotonic()) and self._allowed():
            self._recall()  # a backlog lets no scan end, and an urgent task must not wait for the next survey
            await self.suspects.claim_if_due()
            claimed_count = await self._claim_round()
            self.suspects.record_others()
            if claimed_count is None:
                self.work_left = True
                break
            total += claimed_count
            await asyncio.sleep(0)  # the claimed tasks start, before the runner looks for more
            if surveyed and not total and not self.lanes.has_ready(time.monotonic()):
                # A survey also returns tasks that a claim skips, e.g. suspects: do not loop. Other lanes come next.
                self._skip = self._skipped + MANY if self._many else 0
                break
            if not self.lanes.has_ready(time.monotonic()) or self._pace.is_due(time.monotonic()):
                await self._survey()
                surveyed, total = True, 0
        # A busy runner ends many scans, and each claim of suspects is a statement.
        await (self.suspects.claim_if_due() if self.work_left else self.suspects.claim())

    def _recall(self) -> bool:
        if submitted := self._submitted:
            self._submitted = False
            self.lanes.recall()
        return submitted

    def tasks_ended(self, tasks: Sequence[Claimed]) -> None:
        """Try the lanes again that wait for the end of such tasks; `rescan` follows."""
        for queue, handler in {(task.queue, task.handler) for task in tasks}:
            room = self._room_of(handler)
            # Without room in this runner, its suspects were left out, and no lane remembers them.
            if self.lanes.limited.reopen(queue, handler) or (room is not None and room <= len(tasks)):
                self.work_left = True
                self._scan_pending |= not self._scan_done.is_set()

    def _allowed(self) -> bool:
        return self.open and self.scope.is_open and time.monotonic() >= self._retry_at

    async def _survey(self) -> None:
        if not self.scanned:  # while no task waits for them
            await self._database.read_single(prepare_claims, self.claimant._replace(selection=self.scope.selection))
        started, dense = time.monotonic(), DENSE if self._many else 0
        self._skipped, self._skip = self._skip, 0
        heads = await self._database.read_single(survey, self.scope.survey(MANY, self._skipped, dense))
        self._many = len(heads) == MANY
        self.lanes.survey(heads)
        self._report_refused(heads)
        self._pace.record(started, time.monotonic())

    def _report_refused(self, heads: list[Head]) -> None:
        """Log each task once that waits at the head of its lane and that no claim takes."""
        refused = {head.refused: head.lane for head in heads if head.refused is not None}
        for task_id in refused.keys() - self._reported:
            name, queue = one_line(refused[task_id].handler), one_line(refused[task_id].queue)
            log.warning(NEVER_CLAIMED, task_id, name, queue, task_id)
        self._reported = frozenset(refused)

    async def _claim_round(self) -> int | None:
        """Claim once per turn and return the number of tasks; None if no due lane has a free slot."""
        counts: list[int | None] = []
        for slots in self._in_flight.pools:
            room = slots.to_claim(self._batch)
            if room <= 0:
                continue
            turns = [part for turn in self.limited.turns(slots) for part in turn.divided(self._shares, room)]
            counts += [await self._claim_turn(slots, turn) for turn in turns]
        claimed = [count for count in counts if count is not None]
        return sum(claimed) if claimed else None

    async def _claim_turn(self, slots: Slots, turn: Turn) -> int | None:
        room = self._room_of(turn.lanes[0].handler)  # an earlier turn may have taken tasks of the handler
        limit = min(slots.room(), self._batch, turn.most, self.scope.room, turn.most if room is None else room)
        if limit <= 0:
            return None
        starts, dry = limit <= slots.free_count, 2 * slots.free_count > slots.size
        with self._claim_pending():
            who = self.claimant._replace(selection=self.scope.selection)
            if turn.limited:
                claimed = await self.limited.claim(who, turn.lanes, limit, starts)
            else:
                lanes = {lane: self.lanes.positions[lane] for lane in turn.lanes}
                claimed = await self._database.write_single(claim, who, lanes, self._defaults, limit, starts)
                if len(claimed) < limit:
                    self.lanes.remove(lanes)
                else:
                    last = claimed[-1:] if len(lanes) == 1 else claimed  # in order within each lane
                    self.lanes.advance({lane_of(task): LanePosition(task.run_at, task.id) for task in last})
            if dry and len(claimed) == limit:
                slots.look_ahead.waited(limit)
            self._take(claimed, slots, prefetched=not starts)
        if self._shares is not None:
            self._shares.record(task.queue for task in claimed)
        return len(claimed)

    async def _claim_group(self, ask: Ask, pools: Collection[Slots]) -> list[Claimed]:
        def may_start(lane: Lane) -> bool:
            return self._slots(lane) in pools and self._room_of(lane.handler) != 0

        lanes = self.lanes.first(self.lanes.heads, may_start)
        ask = ask._replace(limit=self.limited.within_rooms(lanes, min(ask.limit, self.scope.room)))
        who = self.claimant._replace(selection=self.scope.selection)
        if not lanes or ask.limit <= 0 or not self._allowed():
            return []
        with self._claim_pending():
            claimed = await self._database.write_single(claim_suspect, who, lanes, self._defaults, ask)
            claimed = claimed or await self.limited.claim_suspect(who, may_start, ask)
            for task in claimed:
                self._take([task], self._slots(lane_of(task)))
        return claimed

    @contextlib.contextmanager
    def _claim_pending(self) -> Iterator[None]:
        """Mark that the database may have claimed tasks that are not in flight yet. Claims never overlap."""
        self._claim_done.clear()
        try:
            yield
        finally:
            self._claim_done.set()

    def _take(self, claimed: list[Claimed], slots: Slots, prefetched: bool = False) -> None:
        self.scope.record(len(claimed))
        for task in claimed:
            if self._in_flight.add(task, self._handlers[task.handler], prefetched, slots) is None:
                log.warning("task %d was claimed again while in flight: its lease must have expired", task.id)
                self._on_duplicate(task)
        if self.open:
            self._on_start(slots)

    def _slots(self, lane: Lane) -> Slots:
        return self._in_flight.slots_of(self._handlers[lane.handler])

    def _room_of(self, handler: str) -> int | None:
        most = self._handlers[handler].defaults.limit_per_runner
        return None if most is None else max(0, most - self._in_flight.capped[handler])


def handler_defaults(handler: Handler, settings: Settings) -> HandlerDefaults:
    """Return max_attempts and timeout for the tasks of a handler.

    Raises:
        InvalidRetryPlan: the retry plan in force is invalid. The check runs here, not at the first failure.
    """
    options = handler.defaults
    default = settings.timeout.total_seconds() if settings.timeout else None
    timeout = default if options.timeout is None else options.timeout
    parse_plan(options.retry or settings.retry)
    return HandlerDefaults(options.max_attempts or settings.max_attempts, None if timeout == inf else timeout)
