"""Slots of a runner, with its tasks in flight."""

import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from runner.engine.executing.jobs import end
from runner.engine.forming_chunks import FormingChunks
from runner.handlers.registry import Handler
from runner.model.alert import DELIVER, QUEUE
from runner.model.headers import write_headers
from runner.model.task import CURRENT_TASK, Claimed
from runner.policy.polling import LookAhead
from runner.text.redact import secrets

if TYPE_CHECKING:
    import asyncio
    import contextvars
    import threading

    from runner.errors import StoreError
    from runner.handlers.chunk import ChunkOption
    from runner.handlers.context import Context, KeptNotes
    from runner.handlers.hooks import AttemptEnd, Callback
    from runner.handlers.keyring import Vault
    from runner.handlers.steps import OwnSteps, StepStore
    from runner.model.outcome import Outcome
    from runner.policy.breaker import Probe

T = TypeVar("T")

Claim = tuple[int, int]
"""Task id and fence."""


class HandlerProcess(Protocol):
    """The process that runs a process handler."""

    pid: int

    async def stack(self, timeout: float) -> list[str]:
        """Return the stack of the handler; empty if it does not come within a timeout in seconds."""


class Offer(Protocol):
    """A task in a worker process that starts it when the task before has ended."""

    @property
    def is_next(self) -> bool:
        """True if the task before it has ended."""

    def withdraw(self) -> bool:
        """Take the task back; False if its handler has started."""


def _no_context(running: "Running") -> NoReturn:
    raise AssertionError(f"the executor of task {running.task.id} sets it first")


class Running:
    """A task in flight: claimed and not settled yet.

    Args:
        slots: the pool whose slot it occupies.
        prefetched: True if it was claimed before a slot was free, so that the claim did not mark it as started.
    """

    # Most attempts change few of these: the defaults of the class cost them nothing.
    started = 0.0
    cancel_requested = interrupted = False
    """True after the runner asked it to end: because of a terminate request or a lost lease, or because it stops."""
    settled = False
    done_in_tx = result_in_tx = False
    in_tx = False
    completing = 0.0
    """Monotonic time from which its own transaction ends it; 0 while it does not."""
    deadline: float | None = None
    waits_for = ""
    error: BaseException | None = None
    """The exception that ended the attempt, for logs and error trackers."""
    outages: "tuple[tuple[BaseException, StoreError], ...]" = ()
    """The errors of the runner's own connection in this attempt, with their translations."""
    unanswered = False
    """True while a call of the Context waits for the database, and if that wait was cancelled."""
    tx_driver: Any = None
    """The driver's connection of its own transaction."""
    slot_released = False
    """True after its slot was released."""
    makes_room = False
    """True if its end makes room for others under a limit."""
    body: "asyncio.Future[Any] | None" = None
    """A plain function in its thread; the slot is released when it ends."""
    around: "Sequence[Callback]" = ()
    """The middleware of the attempt."""
    has_new_headers = False
    """True if the attempt has changed the headers of its task."""
    after_settled: "tuple[Callable[[AttemptEnd], object], ...]" = ()
    """Called when the end of the attempt is written."""
    context: "contextvars.Context | None" = None
    """The context of the attempt, for its hooks and log lines: of a plain function, that of its thread; inside all
    middleware, that of the end of the handler. None before a slot is free."""
    replaced = False
    """True if its thread was abandoned and its slot released, because a spare thread replaces it."""
    job: "asyncio.Task[None] | None" = None
    make_context: "Callable[[Running], Context]" = staticmethod(_no_context)
    """Makes its Context for a rule about an unexpected result."""
    notes: "KeptNotes | None" = None
    """Checkpoints, progress and log, if the handler has a Context."""
    vault: "Vault | None" = None
    """Encrypts what the attempt stores, and decrypts what earlier ones have stored; None if it is plain."""
    steps: "OwnSteps | None" = None
    """Its steps, if it has called one."""
    step_store: "StepStore | None" = None
    """Reads and writes its steps, if it has called one."""
    open_step_store: "Callable[[Running], StepStore] | None" = None
    """Makes the store of its steps; None without a database."""
    stop: "threading.Event | None" = None
    thread = 0
    """Ident of the thread that runs a plain function."""
    process: HandlerProcess | None = None
    offer: Offer | None = None
    """The attempt in a process that has received the task early, while it waits for a slot."""
    is_chunk = False
    """True for a chunk, which is in flight for the tasks in it."""
    chunk: "ChunkRunning | None" = None
    """The chunk that it belongs to."""
    decision: "Outcome | None" = None
    """Its outcome as a chunk handler has set it."""
    general: "Callable[[Running], Outcome] | None" = None
    """Of a chunk: decides about a task without an outcome, if a rule about an unexpected result does."""

    def __init__(self, task: Claimed, handler: Handler, slots: "Slots", prefetched: bool = False) -> None:
        self.task = task
        self.handler = handler
        self.slots = slots
        self.prefetched = prefetched
        self.received_at = time.monotonic()

    @property
    def wait(self) -> float | None:
        """Seconds from the due time to the start; None if unknown."""
        late = self.task.late
        return None if late is None or not self.started else late + self.started - self.received_at

    def parts(self) -> "Sequence[Running]":
        """Return the tasks: this one, or those of a chunk."""
        return (self,)

    def secrets(self) -> Sequence[str]:
        """Return the secret values that texts of its attempt may contain."""
        return self.own_secrets() if self.chunk is None else self.chunk.secrets()

    def own_secrets(self) -> Sequence[str]:
        """Return the secret values of the task itself."""
        return secrets(self.task.payload or "{}", self.task.headers)

    def store_of_steps(self) -> "StepStore":
        """Return the store of its steps."""
        assert self.open_step_store is not None  # noqa: S101 - a Context without one has no steps
        self.step_store = self.step_store or self.open_step_store(self)
        return self.step_store

    def set_headers(self, headers: Mapping[str, str]) -> None:
        """Replace the headers of the task for the rest of this attempt and for later ones."""
        self.task, self.has_new_headers = self.task._replace(headers=write_headers(headers)), True
        if CURRENT_TASK.get() is not None:
            CURRENT_TASK.set(self.task)

    def after_settle(self, function: "Callable[[AttemptEnd], object]") -> None:
        """Call a function when the end of the attempt is written."""
        self.after_settled = (*self.after_settled, function)

    @property
    def expired(self) -> bool:
        """True if its expiry passed while it waited for a slot."""
        limit = self.task.expires_in
        return self.prefetched and limit is not None and time.monotonic() > self.received_at + limit

    @property
    def job_error(self) -> BaseException | None:
        """The exception that ended its job; None if the job was cancelled before its first step, or never started."""
        job = (self.chunk or self).job
        return None if job is None or job.cancelled() else job.exception()

    @property
    def has_no_job(self) -> bool:
        """True if its job, or that of its chunk, has ended or was never started."""
        job = (self.chunk or self).job
        return job is None or job.done()

    def withdraw(self) -> bool:
        """Take the task back from the process that has received it early; False if its handler has started there."""
        return self.offer is None or self.offer.withdraw()

    def cancel(self) -> None:
        """Execute a terminate request: cancel an async body, set `ctx.stop` of a plain function."""
        self.cancel_requested = True
        self.withdraw()
        if self.stop is not None:
            self.stop.set()
        if self.chunk is not None:
            self.chunk.member_cancelled(self)
        elif self.job is not None and self.started:  # a coroutine cancelled before its first step would never settle
            end(self.job)

    def interrupt(self) -> None:
        """Ask its body to end because the runner stops."""
        if self.chunk is not None:
            self.chunk.interrupt()
            return
        self.interrupted = True
        if self.job is not None:
            end(self.job)


