"""Claiming: scans that look for due tasks, and take what fits."""

import asyncio
import contextlib
import contextvars
import logging
import random
import time
from collections.abc import Callable, Mapping

from runner.columns import EARLIEST
from runner.engine.slots import InHand, Slots
from runner.errors import DatabaseAway, StoreError
from runner.handlers import Handler
from runner.policy.polling import BackOff, Pace
from runner.policy.selection import Lane, Lanes, Place
from runner.store.claim import Claimant, Terms, claim, claim_suspect
from runner.store.database import Database
from runner.store.survey import survey
from runner.task import Claimed

log = logging.getLogger("runner.claim")

LINGER = 0.005
"""Seconds for which a free slot waits for others, when there are few."""


class Claiming:
    """Claims tasks for one runner.

    Args:
        database: to claim from.
        handlers: that this runner executes, by name.
        terms: what they give to tasks that do not say it themselves, by name.
        queues: to claim from; empty for all.
        in_hand: what the runner has, and what fits.
        batch: tasks that one claim takes at most.
        taken: told of what each claim took.
        may: tells whether this runner may claim now.
        start: called when tasks were taken in hand that wait for these slots.
        put_off: called with a task that was handed out while an earlier claim of it is still in hand.
    """

    def __init__(  # noqa: PLR0913 - what a runner is put together from
        self,
        database: Database,
        handlers: Mapping[str, Handler],
        terms: Mapping[str, Terms],
        queues: frozenset[str],
        in_hand: InHand,
        batch: int,
        *,
        taken: Callable[[list[Claimed]], None],
        may: Callable[[], bool],
        start: Callable[[Slots], None],
        put_off: Callable[[Claimed], None],
    ) -> None:
        self._database = database
        self._handlers = handlers
        self._terms = terms
        self._queues = queues
        self._in_hand = in_hand
        self._batch = batch
        self._taken = taken
        self._may = may
        self._start = start
        self._put_off = put_off
        self.lanes = Lanes(self._accepts, Place(database.dialect.instant(EARLIEST), 0))
        self._pace = Pace()
        self._back_off = BackOff()
        self._resume = 0.0
        self._resting = asyncio.Event()
        self._resting.set()
        self._again = False
        self._soon: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()
        """The runner's own: a scan that a task's end sets off must not see what that task has set."""
        self._news = False
        self.hungry = False
        """True while there may be due tasks that found no room, or could not be looked for: scan again when it can."""
        self._suspicious = False
        """True when a suspect was in hand at the last scan: there may be more, and one is run at a time."""
        self.open = False
        """False while nothing may be claimed: before the runner is registered, while it drains."""
        self.who = Claimant(0, "")

    async def scan(self, news: bool = False) -> None:
        """Look for due tasks and take what fits, until there are none or there is no room.

        Args:
            news: something was submitted: claim from the lanes that were due lately before looking at all of them.
        """
        self._again = True
        self._news |= news
        if not self._resting.is_set():
            return  # the scan under way looks once more
        self._resting.clear()
        try:
            while self._again and self._allowed():
                self._again = False
                await self._scan()
                self._back_off.succeeded()
        except Exception as error:  # a fault of ours must not end all claiming
            if not isinstance(error, StoreError):
                log.exception("a scan failed")
            self._again = True
            wait = self._back_off.failed(random.random())  # noqa: S311 - spreads runners, guards nothing
            self._resume = time.monotonic() + wait
            away = isinstance(error, DatabaseAway)
            log.warning("%s, next claim in %.1f s: %s", "database away" if away else "claim failed", wait, error)
        finally:
            self.hungry |= self._again
            self._resting.set()

    def room_again(self) -> None:
        """A slot has become free, or the database answers again: scan, if there was more to do than could be done."""
        more = self.hungry or (self._suspicious and not self._in_hand.suspects)
        if not more or self._soon is not None or not self._resting.is_set() or not self._allowed():
            return
        loop = asyncio.get_running_loop()
        # Claiming one by one what ends one by one would cost more than it does: wait a moment for company.
        wait = 0.0 if self._worth_it() else LINGER
        self._soon = loop.call_later(wait, self._scan_again, context=self._context)

    def _scan_again(self) -> None:
        self._soon = None
        self.hungry = False
        self._background = asyncio.ensure_future(self.scan())

    async def close(self, limit: float) -> None:
        """Claim nothing more; what a claim under way takes is in hand when this returns.

        Args:
            limit: seconds to wait for that claim.
        """
        self.open = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._resting.wait()

    @property
    def idle(self) -> bool:
        """True when no scan is under way and the last one left nothing due behind."""
        return self._resting.is_set() and not self.hungry

    def _worth_it(self) -> bool:
        """Enough room for a claim of its own, among the slots that the due lanes want."""
        kinds = {self._slots(lane) for lane in self.lanes.places}
        return not kinds or any(slots.room() >= min(self._batch, max(1, slots.size // 4)) for slots in kinds)

    async def _scan(self) -> None:
        self.hungry = False
        if self._news:
            self.lanes.recall()
        surveyed = not self.lanes or (self._pace.due(time.monotonic()) and not self._news)
        if surveyed:
            await self._survey()
        self._news = False
        while self.lanes and self._allowed():
            taken = await self._claim_round()
            if taken is None:
                self.hungry = True
                break
            if surveyed and not taken and not self.lanes:
                break  # what a survey finds and a claim passes over, e.g. a suspect, would be found for ever
            surveyed = not self.lanes or self._pace.due(time.monotonic())
            if surveyed:
                await self._survey()
            await asyncio.sleep(0)
        self._suspicious = self._in_hand.suspects
        if self._allowed() and not self._suspicious:
            await self._claim_suspect()

    def _allowed(self) -> bool:
        return self.open and self._may() and time.monotonic() >= self._resume

    async def _survey(self) -> None:
        started = time.monotonic()
        self.lanes.survey(await self._database.ask(survey))
        self._pace.done(started, time.monotonic())

    async def _claim_round(self) -> int | None:
        """Claim once for each kind of slots, and tell how much was taken; None when no lane's slots have room."""
        taken = None
        for slots in (self._in_hand.on_loop, self._in_hand.in_threads):
            lanes = {lane: place for lane, place in self.lanes.places.items() if self._slots(lane) is slots}
            limit = min(slots.room(), self._batch)
            if not lanes or limit <= 0:
                continue
            claimed = await self._database.state(claim, self.who, lanes, self._terms, limit)
            self.lanes.advance(lanes, claimed, limit)
            self._take(claimed, slots)
            taken = (taken or 0) + len(claimed)
        return taken

    async def _claim_suspect(self) -> None:
        lanes = {lane: place for lane, place in self.lanes.known.items() if self._slots(lane).free}
        if lanes:
            for task in await self._database.state(claim_suspect, self.who, lanes, self._terms):
                self._suspicious = True
                self._take([task], self._slots(Lane(task.queue, task.handler, task.priority)))

    def _take(self, claimed: list[Claimed], slots: Slots) -> None:
        self._taken(claimed)
        for task in claimed:
            if self._in_hand.add(task, self._handlers[task.handler]) is None:
                log.warning("task %d was handed out while it is in hand; its lease must have run out", task.id)
                self._put_off(task)
        if self.open:
            self._start(slots)

    def _slots(self, lane: Lane) -> Slots:
        return self._in_hand.slots_of(self._handlers[lane.handler])

    def _accepts(self, lane: Lane) -> bool:
        return lane.handler in self._handlers and (not self._queues or lane.queue in self._queues)
