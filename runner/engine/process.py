"""The runner process: claim -> slots -> execute -> settle buffer, and how it starts and stops."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Mapping

from runner.engine.beside import beside
from runner.engine.claiming import Claiming
from runner.engine.following import Following
from runner.engine.lease import Lease, identity
from runner.engine.news import listen, watch
from runner.engine.release import Release
from runner.engine.tally import Tally
from runner.engine.terms import terms
from runner.engine.ticks import Tick, Ticks
from runner.engine.upkeep import Upkeep
from runner.engine.wishes import Wishes
from runner.engine.working import Working
from runner.errors import DatabaseAway, StoreError
from runner.handlers import Handler
from runner.migrations import ensure
from runner.people.terminal import counted
from runner.policy.polling import BackOff, Pace
from runner.settings import Settings
from runner.store.claim import Claimant
from runner.store.database import Database
from runner.store.dependencies import Ended
from runner.store.pending import pending
from runner.store.rescue import any_lost, rescue
from runner.store.runners import Beat
from runner.store.statistics import write_statistics
from runner.task import MOVES

log = logging.getLogger("runner")

RESCUE_EVERY = 1.0
SWEEP_EVERY = 2.0
STATISTICS_EVERY = 2.0
PRUNE_EVERY = 60.0
RELEASE_EVERY = 30.0
IDLE_EVERY = 0.1
"""Seconds between runs of the ticks that nobody needs to set."""

RESCUE_REST = 2.0
"""Seconds that the look for lost tasks rests at most, however long it took: they are to come back in time."""

LAST_WRITES = 1.0
"""Seconds that the last outcomes are given to be written, however long draining took."""

LAST_RUNS = 10.0
"""Seconds that a tick's last run is given to end."""

PATIENCE = 2.0
"""Seconds for which a task may wait in hand for a slot, before it is handed back with the next beat."""


