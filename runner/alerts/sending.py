"""Sending: calls a server in a thread of its own, which may outlive the task that waits for it."""

import asyncio
import contextvars
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Event, Thread
from threading import enumerate as live_threads
from typing import Any, ParamSpec, Protocol, TypeVar

from runner.text.sanitize import count_noun

P = ParamSpec("P")
T = TypeVar("T")


NAME = "runner-send"
"""The beginning of the names of the threads."""

MAX_CALLS = 20
"""Maximum number of calls of one address at the same time, outside of the slots that receivers share."""


SLOW, PAUSE = 2.0, 0.02
"""Seconds after which a call that has not ended holds up no others, and between two looks for the end of one."""

LIMIT = 30.0
"""Seconds for a whole call: a server that sends one byte at a time ends none of its steps."""


class OpenConnection(Protocol):
    """A connection of a call; its socket is None until it is open."""

    sock: Any


@contextmanager
def limited(connections: Sequence[OpenConnection], failure: Callable[[str], Exception]) -> Iterator[None]:
    """End the connections of a call that takes longer than LIMIT.

    Args:
        connections: those that the call has opened so far.
        failure: makes the error of a call that took longer.
    """
    done, late = Event(), Event()

    def end() -> None:
        while not done.wait(1.0 if late.is_set() else LIMIT):
            late.set()
            for connection in list(connections):
                if (open_socket := connection.sock) is not None:
                    with suppress(OSError):  # not the method of an SSLSocket, which another thread reads
                        socket.socket.shutdown(open_socket, socket.SHUT_RDWR)

    Thread(target=end, name="runner-limit", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        if late.is_set():
            raise failure(f"no complete answer in {LIMIT:g} s") from None


class TooManyCalls(Exception):
    """Earlier calls of a receiver have not ended."""


class SendingThread(Thread):
    """The thread of a call."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        super().__init__(target=contextvars.copy_context().run, args=(call,), name=name, daemon=True)
        self.began = time.monotonic()


def _calls_since(name: str) -> list[float]:
    """When the calls of a receiver that have not ended began."""
    return [each.began for each in live_threads() if isinstance(each, SendingThread) and each.name == name]


async def in_own_thread(receiver: str, most: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread, and wait for it.

    The threads of the loop, which `asyncio.to_thread` takes, are few, and a process waits for them at its end. A call
    beyond the maximum waits for the end of an earlier one, unless one of these is slow.

    Args:
        receiver: the name of the receiver that it calls.
        most: maximum number of calls of this receiver at the same time.

    Raises:
        Exception: that of the function.
        TooManyCalls: too many earlier calls have not ended, and one of them is slow.
        RuntimeError: the system allows no further thread.
    """
    name = f"{NAME} {receiver}"
    while len(begun := _calls_since(name)) >= most:
        if time.monotonic() - min(begun) > SLOW:
            calls = count_noun(most, "earlier call")
            raise TooManyCalls(f"{receiver} has not answered {calls}; its server may be slow")
        await asyncio.sleep(PAUSE)
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # who waits for it may be cancelled, and the thread still sets its result

    def call() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    SendingThread(name, call).start()
    return await asyncio.wrap_future(done)
