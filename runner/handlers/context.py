"""Context: the task that a handler executes, with the notes that the handler writes."""

import asyncio
import inspect
import logging
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from runner.errors import InvalidProgress, NoTransaction
from runner.handlers.dependencies import BatchResult
from runner.handlers.functions import is_named, signature_of
from runner.handlers.own_transaction import OwnTransaction
from runner.handlers.steps import MEMORY_STEPS, Ended, OwnSteps, SignalWait, StepCall, TaskCall
from runner.model.headers import NO_HEADERS, require_headers, trace_id_of
from runner.model.outcome import Dead, Delay, Retry, Snooze
from runner.model.task import NewTask, PreparedTask
from runner.text.redact import hide, secrets

if TYPE_CHECKING:
    from runner.handlers.hooks import AttemptEnd


T = TypeVar("T")


def require_progress(done: float, total: float | None) -> None:
    """Refuse a progress that is not a number.

    Raises:
        InvalidProgress: a number is negative or not finite.
    """
    for value in (done, total or 0):
        if not math.isfinite(value) or value < 0:
            raise InvalidProgress(done=done, total=total, why="numbers must be finite and not negative")


class Notes(Protocol):
    """Receives the notes of one attempt."""

    state: Any

    async def save(self, state: Any) -> None:
        """Store a checkpoint."""

    def keep(self, state: Any) -> None:
        """Set the state that the runner stores later."""

    def progress(self, done: float, total: float | None, unit: str) -> None:
        """Set the progress."""

    def line(self, level: int, text: str) -> None:
        """Add a line to the log."""

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Future[None]:
        """Run a coroutine function on the runner's loop, from a thread."""


class KeptNotes(Notes, Protocol):
    """Notes of which a runner stores the last state when the attempt ends."""

    unsaved: str | None

    async def load(self) -> None:
        """Read the last checkpoint."""

    async def save_kept(self) -> None:
        """Store the kept state."""


class MemoryNotes:
    """Notes without a runner, for tests that call a handler directly."""

    def __init__(self) -> None:
        self.state: Any = None
        self.done: tuple[float, float | None, str] | None = None

    async def save(self, state: Any) -> None:
        """Keep the state."""
        self.state = state

    def keep(self, state: Any) -> None:
        """Keep the state."""
        self.state = state

    def progress(self, done: float, total: float | None, unit: str) -> None:
        """Keep the progress."""
        self.done = (done, total, unit)

    def line(self, level: int, text: str) -> None:
        """Do nothing: the logger has the line."""

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Future[None]:
        """Run a coroutine function in this thread."""
        done: Future[None] = Future()
        done.set_result(asyncio.run(work()))
        return done


def checkpoint(notes: Notes, state: Any) -> Awaitable[None]:
    """Store a checkpoint: awaited in an async handler, blocking in a plain function."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        notes.submit(lambda: notes.save(state)).result()
        return Ended()
    return notes.save(state)


class AttemptLogger(logging.LoggerAdapter[logging.Logger]):
    """Writes to the log of the runner and to the log of the attempt, both without the secrets of the task.

    Args:
        logger: the logger of the runner.
        extra: the fields of every record.
        notes: receives the lines.
        payload: the payload of the task as JSON text.
        headers: its headers as JSON text; None without any.
    """

    def __init__(
        self,
        logger: logging.Logger,
        extra: dict[str, object],
        notes: Notes,
        payload: str,
        headers: str | None = None,
    ) -> None:
        super().__init__(logger, extra)
        self._notes = notes
        self._texts = payload, headers

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log one message; the attempt keeps it from the level info on, for any level of the logger."""
        if level >= logging.INFO:
            self._notes.line(level, _text(msg, args, kwargs.get("exc_info")))
        if self.isEnabledFor(level) and (values := secrets(*self._texts)):
            msg, args = hide(_text(msg, args, None), values), ()
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # name the line of the handler, not this one
        super().log(level, msg, *args, **kwargs)


