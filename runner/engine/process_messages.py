"""Messages between a runner and its worker processes: pickled tuples with their length, over a socket.

Both ends are processes of the same runner. Nothing from the database is unpickled: payloads, results and checkpoints
are JSON text.
"""

import contextlib
import logging
import os
import pickle
import signal
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from runner.logs import CURRENT_TASK
from runner.model.outcome import Outcome
from runner.model.task import Claimed
from runner.settings import Settings

LENGTH = struct.Struct("!Q")
"""The length of a message in bytes precedes it."""

STACK_SIGNAL = signal.SIGUSR1
"""The signal after which a worker writes its stacks even while C code holds the interpreter lock."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The settings of a worker process, its first message.

    Args:
        prepare: function to call before the first import, as module:function; None for none.
        settings: the settings of the runner.
        level: level of the root logger; the runner drops the records that its own loggers do not want.
    """

    prepare: str | None
    settings: Settings
    level: int


class ProcessNotStarted(Exception):
    """The process of a task could not start."""


class ProcessCrashed(Exception):
    """The process of a task ended before the task."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process, as the cause of its copy in the runner."""


class ProcessCall(NamedTuple):
    """A task for a worker process.

    Args:
        number: its number, rising.
        offered_until: the latest start in seconds of the monotonic clock, for a call that arrives before the task
            before it has ended and that needs its start token; None for a call that starts when it arrives.
        task: the claimed task.
        module: the module that registers its handler.
        state: the state of the last checkpoint, as JSON text; None without one.
        timeout: seconds allowed for the attempt; None for no limit.
        interruptions: maximum number of interruptions without a new checkpoint; None for no limit.
        memory_limit: maximum number of bytes of private memory; None for no limit.
    """

    number: int
    offered_until: float | None
    task: Claimed
    module: str
    state: str | None
    timeout: float | None
    interruptions: int | None
    memory_limit: int | None


class ProcessEnd(NamedTuple):
    """The end of a task in a worker process.

    Args:
        outcome: the outcome.
        error: the pickled exception that ended the attempt; None without one, or if it cannot be pickled.
        error_name: module and name of its class; None without an exception.
        reusable: False if the process has to end, because a function does not return or memory ran out.
    """

    outcome: Outcome
    error: bytes | None
    error_name: tuple[str, str] | None
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
    """The worker's end of the socket. Any thread may send; one thread receives.

    Args:
        connection: the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._input = connection, bytearray()
        self._sending = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send one message."""
        data = frame(message)
        with self._sending:
            self._socket.sendall(data)

    def receive(self) -> tuple[Any, ...]:
        """Wait for a message.

        Raises:
            EOFError: the runner has ended.
        """
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return unframe(self._read(length))

    def _read(self, length: int) -> bytes:
        data = self._input
        while len(data) < length:
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


def error_of(end: ProcessEnd) -> BaseException | None:
    """Return the exception that ended an attempt in a worker process, or a substitute with the name of its class."""
    if end.error_name is None:
        return None
    failure = getattr(end.outcome, "failure", None)
    error: Any = None
    if end.error is not None:
        with contextlib.suppress(Exception):  # its constructor may refuse the arguments
            error = pickle.loads(end.error)  # noqa: S301 - from a process of this runner
    if not isinstance(error, BaseException):
        module, name = end.error_name
        kind = type(name.rpartition(".")[2], (Exception,), {"__module__": module, "__qualname__": name})
        error = kind(failure.message if failure else "")
    error.__cause__ = RemoteTraceback(f"\n{failure.traceback}" if failure else "")
    return error  # type: ignore[no-any-return] # checked above


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
    if code >= 0:
        return f"its process exited with code {code} before the task ended"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", by an operator or because the machine ran out of memory" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{hint}"
