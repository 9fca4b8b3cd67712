"""PartClaims: claims in parts the tasks that other claims cannot take."""

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from runner.db.database import Database
from runner.db.errors import is_server_fault, part_fault, row_fault
from runner.engine.claiming.claims import Claims
from runner.engine.claiming.stuck_claims import MOST_RESTING, REST
from runner.engine.stuck_rows import SessionEnds, blocking_sessions
from runner.errors import StoreError
from runner.model.stuck_row import BlockingSession, RowFault, StuckCause
from runner.policy.claim_order import STRICT
from runner.policy.lanes import Lane
from runner.policy.own_class import OwnPolicy
from runner.policy.positions import LanePosition
from runner.store.claim.plain import Claimant, DueTask, first_due
from runner.store.locked import locked
from runner.text.sanitize import one_line

log = logging.getLogger("runner.claim")

RESTS = (
    "tasks of queue %s, handler %s rest: the database refuses more than %d due tasks; the next try is in %.0f s. "
    "The last error: %s"
)

PARTS = 4
"""Claims of parts between two claims of other tasks, at most."""

LOOK_EVERY = 1.0
"""Seconds between two looks for due tasks that claims do not take."""

SAMPLES = 8
"""Tasks to claim alone after an error of the whole server, at most."""

UNCHANGED = RowFault(
    StuckCause.REFUSED, "the claim changed nothing, without an error: a trigger on the table probably skips the row"
)


