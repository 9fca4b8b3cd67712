"""FairSemaphore: a first-in, first-out semaphore for coroutines and threads."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager


class FairSemaphore:
    """A semaphore that coroutines and threads share. Requests are granted in order of arrival.

    Args:
        size: maximum number of concurrent holders.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._lock = threading.Lock()
        self._queue: deque[Future[None]] = deque()

    def request(self) -> "Future[None]":
        """Request the semaphore without waiting.

        Returns:
            The request, which is done once it is granted. Pass it to `release`, granted or not.
        """
        request: Future[None] = Future()
        with self._lock:
            if self._free == 0:
                self._queue.append(request)
                return request
            self._free -= 1
        request.set_result(None)
        return request

    def release(self, request: "Future[None]") -> None:
        """Withdraw a request, or return a granted one and grant the next in the queue."""
        if request.cancel():
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
    async def acquire(self) -> AsyncIterator[None]:
        """Wait for the semaphore, and hold it during the block."""
        request = self.request()
        try:
            await granted(request)
            yield
        finally:
            self.release(request)


async def granted(request: "Future[None]", timeout: float | None = None) -> bool:
    """Wait until a request is granted.

    Args:
        request: a request from `FairSemaphore.request`.
        timeout: seconds; None for no limit.

    Returns:
        False after the timeout.
    """
    if not request.done():
        await asyncio.wait([asyncio.wrap_future(request)], timeout=timeout)
    return request.done()


def granted_in_thread(request: "Future[None]", timeout: float | None = None) -> bool:
    """The blocking form of `granted`."""
    return request.done() or bool(wait([request], timeout).done)