class Runner:
    """One process's worth of claiming and executing; the parts are put together here.

    Args:
        settings: how.
        handlers: what, by name.
    """

    def __init__(self, settings: Settings, handlers: Mapping[str, Handler]) -> None:
        self.settings = settings
        self.handlers = handlers
        self.database = Database.of(settings)
        self.working = Working(settings, self.database, self._room_again, self._ended)
        self.following = Following(self.database, settings.notify, self.tally, self._hear)
        in_hand = self.working.in_hand
        told = identity(handlers, settings.queues, in_hand)
        self.lease = Lease(self.database, settings.lease.total_seconds(), told)
        self.claiming = Claiming(
            self.database,
            handlers,
            {name: terms(handler, settings) for name, handler in handlers.items()},
            frozenset(settings.queues),
            in_hand,
            settings.batch,
            may=lambda: self.lease.held and not self.working.buffer.away and not self.working.buffer.full,
            taken=self.tally.arrived,
            start=self.working.start,
            put_off=lambda task: self.working.put_off(task, handlers[task.handler]),
        )
        self.later = 0
        """Tasks that were left because they are scheduled for later, when the runner ends by itself."""
        self._stop = asyncio.Event()
        self.wishes = Wishes(self.lease, self.working, self.stop, self._look)
        self._rescuing = Pace(every=0.0, most=RESCUE_REST)
        self._upkeep = Upkeep(self.database, settings, self._stop.is_set)
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, *, until_idle: bool = False) -> bool:
        """Claim and execute tasks until `stop`.

        Args:
            until_idle: end when nothing runs, and nothing is due or will come back for another attempt.

        Returns:
            True when everything that was started has ended and is written down.

        Raises:
            StoreError: when the database refuses us for good, e.g. its schema is too new.
        """
        try:
            if not await self._enter():
                return True
            async with beside(self.working.buffer.run(), self.following.run(), self._news(), broken=self.stop):
                ticks = Ticks(self._table(until_idle))
                ticks.start()
                asyncio.get_running_loop().call_later(self.settings.initial_delay.total_seconds(), self._open)
                await self._stop.wait()
                ticks.stop("claim", "rescue", "prune", "idle")
                clean = await self._leave()
                await ticks.shutdown(LAST_RUNS)
                return clean
        finally:
            self.working.executor.close()
            await self.database.dispose()

    @property
    def tally(self) -> Tally:
        """What has been done so far."""
        return self.working.tally

    def stop(self) -> None:
        """Claim nothing more, let what runs end, and leave."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """True since `stop` was called."""
        return self._stop.is_set()

    def _table(self, until_idle: bool) -> list[Tick]:
        settings = self.settings
        every, first = settings.every.total_seconds(), settings.initial_delay.total_seconds()
        table = [
            # With fixed rate a scan that takes longer than the period must not keep the next tick from coming.
            Tick("claim", self._look if settings.mode == "fixed-rate" else self._scan, every, settings.mode, first),
            Tick("beat", self._beat, settings.beat.total_seconds(), "fixed-rate", settings.beat.total_seconds()),
            # At a rate, these are due at one moment: waking up is most of what an idle runner costs.
            Tick("rescue", self._rescue, RESCUE_EVERY, "fixed-rate"),
            Tick("following", self.following.sweep, SWEEP_EVERY, "fixed-rate"),
            Tick("statistics", self._write_statistics, STATISTICS_EVERY, "fixed-rate", STATISTICS_EVERY),
            Tick("prune", self._upkeep.run, PRUNE_EVERY, first=PRUNE_EVERY),
            Tick("release", Release(self.database).look, RELEASE_EVERY, first=RELEASE_EVERY),
        ]
        return [*table, Tick("idle", self._end_if_idle, IDLE_EVERY, first=first + IDLE_EVERY)] if until_idle else table

    async def _enter(self) -> bool:
        """Register, as soon as the database is there; False when told to stop before."""
        back_off = BackOff()
        while not self._stop.is_set():
            try:
                await ensure(self.database)
                await self._register()
            except DatabaseAway as error:
                self.lease.distrust()
                wait = back_off.failed(random.random())  # noqa: S311 - spreads runners, guards nothing
                log.warning("waiting for the database, next try in %.1f s: %s", wait, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), wait)
            else:
                return True
        return False

    async def _register(self) -> None:
        await self.lease.take()
        self.tally.forget_minutes()
        self.working.buffer.holder = self.lease.id
        self.claiming.who = Claimant(self.lease.id, self.lease.identity.host)
        known = counted(len(self.handlers), "handler")
        log.info("runner %d at work on %s with %s", self.lease.id, self.database.url, known)

    async def _news(self) -> None:
        if self.database.dialect.isolates_rows:
            if self.settings.notify:
                await listen(self.database, self._hear)
        else:
            path = self.database.engine.url.database or ""
            await watch(path, self.settings.watch_every.total_seconds(), self._hear)

    def _open(self) -> None:
        """Let claims begin; until then news is not listened to either."""
        self.claiming.open = not self.stopping
        self._look()

    def _look(self) -> None:
        """Scan soon, and do not wait for its end."""
        if self.claiming.open:
            self._looking = asyncio.ensure_future(self._scan())

    def _hear(self) -> None:
        """Something was submitted: hurry."""
        if self.claiming.open:
            self._looking = asyncio.ensure_future(self._scan(news=True))

    def _room_again(self) -> None:
        self.claiming.room_again()

    def _ended(self, task: Ended) -> None:
        self.following.add(task)

    async def _scan(self, news: bool = False) -> None:
        await self.claiming.scan(news)
        due = self.claiming.lanes.next_due
        if due is not None and due < self.settings.every.total_seconds():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(due, self._look)

    async def _beat(self) -> None:
        await self.lease.renew(len(self.working.in_hand), self._heard)
        await self.wishes.carry_out()
        if self.lease.struck_out and not self.stopping:
            await self._register()
        if self.lease.held:
            self.working.hand_back(PATIENCE)
            self.working.buffer.hurry()
        self._room_again()

    def _heard(self, answer: Beat) -> None:
        if not answer.alive:
            log.warning("runner %d was taken for lost; what it has in hand is not its own any more", self.lease.id)
            self.working.cancel(list(self.working.in_hand.tasks))
        self.working.cancel(answer.cancelled)
        self.wishes.heard = answer.wish

    async def _rescue(self) -> None:
        started, grace = time.monotonic(), self.settings.lease.total_seconds()
        if not self.lease.may_rescue or not self._rescuing.due(started):
            return
        with contextlib.suppress(DatabaseAway):  # claims and beats say so already
            lost = await self.database.ask(any_lost, self.lease.id, grace)
            self._rescuing.done(started, time.monotonic())
            rescued = await self.database.write(rescue, grace) if lost else {}
            for task_id, task in rescued.items():
                self.tally.add(task.verb, task.queue, task.handler, task.attempt, None)
                if MOVES[task.verb].target.final:
                    self._ended(Ended(task_id, task.handler, task.key))
                log.warning("task %d %s: its runner is lost, %s", task_id, task.handler, _FATE[task.verb])
            if rescued:
                self._look()

    async def _write_statistics(self) -> None:
        minutes, arrivals = self.tally.changed(), self.tally.arrivals()
        try:
            if minutes or arrivals:
                await self.database.write(write_statistics, self.lease.id, minutes, arrivals)
        except StoreError:
            self.tally.again(minutes, arrivals)

    async def _end_if_idle(self) -> None:
        if len(self.working.in_hand) or not (self.claiming.idle and self.following.idle):
            return
        with contextlib.suppress(DatabaseAway):
            left = await self.database.read(pending, list(self.handlers), self.settings.queues)
            if not left.running and not left.returning and await self.following.exhausted():
                self.later = left.later
                self.stop()

    async def _leave(self) -> bool:
        """End what is in hand, write everything down, and deregister; all of it within the drain timeout."""
        limit = self.settings.drain_timeout.total_seconds()
        end = time.monotonic() + limit
        await self.claiming.close(limit)
        ended = await self.working.finish(max(0.0, end - time.monotonic()))
        written = await self.working.buffer.drained(max(LAST_WRITES, end - time.monotonic()))
        await self.following.drained(LAST_WRITES)
        if not (ended and written):
            log.error("%d tasks are left in hand; they will be rescued", len(self.working.in_hand))
            return False
        try:
            await self._write_statistics()
            await self.lease.end()
        except StoreError as error:
            log.warning("could not deregister, the lease will run out: %s", error)
        log.info("stopped: %s", ", ".join(f"{verb} {count}" for verb, count in self.tally.verbs.items()) or "no tasks")
        return True


_FATE = {"rescue": "it waits again", "bury": "it has no attempts left and is dead", "cancel": "it was terminated"}
