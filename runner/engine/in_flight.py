"""InFlight: the tasks that a runner has claimed and not settled yet."""

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeVar

from runner.engine.running import Claim, Running
from runner.engine.slots import ExternalSlots, ProcessSlots, Slots
from runner.handlers.registry import Handler
from runner.model.alert import DELIVER, QUEUE
from runner.model.task import Claimed
from runner.policy.polling import LookAhead

if TYPE_CHECKING:
    from runner.policy.breaker import Probe


S = TypeVar("S", bound=Slots)


class SlotsMaker(Protocol):
    """Makes the pools of a runner."""

    def __call__(self, kind: type[S], name: str, size: int, ahead: int) -> S:
        """Make a pool of a kind."""


def _slots_alone(kind: type[S], name: str, size: int, ahead: int) -> S:
    return kind(name, size, look_ahead=LookAhead(most=ahead))


class InFlight:
    """The tasks in flight of one runner process. None of them starts twice.

    Args:
        async_slots: number of slots for async handlers, on the event loop.
        thread_slots: number of slots for plain functions, in threads.
        ahead: maximum number of prefetched tasks per pool.
        process_slots: number of slots for process handlers; 0 if the runner has none.
        external: the names of the external executors, which have no slots until they are connected.
        deliveries: number of slots for deliveries of notices; 0 if the runner has no receivers.
        shared: makes the pools of a shard, which have the slots of other shards too; None for a runner alone.
    """

    def __init__(
        self,
        async_slots: int,
        thread_slots: int,
        ahead: int,
        process_slots: int = 0,
        external: Iterable[str] = (),
        deliveries: int = 0,
        shared: "SlotsMaker | None" = None,
    ) -> None:
        make = shared or _slots_alone
        self.on_loop = make(Slots, "async", async_slots, ahead)
        self.in_threads = make(Slots, "threads", thread_slots, ahead)
        self.in_processes = make(ProcessSlots, "processes", process_slots, ahead)
        self.external = {name: ExternalSlots(name, 0, look_ahead=LookAhead(most=ahead)) for name in external}
        """The slots of each external executor, by its name."""
        self.sharing: frozenset[str] = frozenset()
        """The external executors that share slots."""
        self.shared_size: Callable[[], int] = lambda: 0
        """Returns the number of slots that they share."""
        self.deliveries = Slots(QUEUE, deliveries, look_ahead=LookAhead(most=0))
        """Apart, for notices that tasks hold all slots; no part of the capacity, for the same reason."""
        self.pools: tuple[Slots, ...] = (
            self.on_loop,
            self.in_threads,
            *((self.in_processes,) if process_slots else ()),
            *self.external.values(),
            *((self.deliveries,) if deliveries else ()),
        )
        self.tasks: dict[int, Running] = {}
        self.claims: set[Claim] = set()
        """The unsettled claims, including snoozed duplicates, which are not in `tasks`."""
        self.capped: Counter[str] = Counter()
        """The tasks of each handler with a limit per runner."""
        self.probes: dict[int, Probe] = {}
        """The round of each task that probes for an open breaker, by task id, until its end is reported."""
        self._watched: set[Claim] | None = None

    def slots_of(self, handler: Handler) -> Slots:
        """Return the pool of a handler."""
        if handler.in_process:
            return self.in_processes
        if handler.external is not None:
            return self.external[handler.external]
        if handler.name == DELIVER:
            return self.deliveries
        return self.on_loop if handler.is_async else self.in_threads

    def add(
        self,
        task: Claimed,
        handler: Handler,
        prefetched: bool = False,
        slots: Slots | None = None,
        *,
        limited: bool = False,
        alone: bool = False,
    ) -> Running | None:
        """Add a task to the pool of its handler; return None if an earlier claim of it is still unsettled.

        Args:
            limited: True if it was claimed under limits over all runners.
            alone: True for a suspect, which is the only task of its chunk.
        """
        earlier = self.tasks.get(task.id)
        if earlier is not None:
            if not earlier.settled:
                return None
        elif handler.defaults.limit_per_runner is not None:
            self.capped[handler.name] += 1
        slots = slots or self.slots_of(handler)
        running = self.tasks[task.id] = Running(task, handler, slots, prefetched)
        if limited or handler.defaults.limit_per_runner is not None:
            running.makes_room = True
        self.add_claim(task)
        if handler.defaults.chunk is None:
            slots.add(running)
        else:
            slots.chunks().add(running, alone=alone)
        return running

    def add_claim(self, task: Claimed) -> None:
        """Record a claim that has arrived in this process."""
        claim = (task.id, task.fence)
        self.claims.add(claim)
        if self._watched is not None:
            self._watched.add(claim)

    def watch(self) -> set[Claim]:
        """Return a set of the claims in this process that grows with each new claim.

        Settled claims stay in the set. A second call stops the growth of the first set.
        """
        self._watched = set(self.claims)
        return self._watched

    def unwatch(self) -> None:
        """Stop the growth of the set that `watch` returned."""
        self._watched = None

    def abandoned(self) -> list[Running]:
        """Return the tasks whose job has ended, or never started, without an outcome."""
        waiting = {running for slots in self.pools for running in slots.unstarted()}
        return [
            running
            for running in self.tasks.values()
            if not running.settled and running.has_no_job and running not in waiting
        ]

    def remove(self, running: Running) -> None:
        """Remove a claim, and its task unless a newer claim of the task is in flight."""
        self.claims.discard((running.task.id, running.task.fence))
        if self.tasks.get(running.task.id) is running:
            del self.tasks[running.task.id]
            if running.handler.defaults.limit_per_runner is not None:
                self.capped[running.handler.name] -= 1

    def unstarted(self, before: float = inf) -> list[Running]:
        """Remove and return the tasks that have waited for a slot since before a time in monotonic seconds."""
        return [running for slots in self.pools for running in slots.expire(before)]

    def unstarted_of(self, handler: str) -> list[Running]:
        """Remove and return the tasks of a handler that wait for a slot."""
        return [running for slots in self.pools for running in slots.take_of(handler)]

    def started(self) -> list[Running]:
        """Return the tasks whose body is running."""
        return [running for running in self.tasks.values() if running.job is not None and not running.job.done()]

    def resize(self, async_slots: int | None, thread_slots: int | None, process_slots: int | None = None) -> None:
        """Change the number of slots. Tasks in surplus slots finish normally."""
        self.on_loop.size = async_slots or self.on_loop.size
        self.in_threads.size = thread_slots or self.in_threads.size
        if self.in_processes in self.pools:
            self.in_processes.size = process_slots or self.in_processes.size
            for running in [*self.in_processes.offered]:
                running.withdraw()

    @property
    def capacity(self) -> int:
        """The maximum number of tasks that run at the same time, without deliveries of notices."""
        shared = sum(self.external[name].size for name in self.sharing)
        return sum(slots.limit for slots in self.pools) - self.deliveries.size - shared + self.shared_size()

    def __len__(self) -> int:
        return len(self.tasks)
