"""Deadlines: cancel coroutines that exceed their timeout, with one timer per length of timeout.

A timer per attempt, as `asyncio.timeout` needs, is a large part of the processor time of a task that does little.
"""

import asyncio
import time
from typing import Any

from runner.engine.executing.jobs import end

KEPT = 64
"""Lengths of timeouts that keep their timer while no attempt has them."""


class Deadlines:
    """The deadlines of the attempts on the event loop.

    Attempts with the same timeout reach their deadlines in the order in which they began. So only the first of them
    needs a timer, and most attempts end long before it fires.
    """

    def __init__(self) -> None:
        self._attempts: dict[float, dict[asyncio.Task[Any], float]] = {}
        """The deadlines in monotonic seconds by timeout; the earliest is the first."""
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._expired: set[asyncio.Task[Any]] = set()

    def watch(self, job: asyncio.Task[Any], limit: float) -> float:
        """Cancel an attempt when its timeout is over, unless `end` is called before.

        Args:
            limit: its timeout in seconds, from now.

        Returns:
            The deadline in monotonic seconds.
        """
        deadline = time.monotonic() + limit
        attempts = self._attempts.get(limit)
        if attempts is None:
            self._attempts[limit] = {job: deadline}
            self._timers[limit] = asyncio.get_running_loop().call_later(limit, self._expire, limit)
        else:
            attempts[job] = deadline
        return deadline

    def end(self, job: asyncio.Task[Any], limit: float) -> bool:
        """Forget an attempt whose body ended.

        Args:
            limit: its timeout in seconds, as for `watch`.

        Returns:
            True if it was cancelled at its deadline; call `uncancel` of the job then.
        """
        attempts = self._attempts.get(limit)
        if attempts is not None:
            attempts.pop(job, None)
            if not attempts and len(self._attempts) > KEPT:
                self._timers.pop(limit).cancel()
                del self._attempts[limit]
        if job in self._expired:
            self._expired.remove(job)
            return True
        return False

    def has_expired(self, job: asyncio.Task[Any]) -> bool:
        """True if an attempt was cancelled at its deadline, and has not ended since."""
        return job in self._expired

    def _expire(self, limit: float) -> None:
        """Cancel the attempts that reached their deadline, and set the timer for the next one."""
        attempts, now = self._attempts[limit], time.monotonic()
        for job, deadline in list(attempts.items()):
            if deadline > now:
                self._timers[limit] = asyncio.get_running_loop().call_later(deadline - now, self._expire, limit)
                return
            del attempts[job]
            self._expired.add(job)
            end(job)
        del self._attempts[limit], self._timers[limit]
