"""Slots: the pools of a runner, in which tasks wait for a slot."""

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from runner.engine.forming_chunks import FormingChunks
from runner.engine.running import ChunkRunning, Running
from runner.policy.polling import LookAhead


@dataclass(eq=False)
class Slots:
    """The slots for async handlers or for plain functions, and the tasks that wait for one.

    Args:
        size: maximum number of tasks that run at the same time.
    """

    name: str
    size: int
    in_use: int = 0
    waiting: deque[Running] = field(default_factory=deque)
    look_ahead: LookAhead = field(default_factory=LookAhead)
    claiming: int = 0
    """The slots for which a claim is in progress."""
    forming: FormingChunks | None = None
    """The chunks that wait for more tasks; None if the pool has had none."""
    on_chunk: Callable[[], object] = lambda: None
    """Called when a chunk waits for a slot and for no more tasks; the worker sets it."""
    longest_wait: float = inf
    """Maximum seconds for which a chunk waits for more tasks; the worker sets it."""

    @property
    def limit(self) -> int:
        """The slots that the runner has, also if other shards use some of them now."""
        return self.size

    def ask(self, wants: Callable[[], bool]) -> None:
        """Ask other shards for a slot, if the runner shares its slots with them.

        Args:
            wants: returns True if a due task has no slot.
        """

    def room(self) -> int:
        """Return the number of tasks to claim: free slots plus slots that will be free when the claim returns."""
        return self.size + self.look_ahead.tasks(time.monotonic()) - self.in_use - len(self.waiting)

    def to_claim(self, batch: int) -> int:
        """Return the number of tasks to claim now: none while half of the prefetched tasks still wait for a slot.

        A claim of few tasks costs nearly as much as one of many.

        Args:
            batch: maximum number of tasks per claim.
        """
        ahead = self.look_ahead.tasks(time.monotonic())
        room = min(batch, self.size + ahead - self.in_use - len(self.waiting))
        return room if not self.waiting or room >= min(batch, ahead // 2) else 0

    def next(self) -> Running | None:
        """Return the next task and occupy a slot for it; None without a slot or a task."""
        if not self.waiting or self.is_full:
            return None
        self.in_use += 1
        running = self.waiting.popleft()
        if isinstance(running, ChunkRunning):
            self.chunks().starts(running)
        return running

    @property
    def is_full(self) -> bool:
        """True if no task may start."""
        return self.in_use >= self.size

    @property
    def free_count(self) -> int:
        """The number of additional tasks that could start now."""
        return max(0, self.size - self.in_use - len(self.waiting))

    def chunks(self) -> FormingChunks:
        """The chunks of the pool that wait for more tasks."""
        if self.forming is None:
            self.forming = FormingChunks(self)
        return self.forming

    def add(self, running: Running) -> None:
        """Add a claimed task: behind the others, but before prefetched ones if its claim marked it as started."""
        if running.prefetched or not self.waiting or not self.waiting[-1].prefetched:
            self.waiting.append(running)
        else:
            first = next(index for index, waiting in enumerate(self.waiting) if waiting.prefetched)
            self.waiting.insert(first, running)

    def put_back(self, running: Running) -> None:
        """Return a task that did not start to its position among the waiting tasks, and release its slot."""
        self.in_use -= 1
        insort(self.waiting, running, key=lambda waiting: waiting.received_at)

    def expire(self, before: float) -> Iterator[Running]:
        """Remove and return the tasks that have waited for a slot since before a given time, in order.

        Without a time, this includes the tasks of chunks that wait for more.
        """
        yield from self._take(lambda running: running.received_at < before, chunks=before == inf)

    def take_of(self, handler: str) -> Iterator[Running]:
        """Remove and return the tasks of a handler that wait, for a slot or for more tasks of their chunk."""
        yield from self._take(lambda running: running.task.handler == handler, chunks=True)

    def _take(self, accepts: Callable[[Running], bool], *, chunks: bool) -> Iterator[Running]:
        for running in [running for running in self.waiting if accepts(running)]:
            if running.withdraw():
                self.waiting.remove(running)
                if isinstance(running, ChunkRunning):
                    self.chunks().forget(running)
                yield from running.parts()
        if chunks and self.forming is not None:
            yield from self.forming.take(accepts)

    def unstarted(self) -> Iterator[Running]:
        """Return the tasks that wait, for a slot or for more tasks of their chunk."""
        for running in self.waiting:
            yield from running.parts()
        if self.forming is not None:
            yield from self.forming.unstarted()

    def release(self) -> None:
        """Release the slot of a task that has ended."""
        self.in_use -= 1
        self.look_ahead.ends += 1


SHORT = 0.1
"""Seconds of a mean run time below which each slot of an external executor receives its next task early."""

INSTANT = 0.0001
"""Seconds that a task takes at least: a clock may have moved by none."""

MOST_EARLY = 100
"""Maximum number of tasks that come early to an executor with fewer slots."""


class ExternalSlots(Slots):
    """The slots of an external executor: none while its cluster is not available.

    The way to a worker and back takes milliseconds. So a worker has the next short task while it runs one.
    """

    span = 0.0
    """Seconds from the end of a handler until its worker has the next task, estimated high; 0 if it takes little."""
    mean = inf
    """The mean run time of recent tasks in seconds."""
    bound: Callable[[], int] | None = None
    """Returns the number of tasks to claim at most; None if no other pool shares its slots."""
    wanted_at = -inf
    """When a due task had no slot, in monotonic seconds, if other pools share its slots."""

    def ask(self, wants: Callable[[], bool]) -> None:
        """Record whether a due task has no slot."""
        if self.bound is not None:
            self.wanted_at = time.monotonic() if wants() else -inf

    @property
    def ahead(self) -> int:
        """The tasks that workers receive early; a task must not wait behind a long one."""
        if self.mean >= SHORT:
            return 0
        return max(self.size, min(MOST_EARLY, int(self.size * self.span / max(self.mean, INSTANT))))

    def note_run(self, seconds: float) -> None:
        """Record the run time of a task."""
        self.mean = seconds if self.mean == inf else 0.9 * self.mean + 0.1 * seconds

    def room(self) -> int:
        """Return the number of tasks to claim; none without slots."""
        if not self.size:
            return 0
        room = super().room() + self.ahead
        return room if self.bound is None else min(room, self.bound())

    def to_claim(self, batch: int) -> int:
        """Return the number of tasks to claim now: none while half of those that come early still wait for a worker."""
        room, early = min(batch, self.room()), self.look_ahead.tasks(time.monotonic()) + self.ahead
        return max(0, room) if not self.waiting or room >= min(batch, early // 2) else 0

    def next(self) -> Running | None:
        """Return the next task and occupy a slot for it, or a place behind one; None without either or a task."""
        if self.in_use >= self.size + self.ahead or not self.waiting:
            return None
        self.in_use += 1
        return self.waiting.popleft()


@dataclass(eq=False)
class ProcessSlots(Slots):
    """The slots for process handlers, and the waiting tasks that processes have received before a slot is free."""

    offered: list[Running] = field(default_factory=list)
    on_waiting: "Callable[[ProcessSlots], None]" = lambda _: None

    def add(self, running: Running) -> None:
        """Add a claimed task, and offer it to a process if no slot is free."""
        super().add(running)
        if self.is_full:
            self.on_waiting(self)

    def next(self) -> Running | None:
        """Return the next task and occupy a slot for it: the one that its process starts now, or the first."""
        begun = (running for running in self.offered if running.offer is not None and running.offer.is_next)
        if (first := next(begun, None)) is not None:
            self.waiting.remove(first)
            self.waiting.appendleft(first)
        running = super().next()
        if running is not None and running.offer is not None:
            self.offered.remove(running)
        return running

    def put_back(self, running: Running) -> None:
        """Return a task that did not start to its position among the waiting tasks, and release its slot."""
        super().put_back(running)
        self.offered += [running] if running.offer is not None else []

    def begun(self) -> Iterator[Running]:
        """Remove and return the waiting tasks that a process has started, each with a slot."""
        for running in [running for running in self.offered if not running.withdraw()]:
            self.offered.remove(running)
            self.waiting.remove(running)
            self.in_use += 1
            yield running