def _text(msg: object, args: tuple[object, ...], exc_info: object) -> str:
    text = str(msg)
    try:
        text = text % args if args else text
    except (TypeError, ValueError):  # logging reports it
        text = f"{text} {args!r}"
    error = exc_info if isinstance(exc_info, BaseException) else sys.exception() if exc_info else None
    return f"{text} ({type(error).__name__}: {error})" if error is not None else text


class AttemptControl(Protocol):
    """The attempt of a Context, as its runner keeps it."""

    def set_headers(self, headers: Mapping[str, str]) -> None:
        """Replace the headers of the task for the rest of this attempt and for later ones."""

    def after_settle(self, function: "Callable[[AttemptEnd], object]") -> None:
        """Call a function when the end of the attempt is written."""


@dataclass(frozen=True, slots=True)
class Context:
    """The task that a handler executes.

    Args:
        id: task id.
        key: business key.
        attempt: number of this attempt, from 1.
        max_attempts: maximum number of attempts.
        fence: fence of this claim. Pass it to downstream systems that can reject older fences.
        deadline: time at which this attempt times out; None without a timeout.
        logger: adds the task's id and handler to each line.
        stop: set when an operator terminates the task or the attempt times out.
        batch: outcomes of the tasks that this one depended on; None without dependencies.
        open_transaction: opens the transaction that `transaction` returns; None outside a runner.
        handler: name of the handler.
        queue: name of the queue.
        notes: receives checkpoints, progress and log lines.
        headers: the texts that came with the task, by name; read-only, see `set_header`.
        wait: seconds from the due time to the start of this attempt; None if unknown.
        control: the attempt; None outside a runner.
        own_steps: returns its steps; None outside a runner.
    """

    id: int
    key: str | None
    attempt: int
    max_attempts: int
    fence: int
    deadline: datetime | None
    logger: logging.LoggerAdapter[logging.Logger]
    stop: threading.Event = field(default_factory=threading.Event, repr=False)
    open_transaction: Callable[[], OwnTransaction] | None = field(default=None, repr=False)
    batch: BatchResult | None = None
    handler: str = ""
    queue: str = ""
    notes: Notes = field(default_factory=MemoryNotes, repr=False, compare=False)
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS, repr=False)
    wait: float | None = None
    control: AttemptControl | None = field(default=None, repr=False, compare=False)
    own_steps: Callable[[], OwnSteps] | None = field(default=None, repr=False, compare=False)

    def transaction(self) -> OwnTransaction:
        """Open a transaction on the task database whose commit completes this task.

        The handler's writes and the completion of the task commit together or not at all. If the runner no longer
        holds the task, both are rolled back. If the block raises, both are rolled back and the attempt fails as with
        any exception. After an outage of the database the attempt does not count.

        Returns:
            A context manager for `async with` or `with` that returns a SQLAlchemy connection. Set its `result` to
            store a result for the task.

        Raises:
            FencedOut: at the end of the block, if the runner no longer holds the task.
            AlreadyDone: an earlier transaction completed the task.
            NoTransaction: no runner executes the task.

        Examples:
            >>> async def pay(ctx: Context, order: int) -> None:
            ...     async with ctx.transaction() as tx:
            ...         await tx.execute(sa.text("UPDATE orders SET paid = true WHERE id = :id"), {"id": order})
        """
        if self.open_transaction is None:
            raise NoTransaction(id=self.id)
        return self.open_transaction()

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        retry: str | None = None,
        transaction: bool = False,
        **kwargs: Any,
    ) -> Awaitable[T]: ...

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        retry: str | None = None,
        transaction: bool = False,
        **kwargs: Any,
    ) -> T: ...

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retry: str | None = None,
        transaction: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run a function once, and store its result: later attempts of the task use the stored result.

        An async handler awaits a step of an async function. A plain function calls a step of a plain function.

        Args:
            name: name of the step, unique in the task. Loops use `f"row-{i}"`.
            function: runs as the step. It may run again after a crash of the runner, unless `transaction` is set.
            args: arguments of the function.
            retry: retry plan of the step, such as "10s,1m": a failure ends the attempt without counting it, and the
                next one tries the step again. A list is used up after its last delay, another plan when the step has
                failed `max_attempts` times; then the error goes on to the handler. None lets each error go on.
            transaction: open a transaction on the task database for the function, which receives it as its first
                argument. Its writes and the record of the step commit together: exactly once.
            kwargs: keyword arguments of the function.

        Returns:
            The result of the function as stored: as the type of its return annotation, or as plain JSON without one.

        Raises:
            InvalidStep: the name is used twice, the result is not JSON or too large, or the call is inside of a step or
                of a transaction.
            StepsChanged: an earlier attempt had other steps. The task is dead then.
            FencedOut: the runner no longer holds the task.
            DatabaseUnavailable: the database cannot be reached. If the error leaves the handler, the attempt does not
                count.
            StepsUnavailable: the handler runs in an external executor.

        Examples:
            >>> async def ship(ctx: Context, order: int) -> None:
            ...     receipt = await ctx.step("charge", charge, order, retry="10s,1m")
            ...     await ctx.step("label", print_label, order, receipt)
        """
        return self._steps().step(StepCall(name, function, args, kwargs, retry, transaction))

    def sleep(self, delay: Delay, *, name: str | None = None) -> Awaitable[None]:
        """End the attempt for some time: `await ctx.sleep("3d")`. The slot is free until then.

        The attempt does not count. The next one runs the handler from its beginning, with the stored results of its
        steps. A plain function calls it without `await`.

        Args:
            delay: text ("3d"), seconds or timedelta.
            name: name of the step; None numbers it: "sleep 1". A signal with this name ends the sleep.

        Raises:
            InvalidStep, StepsChanged, FencedOut, DatabaseUnavailable, StepsUnavailable: see `step`.
        """
        return self._steps().sleep(delay, name)

    def wait_for(self, name: str, *, timeout: Delay | None = None) -> SignalWait:
        """End the attempt until a signal arrives: `signal = await ctx.wait_for("approved", timeout="7d")`.

        A signal that was sent before is kept for it. Each wait takes one signal, in the order in which they were sent.
        A plain function calls `ctx.wait_for("approved").result()`.

        Args:
            name: name of the signal.
            timeout: text ("7d"), seconds or timedelta; None for no limit.

        Returns:
            The signal; None after the timeout.

        Raises:
            InvalidStep, StepsChanged, FencedOut, DatabaseUnavailable, StepsUnavailable: see `step`.
        """
        return self._steps().wait_for(name, timeout)

    @overload
    def call(self, name: str, task: "PreparedTask[T | Retry | Dead | Snooze]") -> TaskCall[T]: ...

    @overload
    def call(self, name: str, task: NewTask) -> TaskCall[Any]: ...

    def call(self, name: str, task: NewTask) -> TaskCall[Any]:
        """Submit a task once, and end the attempt until that task has ended: `await ctx.call("bill", bill.new(17))`.

        The called task is the child. The attempt does not count, and the slot is free. After the end of the child, the
        next attempt runs the handler from its beginning, with the stored result of the call. `asyncio.gather` of
        several calls submits all children, and ends the attempt once. A plain function calls
        `ctx.call("bill", bill.new(17)).result()`.

        Args:
            name: name of the step, unique in the task.
            task: the child, made with `new`. If another task holds its unique key, the call waits for that one. The
                child joins the workflow of this task, and is stored in its database; its route does not count.

        Returns:
            The result of the child, as the type of its handler's return annotation.

        Raises:
            TaskFailed: the child is dead; has the type and message of its last exception. If the error leaves the
                handler, the next attempt looks for the child again, which may have been retried.
            TaskCancelled: the child was cancelled.
            TaskNotFound: the child was deleted.
            DuplicateTask: another task holds the unique key, and on_duplicate is "error".
            InvalidStep: the child would wait for this task; see also `step`.
            StepsChanged, FencedOut, DatabaseUnavailable, StepsUnavailable: see `step`.

        Examples:
            >>> async def order(ctx: Context, number: int) -> None:
            ...     paid, packed = await asyncio.gather(
            ...         ctx.call("pay", pay.new(number)),
            ...         ctx.call("pack", pack.new(number)),
            ...     )
        """
        return self._steps().call(name, task)

    def _steps(self) -> OwnSteps:
        return MEMORY_STEPS if self.own_steps is None else self.own_steps()

    @property
    def state(self) -> Any:
        """The state of the last checkpoint, as plain JSON: in this attempt or an earlier one; None without one."""
        return self.notes.state

    def checkpoint(self, state: Any) -> Awaitable[None]:
        """Store the state of the work, from which the next attempt continues: `await ctx.checkpoint({"line": 400})`.

        When it returns, the state is durable. A plain function calls it without `await`.

        Args:
            state: anything that JSON can hold, at most `checkpoint_limit` bytes.

        Raises:
            InvalidCheckpoint: the state is not JSON or too large, or the call is inside of a transaction; the last
                checkpoint stays.
            FencedOut: the runner no longer holds the task.
            DatabaseUnavailable: the database cannot be reached. If the error leaves the handler, the attempt does not
                count.
        """
        return checkpoint(self.notes, state)

    def keep(self, state: Any) -> None:
        """Set the state of the work without waiting. The runner stores it every `checkpoint_interval`.

        It also stores it when the attempt is interrupted, fails or times out. After a crash, the next attempt continues
        from the last stored state.

        Args:
            state: as for `checkpoint`.

        Raises:
            InvalidCheckpoint: the state is not JSON or too large.
        """
        self.notes.keep(state)

    def progress(self, done: float, total: float | None = None, unit: str = "") -> None:
        """Show how far the work is: `ctx.progress(42, 105, "files")`. It costs no statement; call it often.

        Args:
            done: finished units, not negative.
            total: all units; None if unknown.
            unit: name of the units, at most 40 characters.

        Raises:
            InvalidProgress: a number is negative or not finite.
        """
        self.notes.progress(done, total, unit)

    @property
    def trace_id(self) -> str | None:
        """The trace id in the header traceparent, 32 hexadecimal digits; None without one."""
        return trace_id_of(self.headers)

    def set_header(self, name: str, value: str) -> None:
        """Set a header of the task, for middleware: for this attempt, its worker process and the submits inside it.

        A failed attempt stores it for the next one. The attempt of a lost runner does not.

        Raises:
            InvalidTask: the name or the value is not valid, or the task would have too many headers.
        """
        headers = {**self.headers, name: value}
        require_headers("headers", headers)
        object.__setattr__(self, "headers", MappingProxyType(headers))  # frozen for handlers
        if self.control is not None:
            self.control.set_headers(headers)

    def after_settle(self, function: "Callable[[AttemptEnd], object]") -> None:
        """Call a function when the end of this attempt is written, for middleware. `on_success` and others hear of all.

        Args:
            function: a plain function that takes the AttemptEnd. It runs on the event loop of the runner, in the
                context of the attempt, and must not block. An exception is logged. A worker process does not call it.
        """
        if self.control is not None:
            self.control.after_settle(function)

    @property
    def cancelled(self) -> bool:
        """True if the task was terminated or timed out. A plain function should check it and return soon."""
        return self.stop.is_set()


def _refuse(context: Context, name: str, _: object) -> None:
    method = callable(getattr(Context, name, None))
    why = f"call it: ctx.{name}(...)" if method else "a Context only has the values of its attempt"
    raise AttributeError(f"ctx.{name} cannot be set: {why}", name=name, obj=context)


# The method of a frozen dataclass with slots fails with a TypeError about super() if the name is not a field.
setattr(Context, "__setattr__", _refuse)  # noqa: B010 - mypy accepts no assignment to a method

CONTEXT_NAMES = ("Context", "runner.Context")


def context_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that receives the Context; None if the function has none."""
    for item in signature_of(function).parameters.values():
        if item.annotation is Context or is_named(item.annotation, CONTEXT_NAMES):
            return item.name
        if item.name == "ctx" and item.annotation is inspect.Parameter.empty:
            return item.name
    return None
