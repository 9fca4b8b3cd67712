"""Gate: admits a limited number of holders at a time, coroutines and threads alike, in the order in which they ask."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager


class Gate:
    """A semaphore that coroutines and threads share; the first to ask is the first to enter.

    Args:
        size: how many holders it admits at a time.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._lock = threading.Lock()
        self._queue: deque[Future[None]] = deque()

    def join(self) -> "Future[None]":
        """Ask for admission.

        Returns:
            A place in the queue: done once the gate admits its holder. Give it to `leave`, admitted or not.
        """
        place: Future[None] = Future()
        with self._lock:
            if self._free == 0:
                self._queue.append(place)
                return place
            self._free -= 1
        place.set_result(None)
        return place

    def leave(self, place: "Future[None]") -> None:
        """Give up a place, and admit the next holder if this one was admitted."""
        if place.cancel():
            return
        with self._lock:
            while self._queue:
                following = self._queue.popleft()
                if following.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        following.set_result(None)

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Wait for admission, and hold it during the block."""
        place = self.join()
        try:
            await admission(place)
            yield
        finally:
            self.leave(place)


async def admission(place: "Future[None]", timeout: float | None = None) -> bool:
    """Wait until a gate admits a place.

    Args:
        place: as `join` returned it.
        timeout: seconds; None for no limit.

    Returns:
        False when the time is up.
    """
    if not place.done():
        await asyncio.wait([asyncio.wrap_future(place)], timeout=timeout)
    return place.done()


def admission_in_thread(place: "Future[None]", timeout: float | None = None) -> bool:
    """Do as `admission` in a thread that may block."""
    return place.done() or bool(wait([place], timeout).done)
