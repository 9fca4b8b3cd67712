"""Messages between a runner and its worker processes: pickled tuples with their length, over a socket.

Both ends are processes of the same runner. Nothing from the database is unpickled: payloads, results and checkpoints
are JSON text. Nor does a runner load objects that a handler has made: exceptions cross as text, and a message with any
class beside a few of our own is refused. `multiprocessing.connection` would not replace the frames: it waits in
`recv_bytes` for the rest of a message, which a stopped worker never sends, and the event loop of the runner with it.
"""

import contextlib
import io
import logging
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple, Protocol

from runner.engine.executing.attempt_outcome import failure_of
from runner.model.duration import parse_duration
from runner.model.outcome import (
    Cancelled,
    Dead,
    Delay,
    Done,
    Failure,
    HandlerOutcome,
    Interrupted,
    Outage,
    Outcome,
    Release,
    Retry,
    Snooze,
    Suspended,
)
from runner.model.task import CURRENT_TASK, Claimed, DependsOn, NewTask, OnDuplicate, OrderKey, Scope, UniqueKey
from runner.settings import Settings
from runner.text.sanitize import error_text

LENGTH = struct.Struct("!Q")
"""The length of a message in bytes precedes it."""

STACK_SIGNAL = signal.SIGUSR1
"""The signal after which a worker writes its stacks even while C code holds the interpreter lock."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The settings of a worker process, its first message.

    Args:
        prepare: function to call before the first import, as module:function; None for none.
        level: level of the root logger; the runner drops the records that its own loggers do not want.
    """

    prepare: str | None
    settings: Settings
    level: int


class ProcessNotStarted(Exception):
    """The process of a task could not start."""


class ProcessCrashed(Exception):
    """The process of a task ended before the task."""

    def __str__(self) -> str:
        return str(self.args[0])


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process, as the cause of its copy in the runner."""


class ProcessCall(NamedTuple):
    """A task for a worker process.

    Args:
        number: its number, rising.
        offered_until: the latest start in seconds of the monotonic clock, for a call that arrives before the task
            before it has ended and that needs its start token; None for a call that starts when it arrives.
        module: the module that registers its handler.
        state: the state of the last checkpoint, as JSON text; None without one.
        timeout: seconds allowed for the attempt; None for no limit.
        interruptions: maximum number of interruptions without a new checkpoint; None for no limit.
        memory_limit: maximum number of bytes of private memory; None for no limit.
        parts: the tasks of a chunk, each with its state; empty for a single task.
    """

    number: int
    offered_until: float | None
    task: Claimed
    module: str
    state: str | None
    timeout: float | None
    interruptions: int | None
    memory_limit: int | None
    parts: tuple[tuple[Claimed, str | None], ...] = ()


class RemoteError(NamedTuple):
    """An exception as text.

    Args:
        name: qualified name of its class.
        traceback: its formatted traceback.
        attributes: its attributes that are texts and numbers.
    """

    module: str
    name: str
    text: str
    traceback: str
    attributes: dict[str, str | int | float | None]


class ProcessEnd(NamedTuple):
    """The end of a task in a worker process.

    Args:
        outcome: the outcome.
        error: the exception that ended the attempt; None without one.
        reusable: False if the process has to end, because a function does not return or memory ran out.
    """

    outcome: Outcome
    error: "RemoteError | None"
    reusable: bool


class StartTokens:
    """The permission to start an offered call, which either the worker takes or the runner takes back.

    A pipe holds the number of the call. Both processes have its reading end, and the system gives each number to one
    reader. So a call that the runner has taken back never starts, and no reply is necessary.

    Args:
        reading: file descriptor of the reading end, which does not block.
    """

    SIZE = struct.Struct("!Q")

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._last = 0

    def take(self, number: int) -> bool:
        """Take the start token of a call; False if the other process has taken it."""
        while self._last < number:
            try:
                (self._last,) = self.SIZE.unpack(os.read(self._reading, self.SIZE.size))
            except BlockingIOError:
                return False
        return self._last == number


CHANNEL_CLOSED = 75
"""The exit code of a worker whose handler has closed the socket to the runner."""

CHECK_EVERY = 500
"""Milliseconds between two checks of the socket while a handler runs."""


class RemoteAttempt(Protocol):
    """An attempt in a worker process, which receives its messages."""

    call: ProcessCall

    def began(self, worker: Any) -> None:
        """Record that the handler is loaded and starts."""

    def receive(self, kind: str, values: list[Any]) -> None:
        """Take a message of the handler."""

    def fail(self, error: Exception) -> None:
        """End the attempt: its process crashed or could not start it."""

    def withdrawn(self) -> None:
        """Record that the worker will not start it."""


class Channel:
    """The worker's end of the socket. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._input = connection, bytearray()
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._identity = self._read_identity()
        self.calls: set[int] = set()
        """The numbers of the calls that have not ended: their handlers may close the descriptor of the socket."""

    def send(self, *message: Any) -> None:
        """Send one message."""
        data = frame(message)
        with self._sending:
            self.require_open()
            self._socket.sendall(data)

    def receive(self) -> tuple[Any, ...]:
        """Wait for a message.

        Raises:
            EOFError: the runner has ended.
        """
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return unframe(self._read(length))

    def require_open(self) -> None:
        """End this process if its handler has closed the descriptor, which another file may have by now."""
        if self._read_identity() != self._identity:
            os._exit(CHANNEL_CLOSED)

    def _read_identity(self) -> tuple[int, int] | None:
        try:
            status = os.fstat(self._socket.fileno())
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _read(self, length: int) -> bytes:
        data = self._input
        while len(data) < length:
            while not self._poll.poll(CHECK_EVERY if self.calls else None):
                self.require_open()
            self.require_open()
            part = self._socket.recv(1 << 16)
            if not part:
                raise EOFError
            data += part
        message = bytes(data[:length])
        del data[:length]
        return message


