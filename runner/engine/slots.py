"""Slots: what a runner has in hand, and how much more fits."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from runner.handlers import Handler
from runner.policy.polling import LookAhead
from runner.policy.selection import is_suspect
from runner.task import Claimed

if TYPE_CHECKING:
    import asyncio
    import threading


class Running:
    """A task in hand: claimed, and not settled yet.

    Args:
        task: as the claim returned it.
        handler: that executes it.
        slots: whose slot it takes.
    """

    __slots__ = (
        "concluded",
        "concluding",
        "handler",
        "job",
        "over",
        "since",
        "slots",
        "started",
        "stop",
        "task",
        "told",
    )

    def __init__(self, task: Claimed, handler: Handler, slots: "Slots") -> None:
        self.task = task
        self.handler = handler
        self.slots = slots
        self.since = time.monotonic()
        self.started = 0.0
        self.told = False
        self.over = False
        self.concluded = False
        self.concluding = False
        self.job: asyncio.Task[None] | None = None
        self.stop: threading.Event | None = None

    def cancel(self) -> None:
        """Carry out a terminate request: stop an async body, tell a plain function."""
        self.told = True
        if self.stop is not None:
            self.stop.set()
        if self.job is not None and self.started:  # a coroutine cancelled before its first step would never settle
            self.job.cancel()


@dataclass(eq=False)
class Slots:
    """The slots of one kind of handlers, with the tasks that wait for one.

    Args:
        name: of the kind.
        size: how many tasks run at once.
    """

    name: str
    size: int
    taken: int = 0
    waiting: deque[Running] = field(default_factory=deque)
    ahead: LookAhead = field(default_factory=LookAhead)

    def room(self) -> int:
        """How many more tasks to claim: as many as find a free slot, or will have by the time they are here."""
        return self.size + self.ahead.tasks(time.monotonic()) - self.taken - len(self.waiting)

    @property
    def free(self) -> bool:
        """True when a task could start now."""
        return self.taken < self.size and not self.waiting

    def next(self) -> Running | None:
        """The task that can start now, with a slot taken for it; None when there is no slot or no task."""
        if self.taken >= self.size or not self.waiting:
            return None
        self.taken += 1
        return self.waiting.popleft()

    def give_up(self, before: float) -> Iterator[Running]:
        """Let go of the tasks that have waited since before a moment; they stand in the order in which they came."""
        while self.waiting and self.waiting[0].since < before:
            yield self.waiting.popleft()

    def give_back(self) -> None:
        """A task has left its slot."""
        self.taken -= 1
        self.ahead.ended()


class InHand:
    """Everything that one runner process has in hand: nothing in it is started twice.

    Args:
        async_slots: for async handlers, on the event loop.
        thread_slots: for plain functions, in threads.
        ahead: tasks of each kind that may be held ready for slots that will be free soon.
    """

    def __init__(self, async_slots: int, thread_slots: int, ahead: int) -> None:
        self.on_loop = Slots("async", async_slots, ahead=LookAhead(most=ahead))
        self.in_threads = Slots("threads", thread_slots, ahead=LookAhead(most=ahead))
        self.tasks: dict[int, Running] = {}

    def slots_of(self, handler: Handler) -> Slots:
        """The slots that a handler's tasks take."""
        return self.on_loop if handler.is_async else self.in_threads

    def add(self, task: Claimed, handler: Handler) -> Running | None:
        """Take a task in hand; None when an earlier claim of it is, and is not over."""
        earlier = self.tasks.get(task.id)
        if earlier is not None and not earlier.over:
            return None
        running = Running(task, handler, self.slots_of(handler))
        self.tasks[task.id] = running
        running.slots.waiting.append(running)
        return running

    def drop(self, running: Running) -> None:
        """Let go of a task, unless what is in hand is another claim of it."""
        if self.tasks.get(running.task.id) is running:
            del self.tasks[running.task.id]

    def unstarted(self, before: float = inf) -> list[Running]:
        """Give up what has waited for a slot since before a moment, in monotonic seconds, to be handed back."""
        return [running for slots in (self.on_loop, self.in_threads) for running in slots.give_up(before)]

    def started(self) -> list[Running]:
        """The tasks whose body runs now."""
        return [running for running in self.tasks.values() if running.job is not None and not running.job.done()]

    def resize(self, async_slots: int | None, thread_slots: int | None) -> None:
        """Change how many tasks run at once; those that run in slots too many end in peace."""
        self.on_loop.size = async_slots or self.on_loop.size
        self.in_threads.size = thread_slots or self.in_threads.size

    @property
    def capacity(self) -> int:
        """How many tasks can run at once."""
        return self.on_loop.size + self.in_threads.size

    @property
    def suspects(self) -> bool:
        """True while a task is in hand that may have killed its last runner."""
        return any(is_suspect(running.task) for running in self.tasks.values())

    def __len__(self) -> int:
        return len(self.tasks)
