"""Messages between a runner and its worker processes: pickled tuples with their length, over a socket.

Both ends are processes of the same runner. Nothing from the database is unpickled: payloads, results and checkpoints
are JSON text.
"""

import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

from runner.model.outcome import Outcome
from runner.model.task import Claimed
from runner.settings import Settings

LENGTH = struct.Struct("!Q")
"""The length of a message in bytes precedes it."""


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


@dataclass(frozen=True, slots=True)
class ProcessCall:
    """A task for a worker process.

    Args:
        task: the claimed task.
        module: the module that registers its handler.
        state: the state of the last checkpoint, as JSON text; None without one.
        timeout: seconds allowed for the attempt; None for no limit.
        interruptions: maximum number of interruptions without a new checkpoint; None for no limit.
        memory_limit: maximum number of bytes of private memory; None for no limit.
    """

    task: Claimed
    module: str
    state: str | None
    timeout: float | None
    interruptions: int | None
    memory_limit: int | None


@dataclass(frozen=True, slots=True)
class ProcessEnd:
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


class Channel:
    """The worker's end of the socket. Any thread may send; one thread receives.

    Args:
        connection: the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
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
        data = bytearray()
        while len(data) < length:
            part = self._socket.recv(min(length - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def frame(message: tuple[Any, ...]) -> bytes:
    """Write a message with its length."""
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


def unframe(data: bytes) -> tuple[Any, ...]:
    """Read a message without its length."""
    message: tuple[Any, ...] = pickle.loads(data)  # noqa: S301 - from a process of the same runner
    return message