def frame(message: tuple[Any, ...]) -> bytes:
    """Write a message with its length."""
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


def unframe(data: bytes) -> tuple[Any, ...]:
    """Read a message without its length."""
    message: tuple[Any, ...] = pickle.loads(data)  # noqa: S301 - from a process of the same runner
    return message


class UnreadableMessage(Exception):
    """A message that contains other objects than those of this module."""


READABLE = (
    *(Done, Retry, Dead, Snooze, Suspended, Release, Interrupted, Outage, Cancelled, Failure),
    *(ProcessEnd, RemoteError, timedelta, datetime, timezone),
    *(NewTask, UniqueKey, Scope, OnDuplicate, OrderKey, DependsOn),
)
"""The classes in the messages of a worker."""

_CLASSES = {(each.__module__, each.__qualname__): each for each in READABLE}


class _MessageReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _CLASSES[module, name]
        except KeyError:
            raise UnreadableMessage(f"it contains {module}.{name}") from None


def read_message(data: bytes) -> tuple[Any, ...]:
    """Read a message of a worker without its length. It executes no code of a handler.

    Raises:
        Exception: the message is not readable.
    """
    message: tuple[Any, ...] = _MessageReader(io.BytesIO(data)).load()
    return message


def crossing(task: NewTask) -> NewTask:
    """Return a task whose texts are plain ones, to send it to the runner."""
    values = {name: plain(value) if isinstance(value, str) else value for name, value in task._asdict().items()}
    if task.run_at is not None:
        values["run_at"] = task.run_at.astimezone(UTC)
    if task.expires_at is not None:
        values["expires_at"] = task.expires_at.astimezone(UTC)
    return NewTask(**values)