class ChunkRunning(Running):
    """A chunk in flight, which occupies a slot. Its tasks are in flight beside it, each with a claim of its own.

    Args:
        first: its first task.
        option: the chunk of its handler.
    """

    is_chunk = True
    end_call: Callable[[], object] = staticmethod(lambda: None)
    """Ignores later outcomes of its tasks, when they are about to be written."""
    on_cancelled: Callable[[int], object] = staticmethod(lambda _: None)
    """Called with the position of a task that an operator terminates; its process sets it."""

    def __init__(self, first: Running, option: "ChunkOption") -> None:
        task = first.task._replace(headers=None)  # a task that its function submits inherits none of one task
        super().__init__(task, first.handler, first.slots, prefetched=True)
        self._option = option
        self.members = [first]
        """Its tasks, in the order of their claim."""
        first.chunk = self
        self._secrets: Sequence[str] | None = None

    @property
    def free_places(self) -> int:
        """The number of tasks that it can still take."""
        return max(0, self._option.size - len(self.members))

    def add(self, running: Running) -> None:
        """Add a task."""
        self.members.append(running)
        running.chunk = self

    def parts(self) -> Sequence[Running]:
        """Return its tasks."""
        return self.members

    def remove(self, running: Running) -> None:
        """Remove a task before the call of its function."""
        self.members.remove(running)
        running.chunk = None

    @property
    def outages(self) -> "tuple[tuple[BaseException, StoreError], ...]":
        """The errors of the runner's own connection in the calls of the Contexts of its tasks."""
        return tuple(each for member in self.members for each in member.outages)

    @outages.setter
    def outages(self, outages: "tuple[tuple[BaseException, StoreError], ...]") -> None:
        for member in self.members:
            member.outages = outages

    @property
    def unanswered(self) -> bool:  # type: ignore[override] # its tasks wait
        """True while a call of the Context of one of its tasks waits for the database."""
        return any(member.unanswered for member in self.members)

    def secrets(self) -> Sequence[str]:
        """Return the secret values of all of its tasks: an exception may contain those of any."""
        if self._secrets is None:
            self._secrets = [text for member in self.members for text in member.own_secrets()]
        return self._secrets

    def member_cancelled(self, running: Running) -> None:
        """End the function if all of its tasks have to end. A single one ends with the others, at the latest."""
        if all(member.cancel_requested for member in self.members):
            self.cancel()
        elif self.started:
            self.on_cancelled(self.members.index(running))

    def interrupt(self) -> None:
        """Ask its function to end because the runner stops."""
        for member in self.members:
            member.interrupted = True
        super().interrupt()

    def stop_members(self) -> None:
        """Set `ctx.stop` of all of its tasks, because its thread was abandoned."""
        for member in self.members:
            if member.stop is not None:
                member.stop.set()


def in_context(running: Running, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a copy of the context of an attempt; in this context if the attempt has not started."""
    return function(*arguments) if running.context is None else running.context.copy().run(function, *arguments)


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
    forming: "FormingChunks[Running, ChunkRunning] | None" = None
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

    def chunks(self) -> "FormingChunks[Running, ChunkRunning]":
        """The chunks of the pool that wait for more tasks."""
        if self.forming is None:
            self.forming = FormingChunks(self, ChunkRunning)
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
