"""HttpThreads: the threads of an HTTP executor, and the tasks that wait for one."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf

SPAN = 0.07
"""Seconds from the end of a handler until its slot has the next task, estimated high: a settle and a pull."""

SHORT = 0.1
"""Seconds that a handler takes at most if tasks come before a thread is free."""

INSTANT = 0.0001
"""Seconds that a handler takes at least: a clock may have moved by none."""

MOST_EARLY = 400
"""Maximum number of tasks that wait for a thread."""


class HttpThreads:
    """The threads of an HTTP executor, and the tasks that wait for one.

    The way to the server and back takes milliseconds, so short tasks come before a thread is free.

    Args:
        size: the number of threads.
        on_start: called when a thread starts a task.
    """

    def __init__(self, size: int, on_start: Callable[[], object]) -> None:
        self.size, self._on_start = size, on_start
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="runner-task")
        self._waiting: dict[int, tuple[Future[None], float]] = {}
        """The tasks that wait for a thread, by number, and the monotonic times of their arrival."""
        self._changing = threading.Lock()
        self._mean = inf
        """The mean run time of recent tasks in seconds."""

    def room(self, held: int) -> int:
        """Return the number of tasks to pull: none while half of those that come early still wait for a thread.

        Args:
            held: the number of tasks that this executor has, with those whose outcome is not written yet.
        """
        early = int(min(MOST_EARLY, self.size * SPAN / max(self._mean, INSTANT))) if self._mean < SHORT else 0
        return max(0, self.size + early - held) if len(self._waiting) <= early // 2 else 0

    def start(self, number: int, run: Callable[[], object]) -> None:
        """Run a task in the next free thread."""

        def work() -> None:
            with self._changing:
                self._waiting.pop(number, None)
            self._on_start()
            began = time.monotonic()
            run()
            seconds = time.monotonic() - began
            self._mean = seconds if self._mean == inf else 0.9 * self._mean + 0.1 * seconds

        with self._changing:
            self._waiting[number] = self._pool.submit(work), time.monotonic()

    def withdraw(self, before: float = inf) -> list[int]:
        """Take back the tasks that have waited for a thread since before a time in monotonic seconds."""
        with self._changing:
            old = {number: task for number, (task, since) in self._waiting.items() if since < before}
            withdrawn = [number for number, task in old.items() if task.cancel()]
            for number in withdrawn:
                del self._waiting[number]
        return withdrawn

    def close(self) -> None:
        """End the threads, which have no tasks any more."""
        self._pool.shutdown()
