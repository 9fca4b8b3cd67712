"""Hooks: calls the functions of @on_success and its siblings after attempts, and of @on_start and @on_stop."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from runner.engine.open_resources import SideThreads
from runner.engine.slots import Running
from runner.handlers.life_cycle import HOOKS, AttemptEnd, Callback, Event, LifeCycle
from runner.model.outcome import Outcome

log = logging.getLogger("runner")

PARALLEL = 20
"""Maximum number of functions that run at the same time."""

MOST_PENDING = 10_000
"""Maximum number of calls that wait; further ones are dropped and logged."""


def attempt_end(running: Running, verb: str, outcome: Outcome, duration: float | None) -> AttemptEnd:
    """Describe the end of an attempt, after it was written.

    Args:
        running: the task.
        verb: the move of the task.
        outcome: the outcome of the attempt.
        duration: seconds that the handler ran; None if it did not start.
    """
    task, failure = running.task, getattr(outcome, "failure", None)
    ids = (task.id, task.handler, task.queue, task.key, task.attempt, task.max_attempts, verb, duration)
    if verb == "succeed":
        return AttemptEnd(*ids)
    return AttemptEnd(*ids, failure.reason if failure else getattr(outcome, "why", None), running.error)


class Hooks:
    """Calls registered functions in the background. An exception is logged and changes nothing.

    Args:
        life_cycle: the registered functions.
        values: the open resources by name.
    """

    def __init__(self, life_cycle: LifeCycle, values: Mapping[str, Any]) -> None:
        self._life_cycle = life_cycle
        self._values = values
        self.threads = SideThreads("runner-hooks", PARALLEL)
        self._room = asyncio.Semaphore(PARALLEL)
        self._calls: set[asyncio.Task[None]] = set()
        self._dropped = 0

    @property
    def has_listeners(self) -> bool:
        """True if a function wants the ends of attempts."""
        return any(map(self.listens, HOOKS))

    def listens(self, verb: str) -> bool:
        """True if a function wants the ends of attempts with this move."""
        return any(self._life_cycle.of(event) for event in HOOKS.get(verb, ()))

    def publish(self, end: AttemptEnd) -> None:
        """Call the functions for the end of an attempt, without waiting for them."""
        for event in HOOKS.get(end.verb, ()):
            for callback in self._life_cycle.of(event):
                if len(self._calls) >= MOST_PENDING:
                    self._drop(callback)
                    continue
                call = asyncio.ensure_future(self._call(callback, end))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    def _drop(self, callback: Callback) -> None:
        self._dropped += 1
        if self._dropped.bit_count() == 1:  # 1, 2, 4, ...: a slow hook must not fill the log
            log.error("%s is too slow: %d of its calls were dropped", callback.location, self._dropped)

    async def call_all(self, event: Event) -> None:
        """Call the functions of a start or a stop, one after the other."""
        for callback in self._life_cycle.of(event):
            await self._call(callback)

    async def _call(self, callback: Callback, *subject: AttemptEnd) -> None:
        try:
            arguments = callback.arguments(self._values, *subject)
        except KeyError as error:
            log.error("%s (%s) was not called: resource %s is not open", callback.location, callback.event, error)
            return
        try:
            async with self._room:
                if callback.is_async:
                    await callback.function(**arguments)
                else:
                    await self.threads.call(partial(callback.function, **arguments))
        except asyncio.CancelledError:
            log.error("%s (%s) did not end in time", callback.location, callback.event)
            raise
        except BaseException as error:
            log.error("%s (%s) failed", callback.location, callback.event, exc_info=error)

    async def drain(self, limit: float) -> None:
        """Wait for the calls in progress.

        Args:
            limit: maximum wait in seconds; then they are cancelled.
        """
        if not self._calls:
            return
        _, late = await asyncio.wait(self._calls, timeout=limit)
        for call in late:
            call.cancel()
        if late:
            await asyncio.wait(late, timeout=limit)