def plain_outcome(outcome: Outcome) -> Outcome:
    """Return an outcome of our own classes: a handler may return an object of a subclass."""
    match outcome:
        case Retry():
            return Retry(_plain_delay(outcome.delay), str.__str__(outcome.why), outcome.failure)
        case Dead():
            return Dead(str.__str__(outcome.why), outcome.failure)
        case Snooze():
            return Snooze(_plain_delay(outcome.delay) or 0.0, str.__str__(outcome.why))
        case Outage():
            return Outage(outcome.failure, outcome.most, _plain_delay(outcome.delay))
    return outcome


def _plain_delay(delay: Delay | None) -> Delay | None:
    return None if delay is None else parse_duration(delay).total_seconds()


def plain(value: Any, depth: int = 5) -> Any:
    """Return a value of an object's own classes as plain text, numbers and containers; text for anything else."""
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or type(value) in (bool, int, float):
        return value
    if depth and type(value) in (list, tuple):
        return [plain(each, depth - 1) for each in value]
    if depth and type(value) is dict:
        return {str.__str__(str(name)): plain(each, depth - 1) for name, each in value.items()}
    return error_text(value) if isinstance(value, BaseException) else str.__str__(str(value))


def remote_error(error: BaseException) -> RemoteError:
    """Return an exception as text."""
    failure, kind = failure_of(error), type(error)
    names = str.__str__(str(kind.__module__)), kind.__qualname__
    return RemoteError(*names, failure.message, failure.traceback, _attributes(error))


ATTRIBUTES_LIMIT = 256 * 1024
"""Maximum size of the attributes of an exception that cross, in characters."""


def _attributes(error: BaseException) -> dict[str, str | int | float | None]:
    values: dict[str, str | int | float | None] = {}
    size = 0
    for name, value in vars(error).items():
        if type(name) is str and (value is None or type(value) in (str, int, float, bool)):
            size += len(name) + len(str(value))
            if size <= ATTRIBUTES_LIMIT:
                values[name] = value
    return values


def error_of(error: RemoteError | None) -> BaseException | None:
    """Return an exception for the middleware, the hooks and the log of the runner.

    Its class is a subclass of the class in the worker, if this process has loaded that. Nothing of it is executed.
    """
    if error is None:
        return None
    substitute: BaseException | None = None
    with contextlib.suppress(BaseException):  # a class may refuse, or exit
        substitute = _substitute(_loaded_class(error), error)
    if substitute is None:
        substitute = _substitute(Exception, error)
    vars(substitute).update(error.attributes)
    substitute.__cause__ = RemoteTraceback(f"\n{error.traceback}")
    return substitute


def _substitute(kind: type[BaseException], error: RemoteError) -> BaseException:
    text = error.text
    members = {"__module__": error.module, "__qualname__": error.name, "__str__": lambda _: text}
    same: Any = type(error.name.rpartition(".")[2], (kind,), members)
    builtin: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    return builtin.__new__(same, text)  # type: ignore[no-any-return] # an object of `same`


def _loaded_class(error: RemoteError) -> type[BaseException]:
    """Return the class with the name of an exception, if this process has loaded it; Exception otherwise."""
    found: Any = sys.modules.get(error.module)
    for part in error.name.split("."):
        found = vars(found).get(part) if found is not None else None
    is_error = isinstance(found, type) and issubclass(found, BaseException)
    return found if is_error and not issubclass(found, HandlerOutcome) else Exception


def forward(values: dict[str, Any]) -> None:
    """Log a record of a worker process, as far as the loggers of this process want it."""
    record = logging.makeLogRecord(values)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        token = CURRENT_TASK.set(None)  # the pool reads messages in the context of the task that started the process
        logger.handle(record)
        CURRENT_TASK.reset(token)


def end_text(code: int) -> str:
    """Describe the end of a process that had a task.

    Args:
        code: its exit code, or the negative number of the signal that killed it.
    """
    if code == CHANNEL_CLOSED:
        return (
            "its process has lost the socket to the runner, probably because the handler closed descriptors that it "
            "did not open"
        )
    if code >= 0:
        return f"its process exited with code {code} before the task ended"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", by an operator or because the machine ran out of memory" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{hint}"
