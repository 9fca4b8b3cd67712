"""The semaphore that orders writers, and its lock. Neither stays taken after an exception interrupts a call."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InterruptibleLock:
    """A lock that is free again after an exception interrupts a call at any point, as ctrl-c does.

    `with lock` keeps the lock if a signal handler raises while the lock is acquired. Python 3.14.8 has this defect
    (python/cpython#148874), and so has `threading.Condition` in all versions.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()  # knows whether this thread has acquired it

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function while no other thread is in a call, and return its result."""
        lock = self._lock
        try:
            lock.acquire()
            return function(*args, **kwargs)
        finally:
            try:  # noqa: SIM105 - a signal handler could raise in a call before the release
                lock.release()
            except RuntimeError:
                pass  # the exception came before the lock was acquired


class SemaphoreRequest:
    """One entry to a FairSemaphore, created before the block that releases it: then no interruption loses the entry."""

    __slots__ = ("gate", "is_granted", "is_withdrawn", "wake")

    def __init__(self) -> None:
        self.is_granted = True
        """False while the request waits in the queue."""
        self.is_withdrawn = False
        """True once the request was released."""
        self.gate: threading.Lock | None = None
        """Locked while the request waits, for a thread; None without a wait."""
        self.wake: Callable[[], object] | None = None
        """Wakes the coroutine that waits."""

    def grant(self) -> None:
        """End the wait; a second call completes one that was interrupted."""
        self.is_granted = True
        if self.gate is not None and self.gate.locked():
            self.gate.release()
        if self.wake is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self.wake()


class FairSemaphore:
    """A semaphore that coroutines and threads share. Requests are granted in order of arrival.

    An exception may interrupt any call: each method leaves a state that `release`, called again, completes.

    Args:
        size: maximum number of concurrent holders.
    """

    def __init__(self, size: int) -> None:
        self.size, self._lock = size, InterruptibleLock()
        self._holders, self._queue = set[SemaphoreRequest](), deque[SemaphoreRequest]()

    def enter(self, request: SemaphoreRequest) -> None:
        """Request the semaphore without waiting; then pass the request to `release`, granted or not."""
        self._lock.call(self._enter, request)

    def release(self, request: SemaphoreRequest) -> None:
        """Withdraw a request, or return a granted one and grant the next in the queue."""
        self._lock.call(self._release, request)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Wait for the semaphore, and hold it during the block."""
        request = SemaphoreRequest()
        try:
            self.enter(request)
            await granted(request)
            yield
        finally:
            self.release(request)

    def _enter(self, request: SemaphoreRequest) -> None:
        if len(self._holders) < self.size:
            self._holders.add(request)
        else:
            request.gate = threading.Lock()
            request.gate.acquire()
            request.is_granted = False
            self._queue.append(request)

    def _release(self, request: SemaphoreRequest) -> None:
        request.is_withdrawn = True
        self._holders.discard(request)
        while self._queue:
            following = self._queue[0]
            if not following.is_withdrawn:
                if following not in self._holders and len(self._holders) == self.size:
                    break
                self._holders.add(following)
                following.grant()
            self._queue.popleft()


async def granted(request: SemaphoreRequest, timeout: float | None = None) -> bool:
    """Wait until a request is granted.

    Args:
        request: a request that has entered a FairSemaphore.
        timeout: seconds; None for no limit.

    Returns:
        False after the timeout.
    """
    if not request.is_granted:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        request.wake = partial(loop.call_soon_threadsafe, _answer, answer)
        if not request.is_granted:  # another thread may have granted it before it could wake this loop
            await asyncio.wait([answer], timeout=timeout)
    return request.is_granted


def granted_in_thread(request: SemaphoreRequest, timeout: float | None = None) -> bool:
    """The blocking form of `granted`."""
    if request.gate is not None and not request.is_granted:
        request.gate.acquire(timeout=-1 if timeout is None else timeout)
    return request.is_granted


def _answer(answer: "asyncio.Future[None]") -> None:
    if not answer.done():
        answer.set_result(None)
