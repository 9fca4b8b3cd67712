"""Chunk: the tasks that one call of a chunk handler executes together, each with an outcome of its own."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, get_args, get_origin, overload

from typing_extensions import TypeVar

from runner.errors import InvalidHandler
from runner.handlers.context import AttemptLogger, Context, MemoryNotes
from runner.handlers.functions import RETURN, UNREADABLE, hints_of, is_named, signature_of
from runner.model.duration import parse_duration
from runner.model.outcome import HANDLER_OUTCOMES, Dead, Delay, Retry, Snooze

T = TypeVar("T")
"""The data class or the model with the arguments of one task."""
R = TypeVar("R", default=None)
"""The type of the result of one task."""

log = logging.getLogger("runner.task")

MOST = 10_000
"""Maximum number of tasks in a chunk."""

LONGEST_WAIT = 10.0
"""Maximum seconds for which a chunk waits for more tasks: its tasks are claimed, so that no other runner has them."""

DEFAULT_WAIT = 0.2
"""Seconds for which a chunk waits for more tasks, unless its handler sets `chunk_wait`."""

CHUNK_NAMES = ("Chunk", "runner.Chunk")


class Succeeded(NamedTuple):
    """The outcome of a task that succeeded, with its result."""

    result: Any = None


ChunkOutcome: TypeAlias = Succeeded | BaseException
"""The outcome of one task as the handler set it: a result, Retry, Dead, Snooze, or an exception."""


class ChunkTask(Generic[T, R]):
    """One task of a chunk.

    A task without an outcome succeeds when the function returns, and fails when it raises. The last outcome counts if a
    task gets several. Any thread may set it. The runner writes the outcomes when the function ends.

    Args:
        payload: its arguments.
        context: makes its Context, at the first use.
        on_outcome: called with each outcome.
    """

    __slots__ = ("_context", "_make_context", "_on_outcome", "outcome", "payload")

    def __init__(
        self,
        payload: T,
        context: Callable[[], Context],
        on_outcome: Callable[[ChunkOutcome], object] = lambda _: None,
    ) -> None:
        self.payload = payload
        """Its arguments."""
        self.outcome: ChunkOutcome | None = None
        """Its outcome; None if the handler has not set it."""
        self._make_context, self._on_outcome = context, on_outcome
        self._context: Context | None = None

    @property
    def ctx(self) -> Context:
        """Its Context: id, attempt, headers, checkpoints, progress and log; without `transaction`."""
        if self._context is None:
            self._context = self._make_context()
        return self._context

    def succeed(self, result: R | None = None) -> None:
        """Set its outcome: it succeeds.

        Args:
            result: its result, anything that JSON can hold.
        """
        self._set(Succeeded(result))

    def fail(self, error: BaseException) -> None:
        """Set its outcome: it fails with an exception, as if its function had raised it for this task alone."""
        self._set(error)

    def retry(self, delay: Delay | None = None, why: str = "") -> None:
        """Set its outcome: it is retried.

        Args:
            delay: time until the next attempt, as text ("5m"), seconds or timedelta; None uses the retry plan.
            why: reason to store.
        """
        self._set(Retry(delay, why))

    def dead(self, why: str = "") -> None:
        """Set its outcome: it is dead, even if attempts remain.

        Args:
            why: reason to store.
        """
        self._set(Dead(why))

    def snooze(self, delay: Delay, why: str = "") -> None:
        """Set its outcome: it runs again later, and this attempt does not count.

        Args:
            delay: time until then, as text ("10m"), seconds or timedelta.
            why: reason to show until then.
        """
        self._set(Snooze(delay, why))

    def _set(self, outcome: ChunkOutcome) -> None:
        self.outcome = outcome
        self._on_outcome(outcome)


class Chunk(Sequence[ChunkTask[T, R]]):
    """The tasks that one call of a chunk handler executes: up to `chunk` tasks of the handler and of one tenant.

    The first type is a data class or a pydantic model with the arguments of one task, which `submit` takes. The second
    one is the type of the results; leave it out for tasks without a result.

    Args:
        tasks: the tasks, in the order of their claim.

    Examples:
        >>> @handler("mail.send", chunk=100, chunk_wait="200ms")
        ... async def send(chunk: Chunk[Mail]) -> None:
        ...     for task, error in zip(chunk, await api.send_all(chunk.payloads)):
        ...         if error:
        ...             task.retry("5m", why=error)
    """

    def __init__(self, tasks: Iterable[ChunkTask[T, R]]) -> None:
        self._tasks = tuple(tasks)

    @classmethod
    def of(cls, *payloads: T) -> "Chunk[T, R]":
        """Make a chunk without a runner, to call the function in a test. Each task has its outcome in `outcome`."""
        return cls([ChunkTask(payload, _context_alone) for payload in payloads])

    @property
    def payloads(self) -> list[T]:
        """The arguments of all tasks, in their order."""
        return [task.payload for task in self._tasks]

    @overload
    def __getitem__(self, index: int) -> ChunkTask[T, R]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ChunkTask[T, R]]: ...

    def __getitem__(self, index: int | slice) -> ChunkTask[T, R] | Sequence[ChunkTask[T, R]]:
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)


def _context_alone() -> Context:
    notes = MemoryNotes()
    return Context(0, None, 1, 1, 0, None, AttemptLogger(log, {}, notes, "{}"), notes=notes)


class ChunkOption(NamedTuple):
    """The options `chunk` and `chunk_wait` of a handler.

    Args:
        size: maximum number of tasks in a chunk.
        wait: seconds for which a chunk waits for more tasks after its first one.
    """

    size: int
    wait: float = DEFAULT_WAIT


def read_chunk(name: str, size: int | None, wait: Delay | None) -> ChunkOption | None:
    """Read the options of a handler; None without a chunk.

    Raises:
        InvalidHandler: a value is not valid.
    """
    why = None
    if size is None:
        if wait is None:
            return None
        why = "chunk_wait needs chunk, the maximum number of tasks of a chunk, such as chunk=100"
    elif not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST:
        why = f"chunk is {size!r}: use a number of tasks from 1 to {MOST:,}"
    else:
        seconds = DEFAULT_WAIT if wait is None else parse_duration(wait).total_seconds()
        if seconds <= LONGEST_WAIT:
            return ChunkOption(size, seconds)
        why = f"chunk_wait is {wait!r}: use at most 10s, because the tasks of a chunk that waits are claimed"
    raise InvalidHandler(name=name, why=why)


class ChunkTypes(NamedTuple):
    """The parameter of a function that receives its Chunk, and the types in its annotation."""

    parameter: str
    payload: Any
    result: Any


def chunk_types(name: str, function: Callable[..., Any]) -> ChunkTypes | None:
    """Find the parameter of a function that receives a Chunk; None if the function has none.

    Raises:
        InvalidHandler: the annotation cannot be read, or the function returns results in another way.
    """
    annotations = {item.name: item.annotation for item in signature_of(function).parameters.values()}
    parameter = next((key for key, value in annotations.items() if _is_chunk(value)), None)
    if parameter is None:
        return None
    try:
        annotation = hints_of(function, [parameter])[parameter]
    except UNREADABLE as error:
        why = f"the type of its Chunk cannot be read: {error}. Define it before the handler, outside `if TYPE_CHECKING`"
        raise InvalidHandler(name=name, why=why) from None
    _require_no_result(name, function)
    arguments = get_args(annotation)
    if not arguments:
        why = f"its parameter {parameter} is a Chunk without a type: write Chunk[Mail], with a data class or a model"
        raise InvalidHandler(name=name, why=why)
    return ChunkTypes(parameter, arguments[0], arguments[1] if len(arguments) > 1 else None)


def _is_chunk(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.partition("[")[0].strip() in CHUNK_NAMES
    return annotation is Chunk or get_origin(annotation) is Chunk or is_named(annotation, CHUNK_NAMES)


def _require_no_result(name: str, function: Callable[..., Any]) -> None:
    """Reject a declared result, of which no task would have a part."""
    try:
        returned = hints_of(function, [RETURN]).get(RETURN)
    except UNREADABLE:
        return
    if returned not in (None, type(None), Any, *HANDLER_OUTCOMES):
        why = "a chunk handler returns None: give each task its result with task.succeed(result)"
        raise InvalidHandler(name=name, why=why)
