"""Working: what becomes of tasks in hand, from the slot to the settlement."""

import asyncio
import contextvars
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from runner.engine.buffer import SettleBuffer, Settling
from runner.engine.concluding import Concluding
from runner.engine.execute import Executor
from runner.engine.result import done
from runner.engine.slots import InHand, Running, Slots
from runner.engine.tally import Tally
from runner.handlers import Handler
from runner.outcome import Cancelled, Outcome, Release, Snooze
from runner.people.terminal import counted
from runner.settings import Settings
from runner.store.database import Database
from runner.store.dependencies import Ended
from runner.store.settle import Settled, Settlement
from runner.task import MOVES, Claimed

log = logging.getLogger("runner")

PUT_OFF = 1.0
"""Seconds for which a task is put off that is still in hand from an earlier claim."""

INTERRUPT = 1.0
"""Seconds that an interrupted body is given to clean up."""


class Working:
    """Starts tasks as slots come free, executes them, and passes on what they led to.

    Args:
        settings: how.
        database: where outcomes are written to.
        room_again: called when a slot has come free that no task waits for.
        ended: called with each task that has ended for good.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        room_again: Callable[[], None],
        ended: Callable[[Ended], None],
    ) -> None:
        self._database = database
        self._ended = ended
        self._retry = settings.retry
        self._room_again = room_again
        self._starting = False
        self._context = contextvars.copy_context()
        """The runner's own: a task starts when another ends, and must not see what that one has set."""
        timeout = settings.timeout.total_seconds() if settings.timeout else None
        self.tally = Tally()
        self.in_hand = InHand(settings.slots, settings.threads, settings.ahead)
        limit = int(settings.result_limit)
        self._done = partial(done, limit=limit)
        self.executor = Executor(settings.threads, timeout, limit, self._own_transaction)
        linger = settings.flush_every.total_seconds()
        self.buffer = SettleBuffer(database, settings.flush_size, linger, self._settled)

    def start(self, slots: Slots) -> None:
        """Start what has a slot. A body that ends at once frees its slot while this loop runs, which then goes on."""
        if self._starting:
            return
        self._starting = True
        try:
            while (running := slots.next()) is not None:
                running.job = _begin(self._execute(running), self._context.copy())
        finally:
            self._starting = False

    def resize(self, slots: int | None, threads: int | None) -> None:
        """Change how many tasks run at once, and start what waits for a slot; None leaves a number as it is."""
        self.in_hand.resize(slots, threads)
        if threads is not None:
            self.executor.resize(threads)
        for kind in (self.in_hand.on_loop, self.in_hand.in_threads):
            self.start(kind)

    def cancel(self, ids: Iterable[int]) -> None:
        """Carry out terminate requests, or the loss of the lease, for tasks in hand."""
        for task_id in ids:
            running = self.in_hand.tasks.get(task_id)
            if running is not None and not running.told:
                running.cancel()

    def put_off(self, task: Claimed, handler: Handler) -> None:
        """Give back a task that an earlier claim of it still keeps this process busy with; others may take it."""
        running = Running(task, handler, self.in_hand.slots_of(handler))
        self._settle(running, Snooze(PUT_OFF, "an earlier run of it has not ended in its runner"), None)

    def hand_back(self, patience: float) -> None:
        """Hand back what has waited for a slot for more than `patience` seconds: what was quick has become slow.

        Others may have room for it, and it must not be shown as running while nobody runs it.
        """
        self._hand_back(self.in_hand.unstarted(time.monotonic() - patience), "no slot came free in its runner")

    async def finish(self, limit: float) -> bool:
        """Hand back what has not started, and wait for what has.

        Args:
            limit: seconds; what still runs then is interrupted.

        Returns:
            False when something runs on all the same.
        """
        self._hand_back(self.in_hand.unstarted(), "its runner was stopped before it had started")
        jobs = [running.job for running in self.in_hand.started() if running.job is not None]
        if not jobs:
            return True
        log.info("draining: %s running, waiting up to %.0f s", counted(len(jobs), "task"), limit)
        _, unfinished = await asyncio.wait(jobs, timeout=limit)
        if unfinished:
            log.warning("interrupting %s that did not end in time", counted(len(unfinished), "task"))
            for job in unfinished:
                job.cancel()
            _, unfinished = await asyncio.wait(unfinished, timeout=INTERRUPT)
        return not unfinished

    def _hand_back(self, unstarted: Iterable[Running], why: str) -> None:
        for running in unstarted:
            self._settle(running, Release(why), None)

    async def _execute(self, running: Running) -> None:
        running.started = time.monotonic()
        outcome: Outcome
        if running.told:
            outcome = Cancelled("terminated before it had started")
            self._left(running.slots)
        else:
            outcome = await self.executor.execute(running, lambda: self._left(running.slots))
        took = time.monotonic() - running.started
        if running.concluded:
            self._concluded(running, outcome, took)
        else:
            self._settle(running, outcome, took)

    def _own_transaction(self, running: Running) -> Concluding:
        return Concluding(self._database, self.buffer.holder, running, self._done)

    def _concluded(self, running: Running, outcome: Outcome, took: float) -> None:
        """Let go of a task that its handler has ended itself: what the handler does after that changes nothing."""
        task = running.task
        running.over = True
        self.in_hand.drop(running)
        self.tally.add("succeed", task.queue, task.handler, task.attempt, took)
        self._ended(Ended(task.id, task.handler, task.key))
        failure = getattr(outcome, "failure", None)
        if failure is not None:
            why = " ".join(failure.reason[:300].split())
            log.warning("task %d %s had ended in its own transaction, then failed: %s", task.id, task.handler, why)
        self._room_again()

    def _left(self, slots: Slots) -> None:
        slots.give_back()
        if slots.waiting:
            self.start(slots)
        self._room_again()

    def _settle(self, running: Running, outcome: Outcome, duration: float | None) -> None:
        running.over = True  # it may be claimed anew before we hear that its settlement was accepted
        task = running.task
        plan = running.handler.defaults.retry or self._retry
        self.buffer.add(running, Settlement(task.id, task.fence, outcome, duration, plan))

    def _settled(self, batch: list[Settling], settled: Settled) -> None:
        for running, settlement in batch:
            task = running.task
            self.in_hand.drop(running)
            verb = settled.verbs.get(task.id)
            if verb is None:
                self.tally.verbs["fenced"] += 1
                log.warning("task %d %s: fenced out, its outcome is not written", task.id, task.handler)
                continue
            self.tally.add(verb, task.queue, task.handler, task.attempt, settlement.duration)
            if MOVES[verb].target.final:
                self._ended(Ended(task.id, task.handler, task.key))
            if verb != "succeed":
                _report(running, settlement, verb)
        self._room_again()


def _begin(work: Coroutine[Any, Any, None], context: contextvars.Context) -> "asyncio.Task[None]":
    """Start a coroutine at once where Python can (3.12): most bodies then never wait for their turn on the loop."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True, context=context)
    return loop.create_task(work, context=context)


def _report(running: Running, settlement: Settlement, verb: str) -> None:
    """One line for an attempt that did not succeed; never with its payload."""
    task, failure = running.task, getattr(settlement.outcome, "failure", None)
    why = failure.reason if failure else getattr(settlement.outcome, "why", "")
    attempt = f"attempt {task.attempt}/{task.max_attempts}"
    log.info("task %d %s %s: %s: %s", task.id, task.handler, attempt, verb, " ".join(why[:300].split()))
