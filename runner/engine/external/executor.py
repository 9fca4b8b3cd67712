"""ExternalExecutor: an engine outside of the runner whose workers execute calls."""

from collections.abc import Callable
from typing import Any, Protocol

from runner.engine.external.call import ExternalCall

WorkerMessage = bytes | tuple[Any, ...]
"""A message of a call, pickled by its worker; a tuple if this process made it."""

Receive = Callable[[WorkerMessage], object]
"""Receives a message of a call; any thread may call it."""

End = Callable[[WorkerMessage | BaseException], object]
"""Receives the last message of a call, or the error of its engine; any thread may call it."""


class WorkerLost(Exception):
    """The worker of an external executor ended before its task."""


class ExecutorLost(Exception):
    """The cluster of an external executor is not available."""


class StartedCall(Protocol):
    """A call that an engine has received."""

    def send(self, data: bytes) -> None:
        """Send a message to the handler, if the engine has a way for it."""

    def close(self) -> None:
        """Receive no more messages of the call."""

    def kill(self) -> None:
        """End the call if the engine can. Its function may go on: the result is ignored."""


class ExternalExecutor(Protocol):
    """One engine. Its methods are called on the event loop of the runner, and return without a wait."""

    calls_on_loop: bool
    """True if it calls `receive` and `end` on that event loop, after the return of `start`."""

    span: float
    """Seconds from the end of a handler until its worker has the next task, estimated high; 0 if it takes little."""

    def open(self, resize: Callable[[int], object], lost: Callable[[str], object]) -> None:
        """Connect, in a thread.

        Args:
            resize: receives the number of slots when it changes; any thread may call it.
            lost: receives the reason when the cluster goes; any thread may call it. No call of it will end.

        Raises:
            Exception: the cluster is not available.
        """

    def start(self, call: ExternalCall, receive: Receive, end: End) -> StartedCall:
        """Start a call.

        Args:
            receive: receives its messages.
            end: receives its end.
        """

    def close(self) -> None:
        """Disconnect, in a thread. A handler that still runs goes on."""