class PartClaims:
    """Finds the tasks for which a claim of others fails, or which it skips, and claims them apart.

    Args:
        claims: the claims of the runner.
    """

    def __init__(self, database: Database, claims: Claims) -> None:
        self._database, self._claims, self._stuck = database, claims, claims.stuck
        self._has_limits = claims.lanes.limited.has_limits
        self._session_ends = SessionEnds()
        self._look_at = 0.0
        """When to look again for due tasks that claims do not take, in monotonic seconds."""

    def record_success(self) -> None:
        """Record that a claim of other tasks succeeded."""
        self._stuck.succeeded()
        self._session_ends.reset()

    async def leave_out_refused(
        self, who: Claimant, lanes: Mapping[Lane, LanePosition], limit: int, error: StoreError
    ) -> None:
        """Leave out the first tasks of a claim that failed because of one of them.

        Args:
            who: the claimant, and the tasks that it took.
            lanes: the lanes of the claim and their positions.
            limit: maximum number of tasks of the claim.
            error: the error of the claim.

        Raises:
            StoreError: `error`, if it is not the fault of a task.
        """
        if (fault := self._session_ends.fault_of(error)) is None:
            raise error
        try:
            due = await self._database.read(first_due, who, lanes, self._stuck.size_after(limit))
        except StoreError as refusal:
            if type(who.order) is not OwnPolicy or (fault := row_fault(refusal)) is None:
                raise
            await self._database.read(first_due, who._replace(order=STRICT), lanes, limit)
            who.order.replace(fault.fact)  # only the SQL of the own order is refused
            return
        may_be_general = fault.of_statement or (row_fault(error) is not None and is_server_fault(error))
        if not due or (may_be_general and not await self._any_claimed(due)):
            raise error
        for lane in self._stuck.leave_out(due, tried=len(due) <= limit):
            log.warning(RESTS, one_line(lane.queue), one_line(lane.handler), MOST_RESTING, REST, error)
        self._claims.lanes.restrict(heads=True)

    async def _any_claimed(self, due: Sequence[DueTask]) -> bool:
        """Claim one of some tasks: if none can be claimed, an error of the whole server is no fault of a row."""
        for task in due[:: max(1, len(due) // SAMPLES)]:
            with contextlib.suppress(StoreError):
                if await self._claims.claim_only((task.id,), [task.lane], limited=self._has_limits(task.lane)):
                    return True
        return False

    @property
    def may_look(self) -> bool:
        """True if the last look for tasks that claims do not take is long enough ago."""
        return time.monotonic() >= self._look_at

    async def leave_out_untaken(self) -> bool:
        """Leave out due tasks that a claim from their lanes did not take: they are locked, or a trigger skips them.

        They would hide the tasks of later lanes, because a claim counts the first tasks of all lanes before it locks
        them. Returns True if there are such tasks.
        """
        if not self.may_look:
            return False
        self._look_at = time.monotonic() + LOOK_EVERY
        claims, waits = self._claims, self._claims.lanes.limited.waits
        lanes = claims.lanes.first(
            claims.lanes.heads, lambda lane: claims.slots_of(lane).room() > 0 and not waits(lane)
        )
        if not lanes:
            return False
        size, who = self._stuck.size_after(claims.batch), claims.current_claimant
        due = await self._database.read(first_due, who, lanes, size, is_held=self._has_limits)
        locks = await self._locks([task.id for task in due])
        self._stuck.lock({task: locks[task.id] for task in due if task.id in locks})
        self._stuck.leave_out([task for task in due if task.id not in locks], tried=False)
        return bool(due)

    async def claim(self) -> bool:
        """Claim some parts of the tasks that are left out; return False if a part found no room."""
        if due_locks := self._stuck.due_locks():
            locks = await self._locks(due_locks)
            for id in due_locks:
                self._stuck.look_at_lock(id, still=id in locks, blocker=locks.get(id))
        self._stuck.collect()
        without_room: list[tuple[int, ...]] = []
        for _ in range(PARTS):
            if not self._claims.may_claim or (part := self._stuck.next(self._claims.kind)) is None:
                break
            ids, lanes = part
            if not self._claims.has_handler(lanes[0]):
                self._stuck.claimed(ids)
                continue
            if (limit := self._room_for(lanes, len(ids))) <= 0 or not all(map(self._claims.scope.accepts, lanes)):
                without_room.append(ids)
                continue
            ids = self._stuck.cut(ids, limit)
            if not await self._claim_part(ids, lanes):
                without_room.append(ids)
        self._stuck.has_no_room = bool(without_room)
        for ids in without_room:
            self._stuck.put_back(ids)
        return not without_room

    def _room_for(self, lanes: list[Lane], tasks: int) -> int:
        claims = self._claims
        room = min(claims.slots_of(lanes[0]).room(), claims.batch, claims.scope.room)
        return min(room, claims.limited.within_rooms(lanes, tasks))

    async def _locks(self, ids: list[int]) -> dict[int, BlockingSession | None]:
        """The sessions that lock rows of tasks, by task id; None for one that is not known."""
        rows = sorted(await self._database.write(locked, ids)) if ids else []
        sessions = await blocking_sessions(self._database, rows) if rows else {}
        return {id: sessions.get(id) for id in rows}

    async def _claim_part(self, ids: tuple[int, ...], lanes: list[Lane]) -> bool:
        """Claim some tasks, all or none of them; return False if their lanes have no room."""
        limited = self._has_limits(lanes[0])
        try:
            claimed = await self._claims.claim_only(ids, lanes, limited=limited)
        except StoreError as error:
            if (fault := part_fault(error)) is None:
                self._stuck.put_back(ids)
                raise
            self._stuck.failed(ids, fault)
            return True
        if claimed is None:
            return False
        self._stuck.claimed(claimed)
        if rest := [id for id in ids if id not in claimed]:
            await self._judge_untaken(lanes, rest, limited=limited)
        return True

    async def _judge_untaken(self, lanes: list[Lane], ids: list[int], *, limited: bool) -> None:
        """Record the tasks as stuck that are still due although a claim of them succeeded; forget the others."""
        positions = dict.fromkeys(lanes, self._claims.lanes.start)
        due = await self._database.read(
            first_due, self._claims.only(ids), positions, len(ids), is_held=lambda _: limited
        )
        locks = await self._locks([task.id for task in due])
        self._stuck.claimed(set(ids) - {task.id for task in due})
        self._stuck.lock({task: locks[task.id] for task in due if task.id in locks})
        for id in {task.id for task in due} - locks.keys():
            if limited:  # other tasks of its tenant may run
                self._stuck.claimed([id])
            else:
                self._stuck.refuse(id, UNCHANGED)
