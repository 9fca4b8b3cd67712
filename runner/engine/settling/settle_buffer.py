"""SettleBuffer: collects outcomes into batches and buffers them while the database is unavailable."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from runner.db.database import Database
from runner.db.errors import is_server_fault, outage, part_fault, row_fault
from runner.db.halves import write_in_halves
from runner.engine.running import Claim, Running
from runner.engine.stuck_rows import SessionEnds, StuckRows, blocking_sessions, locks_of_faults, with_place
from runner.errors import ResourceLimitReached, StoreError, ValueRejected
from runner.event_wait import within
from runner.model.outcome import Dead, Done, Failure, Outcome
from runner.model.stuck_row import BlockingSession, RowFault, StuckCause
from runner.policy.retry import BackOff
from runner.store.history import prepare_successes
from runner.store.retention import SubmitWatch
from runner.store.settle import Settled, Settlement, SettleShape, settle
from runner.text.sanitize import count_noun, one_line
from runner.text.stuck_row import stuck_text

log = logging.getLogger("runner.settle")

Settling = tuple[Running, Settlement]

ROW_LOCKED = RowFault(StuckCause.LOCKED, "55P03 lock not available")
"""The fault of a row that SKIP LOCKED leaves out, with PostgreSQL's code for a lock that is not available."""

NO_SESSIONS: Mapping[int, BlockingSession] = MappingProxyType({})

LEAST_PAUSE = 0.02
"""Minimum seconds between two rounds of tries on outcomes that are set apart."""

OUTAGE_PAUSE = 1.0
"""Seconds until the next try on outcomes that are set apart, after an outage."""

BATCH_TEXT = 3 * 2**18
"""Characters of the results and errors of a batch. The driver copies a batch several times, and each connection of
PostgreSQL keeps a buffer of a power of two for its largest one: 1 MB with the other values of the rows."""

BRIEFLY = 4
"""Outcomes wait for a quarter of the interval if the last one was alone, or if a task may wait for them."""

MOST_NAMED = 20
"""Maximum number of stuck rows that are named when a runner ends."""


