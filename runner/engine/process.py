"""The runner process: claim -> slots -> execute -> settle buffer, and how it starts and stops."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from runner.engine.buffer import SettleBuffer, Settling
from runner.engine.claiming import Claiming
from runner.engine.execute import Executor
from runner.engine.lease import Lease
from runner.engine.news import listen, watch
from runner.engine.slots import InHand, Running, Slots
from runner.engine.tally import Tally
from runner.engine.ticks import Tick, Ticks
from runner.errors import DatabaseAway, StoreError
from runner.handlers import Handler
from runner.migrations import ensure
from runner.outcome import Outcome, Release
from runner.policy.polling import BackOff
from runner.settings import Settings
from runner.store.claim import Claimant, Terms
from runner.store.database import Database
from runner.store.pending import pending
from runner.store.rescue import rescue
from runner.store.runners import Beat
from runner.store.settle import Settled, Settlement
from runner.store.statistics import write_minutes

log = logging.getLogger("runner")

RESCUE_EVERY = 1.0
STATISTICS_EVERY = 1.0
PRUNE_EVERY = 60.0
IDLE_EVERY = 0.1
"""Seconds between runs of the ticks that nobody needs to set."""


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
        self.tally = Tally()
        self.in_hand = InHand(settings.slots, settings.threads)
        timeout = settings.timeout.total_seconds() if settings.timeout else None
        self.executor = Executor(settings.threads, timeout, int(settings.result_limit))
        self.buffer = SettleBuffer(
            self.database, settings.flush_size, settings.flush_every.total_seconds(), self._settled
        )
        self.lease = Lease(self.database, settings.lease.total_seconds(), handlers, self.in_hand.capacity)
        self.claiming = Claiming(
            self.database,
            handlers,
            {name: _terms(handler, settings) for name, handler in handlers.items()},
            frozenset(settings.queues),
            self.in_hand,
            settings.batch,
            may=lambda: self.lease.held and not self.buffer.away,
            start=self._start,
        )
        self.later = 0
        """Tasks that were left because they are scheduled for later, when the runner ends by itself."""
        self._stop = asyncio.Event()
        self._starting = False
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
            with contextlib.ExitStack() as helpers:
                for work in (self.buffer.run(), self._news()):
                    helpers.callback(asyncio.ensure_future(work).cancel)
                ticks = Ticks(self._table(until_idle))
                ticks.start()
                self.claiming.open = True
                await self._stop.wait()
                ticks.stop("claim", "rescue", "prune", "idle")
                clean = await self._drain()
                ticks.shutdown()
                return clean
        finally:
            self.executor.close()
            await self.database.dispose()

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
            Tick("rescue", self._rescue, RESCUE_EVERY),
            Tick("statistics", self._write_statistics, STATISTICS_EVERY, first=STATISTICS_EVERY),
            Tick("prune", self._prune, PRUNE_EVERY, first=PRUNE_EVERY),
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
                wait = back_off.failed(time.monotonic() % 1)
                log.warning("waiting for the database, next try in %.1f s: %s", wait, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), wait)
            else:
                return True
        return False

    async def _register(self) -> None:
        await self.lease.take()
        self.buffer.holder = self.lease.id
        self.claiming.who = Claimant(self.lease.id, self.lease.identity.host)
        known = len(self.handlers)
        log.info("runner %d at work on %s with %d handlers", self.lease.id, self.database.url, known)

    async def _news(self) -> None:
        if self.database.dialect.isolates_rows:
            if self.settings.notify:
                await listen(self.database, self._look)
        else:
            path = self.database.engine.url.database or ""
            await watch(path, self.settings.watch_every.total_seconds(), self._look)

    def _look(self) -> None:
        """Scan soon, and do not wait for its end."""
        if self.claiming.open:
            self._looking = asyncio.ensure_future(self._scan())

    async def _scan(self) -> None:
        await self.claiming.scan()
        due = self.claiming.lanes.next_due
        if due is not None and due < self.settings.every.total_seconds():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(due, self._look)

    def _start(self, slots: Slots) -> None:
        """Start what has a slot. A body that ends at once frees its slot while this loop runs, which then goes on."""
        if self._starting:
            return
        self._starting = True
        try:
            while (running := slots.next()) is not None:
                running.started = time.monotonic()
                running.job = _begin(self._execute(running))
        finally:
            self._starting = False

    async def _execute(self, running: Running) -> None:
        outcome = await self.executor.execute(running, lambda: self._left(running.slots))
        self._settle(running, outcome, time.monotonic() - running.started)

    def _left(self, slots: Slots) -> None:
        slots.give_back()
        if slots.waiting:
            self._start(slots)
        self.claiming.room_again()

    def _settle(self, running: Running, outcome: Outcome, duration: float | None) -> None:
        task = running.task
        plan = running.handler.defaults.retry or self.settings.retry
        self.buffer.add(running, Settlement(task.id, task.fence, outcome, duration, plan))

    def _settled(self, batch: list[Settling], settled: Settled) -> None:
        for running, settlement in batch:
            task = running.task
            self.in_hand.tasks.pop(task.id, None)
            verb = settled.verbs.get(task.id)
            if verb is None:
                log.warning("task %d %s: fenced out, its outcome is not written", task.id, task.handler)
                self.tally.verbs["fenced"] += 1
                continue
            self.tally.add(verb, task.queue, task.handler, task.attempt, settlement.duration)
            if verb != "succeed":
                _report(running, settlement, verb)
        self.claiming.room_again()

    async def _beat(self) -> None:
        await self.lease.renew(len(self.in_hand), self._heard)
        if self.lease.struck_out:
            await self._register()

    def _heard(self, answer: Beat) -> None:
        if not answer.alive:
            log.warning("runner %d was taken for lost; what it has in hand is not its own any more", self.lease.id)
            for running in self.in_hand.started():
                running.cancel()
        for task_id in answer.cancelled:
            if (found := self.in_hand.tasks.get(task_id)) is not None and not found.cancelled:
                found.cancel()
        if answer.wish == "drain":
            self.stop()

    async def _rescue(self) -> None:
        with contextlib.suppress(DatabaseAway):  # claims and beats say so already
            verbs = await self.database.write(rescue, self.settings.lease.total_seconds())
            for task_id, verb in verbs.items():
                self.tally.verbs["rescue" if verb == "rescue" else verb] += 1
                log.warning("task %d: its runner is lost, %s", task_id, _FATE[verb])
            if verbs:
                self._look()

    async def _prune(self) -> None:
        with contextlib.suppress(DatabaseAway):
            pass

    async def _write_statistics(self) -> None:
        minutes = self.tally.changed()
        try:
            if minutes:
                await self.database.write(write_minutes, self.lease.id, minutes)
        except StoreError:
            self.tally.again(minutes)

    async def _end_if_idle(self) -> None:
        if len(self.in_hand) or not self.claiming.idle:
            return
        with contextlib.suppress(DatabaseAway):
            left = await self.database.read(pending, list(self.handlers), self.settings.queues)
            if not left.running and not left.returning:
                self.later = left.later
                self.stop()

    async def _drain(self) -> bool:
        """Hand back what has not started, wait for what has, and write everything down."""
        self.claiming.open = False
        limit = self.settings.drain_timeout.total_seconds()
        for running in self.in_hand.unstarted():
            self._settle(running, Release("its runner was stopped before it had started"), None)
        jobs = [running.job for running in self.in_hand.started() if running.job is not None]
        if jobs:
            log.info("draining: %d tasks are running, waiting up to %.0f s", len(jobs), limit)
            _, pending_jobs = await asyncio.wait(jobs, timeout=limit)
            for job in pending_jobs:
                job.cancel()
            if pending_jobs:
                log.warning("%d tasks did not end in time and were interrupted", len(pending_jobs))
                await asyncio.wait(pending_jobs, timeout=1)
        return await self._leave(limit)

    async def _leave(self, limit: float) -> bool:
        drained = await self.buffer.drained(max(limit, 1.0))
        if not drained:
            log.error("%d outcomes could not be written; their tasks will be rescued", len(self.in_hand))
            return False
        try:
            await self._write_statistics()
            if not self.in_hand.tasks:
                await self.lease.end()
        except StoreError as error:
            log.warning("could not deregister, the lease will run out: %s", error)
        log.info("stopped: %s", ", ".join(f"{verb} {count}" for verb, count in self.tally.verbs.items()) or "no tasks")
        return True


_FATE = {"rescue": "it waits again", "bury": "it has no attempts left and is dead", "cancel": "it was terminated"}


def _terms(handler: Handler, settings: Settings) -> Terms:
    given = handler.defaults
    default = settings.timeout.total_seconds() if settings.timeout else None
    return Terms(given.max_attempts or settings.max_attempts, given.timeout if given.timeout is not None else default)


def _begin(work: Any) -> "asyncio.Task[None]":
    """Start a coroutine at once where Python can (3.12): most bodies then never wait for their turn on the loop."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


def _report(running: Running, settlement: Settlement, verb: str) -> None:
    """One line for an attempt that did not succeed; never with its payload."""
    task, failure = running.task, getattr(settlement.outcome, "failure", None)
    why = failure.reason if failure else getattr(settlement.outcome, "why", "")
    attempt = f"attempt {task.attempt}/{task.max_attempts}"
    log.info("task %d %s %s: %s: %s", task.id, task.handler, attempt, verb, " ".join(why[:300].split()))
