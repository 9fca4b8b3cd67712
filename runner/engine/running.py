"""Running: a task in flight, alone or as a chunk."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from runner.engine.executing.jobs import end
from runner.handlers.registry import Handler
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


class SlotPool(Protocol):
    """The slots of a runner for one kind of handlers."""

    waiting: deque[Any]
    look_ahead: LookAhead
    longest_wait: float

    @property
    def on_chunk(self) -> Callable[[], object]:
        """Called when a chunk waits for a slot and for no more tasks."""

    @property
    def limit(self) -> int:
        """The slots that the runner has."""

    @property
    def free_count(self) -> int:
        """The number of additional tasks or chunks that could start now."""

    def room(self) -> int:
        """Return the number of tasks or chunks to claim."""

    def put_back(self, running: "Running") -> None:
        """Return a task that did not start, and release its slot."""

    def release(self) -> None:
        """Release the slot of a task that has ended."""


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

    def __init__(self, task: Claimed, handler: Handler, slots: "SlotPool", prefetched: bool = False) -> None:
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
