"""TaskThreads: the threads of plain functions, which report their ends to the event loop together."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from runner.resource_limits import SPARE_THREADS, reached_limit, require_threads

log = logging.getLogger("runner.task")


class ContainedCall:
    """The result or the exception of a call. A future rejects StopIteration, and SystemExit would end the event loop.

    Args:
        error: the exception; None after a normal return.
    """

    __slots__ = ("_error", "_result")

    def __init__(self, result: Any, error: BaseException | None = None) -> None:
        self._result, self._error = result, error

    def take(self) -> tuple[Any, BaseException | None]:
        """Return and forget both.

        The frames of the exception lead to the frame of the thread that keeps this object: a reference cycle.
        """
        result, error, self._result, self._error = self._result, self._error, None, None
        return result, error


class TaskThreads(ThreadPoolExecutor):
    """Threads of plain functions. If the system allows no further one, functions wait for those that run.

    `submit` makes a future with a lock per call, and each end wakes the event loop by itself: together that takes
    longer than the rest of a task.

    Args:
        size: maximum number of threads.
    """

    _is_full = False

    def __init__(self, size: int) -> None:
        super().__init__(size, thread_name_prefix="runner-task")
        self._idle_semaphore = cast("Any", IdleThreads())
        self._ends = deque[tuple[ThreadCall, ContainedCall]]()
        self._wakes = False
        """True if the event loop is about to read the ends."""

    def start(
        self, function: Callable[[], ContainedCall], end: Callable[[], object]
    ) -> "asyncio.Future[ContainedCall]":
        """Call a function in a thread.

        Args:
            function: raises nothing.
            end: called on the event loop when the function has ended.

        Raises:
            RuntimeError: the system allows no thread.
        """
        if self._shutdown:
            raise RuntimeError("the runner has ended")
        call = ThreadCall(self, asyncio.get_running_loop(), function, end)
        self._work_queue.put(cast("Any", call))
        self._adjust_thread_count()
        return call.future

    def ended(self, call: "ThreadCall", result: ContainedCall) -> None:
        """Report an end, in the thread of the function."""
        self._ends.append((call, result))
        if not self._wakes:
            self._wakes = True
            with contextlib.suppress(RuntimeError):  # the function was abandoned, and the event loop is closed
                call.loop.call_soon_threadsafe(self._read_ends)

    def _read_ends(self) -> None:
        self._wakes = False  # first: a thread that ends from now on schedules the next look
        while self._ends:
            call, result = self._ends.popleft()
            if not call.future.done():
                call.future.set_result(result)
            call.end()

    def _adjust_thread_count(self) -> None:
        if self._idle_semaphore.acquire(blocking=False):  # first, because `require_threads` starts some
            return
        has_thread = any(thread.is_alive() for thread in self._threads)
        try:
            if has_thread and len(self._threads) < self._max_workers:
                require_threads(SPARE_THREADS)
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not has_thread:
                self._work_queue.get_nowait()  # its caller gets the error; a thread that starts later must not run it
                raise
            if not self._is_full:
                self._is_full = True
                log.warning("functions run in %d threads: %s", len(self._threads), reached_limit(error) or error)


class ThreadCall:
    """A call of a function, in the place of a work item of the pool."""

    __slots__ = ("_function", "_pool", "end", "future", "loop")

    def __init__(
        self,
        pool: TaskThreads,
        loop: asyncio.AbstractEventLoop,
        function: Callable[[], ContainedCall],
        end: Callable[[], object],
    ) -> None:
        self._pool, self.loop, self._function, self.end = pool, loop, function, end
        self.future: asyncio.Future[ContainedCall] = loop.create_future()
        """Its end, which `shutdown` of the pool cancels if no thread has begun the call."""

    def run(self, *_: object) -> None:
        """Call the function. Python 3.14 passes the context of its thread."""
        function, self._function = self._function, cast("Any", None)
        self._pool.ended(self, function())


class IdleThreads:
    """The number of idle threads, in the place of a semaphore, whose lock costs as much as the call of a function."""

    def __init__(self) -> None:
        self._marks = deque[None]()

    def release(self) -> None:
        """Count one more."""
        self._marks.append(None)

    def acquire(self, **_: object) -> bool:
        """Count one less, without a wait; False if there is none."""
        try:
            self._marks.pop()
        except IndexError:
            return False
        return True
