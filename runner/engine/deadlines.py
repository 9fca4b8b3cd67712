"""Deadlines: cancel coroutines that exceed their timeout, with one timer per length of timeout.

A timer per attempt, as `asyncio.timeout` needs, is a large part of the processor time of a task that does little.
"""

import asyncio
import time

from runner.engine.slots import Running

KEPT = 64
"""Lengths of timeouts that keep their timer while no attempt has them."""


class Deadlines:
    """The deadlines of the attempts on the event loop.

    Attempts with the same timeout reach their deadlines in the order in which they began. So only the first of them
    needs a timer, and most attempts end long before it fires.
    """

    def __init__(self) -> None:
        self._attempts: dict[float, dict[Running, float]] = {}
        """The deadlines in monotonic seconds by timeout; the earliest is the first."""
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def watch(self, running: Running, limit: float) -> None:
        """Cancel an attempt when its timeout is over, unless `end` is called before.

        Args:
            running: the attempt.
            limit: its timeout in seconds, from now.
        """
        if running.job is None:
            running.job = asyncio.current_task()
        running.deadline = time.monotonic() + limit
        attempts = self._attempts.get(limit)
        if attempts is None:
            self._attempts[limit] = {running: running.deadline}
            self._timers[limit] = asyncio.get_running_loop().call_later(limit, self._expire, limit)
        else:
            attempts[running] = running.deadline

    def end(self, running: Running, limit: float) -> bool:
        """Forget an attempt whose body ended.

        Args:
            running: the attempt.
            limit: its timeout in seconds, as for `watch`.

        Returns:
            True if it was cancelled at its deadline, and by nothing else.
        """
        attempts = self._attempts.get(limit)
        if attempts is not None:
            attempts.pop(running, None)
            if not attempts and len(self._attempts) > KEPT:
                self._timers.pop(limit).cancel()
                del self._attempts[limit]
        return running.timed_out and running.job is not None and running.job.uncancel() == 0

    def _expire(self, limit: float) -> None:
        """Cancel the attempts that reached their deadline, and set the timer for the next one."""
        attempts, now = self._attempts[limit], time.monotonic()
        for running, deadline in list(attempts.items()):
            if deadline > now:
                self._timers[limit] = asyncio.get_running_loop().call_later(deadline - now, self._expire, limit)
                return
            del attempts[running]
            running.timed_out = True
            if running.job is not None:
                running.job.cancel()
        del self._attempts[limit], self._timers[limit]