class SettleBuffer:
    """Collects settlements and writes them in batches; none is dropped.

    A row that another transaction locks, or that the database refuses to change, is set apart: its outcome is tried
    again beside the batches of the others.

    Args:
        size: batch size that triggers a write immediately.
        linger: maximum wait for more settlements in seconds. It is a quarter after a single one, and while a task may
            wait for them.
        on_settled: called with each batch and its result.
        watch: deletes succeeded tasks to which nothing refers, without a row in the history; None keeps a row of all.
    """

    def __init__(
        self,
        database: Database,
        size: int,
        linger: float,
        on_settled: Callable[[Sequence[Settling], Settled], None],
        stuck: StuckRows,
        watch: SubmitWatch | None = None,
    ) -> None:
        self._database = database
        self._size = size
        self._linger = linger
        self._on_settled = on_settled
        self._stuck = stuck
        self._watch = watch
        self._items: list[Settling] = []
        self._text = 0
        """Characters of the results and errors of the items."""
        self._ready = asyncio.Event()
        """Set when the time to write the items has come."""
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._retry = asyncio.Event()
        self._answered = False
        """True if a heartbeat was written since the last error."""
        self._closing = False
        self._may_be_awaited = False
        """True unless the last batch saw that no task depends on another one: then outcomes wait for each other."""
        self._may_linger = False
        """True if the last batch had several outcomes, and none that makes room under a limit."""
        self._back_off = BackOff()
        self._session_ends = SessionEnds()
        self._apart: dict[Claim, tuple[Settling, RowFault]] = {}
        self._wake = asyncio.Event()
        self._rounds_begun = self._rounds_ended = 0
        self._round_ended = asyncio.Event()
        self.before_write: Callable[[list[Settling]], None] = lambda _: None
        """Called with each batch before it is written; the process of a runner sets it."""
        self.on_limit: Callable[[ResourceLimitReached, int], None] = lambda *_: None
        """Called with the number of outcomes that a limit of the system keeps from being written."""
        self.stalled = False
        """True while writes fail; the claimer then pauses."""
        self.runner_id = 0
        """Id of the runner."""

    def add(self, running: Running, settlement: Settlement) -> None:
        """Queue an outcome to be written."""
        self._items.append((running, settlement))
        if type(settlement.outcome) is not Done or settlement.outcome.result is not None:
            self._text += text_size(settlement.outcome)
        if len(self._items) == 1:
            self._idle.clear()
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._wait(), self._end_linger)
        if self._closing or self._fills_batch:
            self._ready.set()

    async def run(self) -> None:
        """Write batches until cancelled."""
        with contextlib.suppress(StoreError):  # while no task waits for it
            await self._database.read(prepare_successes, self._watch is not None)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._retry_apart())
            while True:
                await self._ready.wait()
                self._ready.clear()
                if self._items:
                    await self._write_next()
                if not self._items:
                    self._idle.set()
                elif self._timer is None or self._closing or self._fills_batch or self._may_be_awaited:
                    self._ready.set()

    def _wait(self) -> float:
        return self._linger if self._may_linger and not self._may_be_awaited else self._linger / BRIEFLY

    def _end_linger(self) -> None:
        self._timer = None
        self._ready.set()

    async def _write_next(self) -> None:
        """Write the oldest items. A caller with a reference to them would keep their texts until the next batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = self._batch()
        self.before_write(batch)
        try:
            await self._write(batch)
        except asyncio.CancelledError:  # `run` may start again; the fence settles the part that was written
            self._items[:0] = batch
            self._text += _text_of(batch)
            self._ready.set()
            raise

    async def drain(self, timeout: float | None) -> bool:
        """Wait until everything is written; rows that the database refuses get one more try.

        Args:
            timeout: maximum wait in seconds; None for no limit.

        Returns:
            False if outcomes are left.
        """
        self._closing = True
        self._ready.set()
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
                last = self._rounds_begun + 1
                self._stuck.retry_now("settle")
                self._wake.set()
                while self._apart and (self._rounds_ended < last or self._waits_for_locks):
                    self._round_ended.clear()
                    await self._round_ended.wait()
        except TimeoutError:
            pass
        for row in self._stuck.rows("settle")[:MOST_NAMED]:
            log.error("ending without the outcome of a stuck row: %s", stuck_text(row))
        return not self._items and not self._apart and self._idle.is_set()

    @property
    def _waits_for_locks(self) -> bool:
        return any(fault.cause is StuckCause.LOCKED for _, fault in self._apart.values())

    @property
    def refused(self) -> int:
        """The number of rows that the database refuses to change, if no other outcome is left; otherwise 0."""
        return len(self._apart) if self._idle.is_set() and not self._waits_for_locks else 0

    @property
    def full(self) -> bool:
        """True if too many outcomes, or too much text, are buffered to claim more tasks."""
        return len(self._items) + len(self._apart) >= 4 * self._size or self._text >= 4 * BATCH_TEXT

    @property
    def _fills_batch(self) -> bool:
        return len(self._items) >= self._size or self._text >= BATCH_TEXT

    def __len__(self) -> int:
        return len(self._items) + len(self._apart)

    def _batch(self) -> list[Settling]:
        """Remove and return the oldest items, at most one per task: a task can be in flight under two fences."""
        by_task, text, count, has_text = dict[int, Settling](), 0, 0, self._text > 0
        for item in self._items[: 4 * self._size]:
            if text >= BATCH_TEXT:
                break
            count += 1
            if by_task.setdefault(item[1].id, item) is item and has_text:
                text += text_size(item[1].outcome)
        batch = list(by_task.values())
        if len(batch) == count:
            del self._items[:count]
        else:
            self._items = [item for item in self._items if by_task.get(item[1].id) is not item]
        self._text -= text
        return batch

    async def _write(self, batch: list[Settling]) -> None:
        """Write a batch. Set apart the rows that are locked or refused, and wait for the end of an outage."""
        settled, faults, isolating = Settled(), dict[int, RowFault](), False
        while True:
            try:
                if isolating:
                    faults = await self._isolate(batch, settled)
                else:
                    await self._settle([settlement for _, settlement in batch], settled)
            except StoreError as error:
                isolating = not isolating and self._concerns_rows(error)
                if not isolating:
                    await self._back_off_for(len(batch), error)
            except Exception:  # a bug must not stop all settling
                log.exception("could not write %d outcomes", len(batch))
                isolating = True
            else:
                break
        self.stalled = False
        self._back_off.reset()
        self._session_ends.reset()
        self._may_be_awaited = not settled.saw_none
        self._may_linger = len(batch) > 1 and not any(running.makes_room for running, _ in batch)
        self._finish(batch, settled, faults)

    def _concerns_rows(self, error: StoreError) -> bool:
        """True if the database answered, so that the error may be one of single rows.

        A trigger can raise the SQLSTATE of a server, such as that of a full disk. It counts as an outage until another
        write has succeeded.
        """
        fault = self._session_ends.fault_of(error)
        if fault is None or row_fault(error) is None or not is_server_fault(error):
            return fault is not None
        answered, self._answered = self.stalled and self._answered, False
        return answered

    def _finish(
        self,
        batch: Sequence[Settling],
        settled: Settled,
        faults: Mapping[int, RowFault],
        sessions: Mapping[int, BlockingSession] = NO_SESSIONS,
    ) -> None:
        """Set apart the outcomes that could not be written, and report the others."""
        if not (faults or settled.locked or self._apart):
            self._report(batch, settled)
            return
        written = []
        for item in batch:
            running, settlement = item
            id, claim = settlement.id, (settlement.id, settlement.fence)
            fault = None if settled.has(id) else faults.get(id, ROW_LOCKED)
            if fault is None:
                self._apart.pop(claim, None)
                written.append(item)
            else:
                self._apart[claim] = item, fault
                self._stuck.set_apart("settle", id, running.task.handler, fault, sessions.get(id))
        self._stuck.free("settle", [settlement.id for _, settlement in written])
        if len(written) < len(batch):
            self._wake.set()
        self._report(written, settled)

    def _report(self, batch: Sequence[Settling], settled: Settled) -> None:
        """Report a written batch; a failure must not stop all settling."""
        try:
            if batch:
                self._on_settled(batch, settled)
        except Exception:
            log.exception("outcomes of %s were written, but could not be processed", count_noun(len(batch), "task"))

    async def _isolate(self, batch: Iterable[Settling], settled: Settled) -> dict[int, RowFault]:
        """Write the rest of a batch in halves, and return the faults of the rows that the database refuses, by id."""
        rest = [item for item in batch if not settled.has(item[1].id)]
        refused: list[tuple[Settling, RowFault]] = []
        write = partial(self._settle_judged, settled)
        await write_in_halves(rest, write, lambda *pair: refused.append(pair), part_fault)
        faults: dict[int, RowFault] = {}
        for item, fault in refused:
            last = await self._reject(item, fault, settled) if fault.of_value else fault
            if last is not None:
                faults[item[1].id] = last
        return faults

    async def _settle_judged(self, settled: Settled, items: Sequence[Settling]) -> None:
        batch = [settlement for _, settlement in items]
        try:
            settled.add(await self._database.write(settle, self.runner_id, batch, SettleShape.JUDGED, self._watch))
        except StoreError:
            raise
        except Exception as error:  # a bug, perhaps with the value of one outcome
            raise ValueRejected(why=f"{type(error).__name__} {error}") from None

    async def _reject(self, item: Settling, fault: RowFault, settled: Settled) -> RowFault | None:
        """Store a task as dead whose outcome the database does not accept; return the fault if it refuses this too."""
        running, settlement = item
        failure = Failure("DatabaseRefused", f"the database refused the outcome of this attempt: {fault.fact}")
        rejected = running, settlement._replace(outcome=Dead(failure=failure))
        faults: list[RowFault] = []
        await write_in_halves([rejected], partial(self._settle_judged, settled), lambda _, last: faults.append(last))
        if faults:
            return faults[0]
        if settled.has(settlement.id):
            text = "outcome of task %d rejected by the database, stored as dead: %s"
            log.error(text, settlement.id, one_line(fault.fact, 300))
        return None

    async def _retry_apart(self) -> None:
        """Write the outcomes that were set apart, beside the batches of the others."""
        while True:
            self._wake.clear()
            await within(self._wake, self._stuck.until_due("settle") if self._apart else None)
            await asyncio.sleep(LEAST_PAUSE)
            self._rounds_begun += 1
            for group in self._due():
                try:
                    await self._retry_group(group)
                except StoreError as error:
                    if (fault := row_fault(error)) is not None:  # the only row of its group
                        self._finish(group, Settled(), {item.id: fault for _, item in group})
                        continue
                    self._answered = False
                    log.debug("%s apart could not be tried again: %s", count_noun(len(group), "outcome"), error)
                    await asyncio.sleep(OUTAGE_PAUSE)
            self._rounds_ended = self._rounds_begun
            self._round_ended.set()

    def _due(self) -> list[list[Settling]]:
        """The outcomes to try now, at most one per task: those of locked rows together, the others one by one."""
        resting, due = self._stuck.resting("settle"), dict[int, tuple[Settling, RowFault]]()
        for (task_id, _), entry in self._apart.items():
            if task_id not in resting:
                due.setdefault(task_id, entry)
        locked = [item for item, fault in due.values() if fault.cause is StuckCause.LOCKED]
        refused = [[item] for item, fault in due.values() if fault.cause is StuckCause.REFUSED]
        return [locked, *refused] if locked else refused

    async def _retry_group(self, group: list[Settling]) -> None:
        settled = Settled()
        faults = await self._isolate(group, settled)
        locks = await locks_of_faults(self._database, faults)
        faults |= {id: with_place(faults[id], lock) for id, lock in locks.items()}
        blocked = settled.locked | {id for id, fault in faults.items() if fault.cause is StuckCause.LOCKED}
        rest = sorted(blocked - locks.keys())
        sessions = await blocking_sessions(self._database, rest) if rest else {}
        self._finish(group, settled, faults, sessions | {id: lock.session for id, lock in locks.items()})

    async def _back_off_for(self, outcomes: int, error: StoreError) -> None:
        self.stalled, self._answered = True, False
        wait = self._back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
        number, fault = count_noun(outcomes, "outcome"), row_fault(error)
        why = error if fault is None else one_line(fault.fact, 300)
        log.warning("%s: %s buffered, retrying in %.1f s: %s", outage(error), number, wait, why)
        if isinstance(error, ResourceLimitReached):
            self.on_limit(error, outcomes + len(self))
        self._retry.clear()
        await within(self._retry, wait)

    def note_write(self) -> None:
        """Retry a failed write immediately, because another write has succeeded."""
        self._answered = True
        self._retry.set()

    async def _settle(self, settlements: list[Settlement], settled: Settled) -> None:
        """Settle the remaining items, on the fast path where possible."""
        verbs, rest, settled.saw_none = settled.verbs, settlements, False
        if verbs:
            rest = [item for item in rest if item.id not in verbs]
        done = [item for item in rest if type(item.outcome) is Done]
        if done:
            ended = await self._database.write(settle, self.runner_id, done, SettleShape.SUCCESSES, self._watch)
            verbs |= ended.verbs
            rest = [item for item in rest if item.id not in verbs] if len(verbs) < len(settlements) else []
            settled.saw_none = ended.saw_none and len(done) == len(settlements) and not rest
        if rest:
            settled.add(await self._database.write(settle, self.runner_id, rest, SettleShape.JUDGED, self._watch))


def text_size(outcome: Outcome) -> int:
    """Return the number of characters of the result or the error of an outcome."""
    if type(outcome) is Done:
        return len(outcome.result) if outcome.result is not None else 0
    failure: Failure | None = getattr(outcome, "failure", None)
    return 0 if failure is None else len(failure.message) + len(failure.traceback)


def _text_of(batch: Iterable[Settling]) -> int:
    return sum(text_size(settlement.outcome) for _, settlement in batch)
