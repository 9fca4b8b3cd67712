"""Server watch: ends the statements to which a server gives no answer.

A server that hangs, or a network that drops packets, keeps a connection open and silent. A thread compares the time of
each statement with its limit. Past the limit it shuts down the socket, and the statement fails in its own thread or
event loop, which then connects again. A statement costs two timestamps.
"""

import os
import socket
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from runner.db.readiness import readiness
from runner.db.server_hosts import ServerHost

LONGEST, LONGEST_CONNECT = 15.0, 5.0
"""Seconds for the answer to a statement, and for a connection attempt at one address; runners with a short lease have
less."""

TICK = 0.5
"""Maximum seconds between two checks while a statement runs."""

CANCEL_AT = 0.75
"""Fraction of its limit after which a statement is cancelled. A server that works answers in time, so that the outcome
is known and no process of the server waits on for a lock."""

MOST_CANCELS = 8
"""Maximum number of cancel requests, and of questions to servers, at the same time."""

QUESTION_AFTER = 5.0
"""Seconds between two questions to the server about a statement without a limit."""

SUSPICION_SECONDS = 60.0
"""Seconds for which a host that gave no answer is tried after the others."""


class AnswerLimits(NamedTuple):
    """The seconds that a server has for its answers.

    Args:
        statement: to one statement of a short verb.
        transaction: to one statement of a longer transaction; None for no limit: the server is asked from time to time
            whether it still executes the statement.
        connect: to a connection attempt at one address, with its encryption and login.
    """

    statement: float | None = LONGEST
    transaction: float | None = None
    connect: float = LONGEST_CONNECT

    @classmethod
    def of_lease(cls, lease: float) -> "AnswerLimits":
        """The limits of a runner: an outage is noticed, and another host tried, before the lease ends.

        Args:
            lease: length of the lease in seconds.
        """
        longest = min(lease / 2, LONGEST)
        return cls(longest, longest, renewal_limit(lease))


def renewal_limit(lease: float) -> float:
    """Return the limit of a heartbeat, and of a connection attempt of a runner.

    A heartbeat that starts a fifth of the lease after the last one, its limit and one attempt at a silent host leave
    time for another host.

    Args:
        lease: length of the lease in seconds.
    """
    return min(lease / 2, max(lease / 5, 1.0), LONGEST_CONNECT)


ANSWER_LIMIT: ContextVar[float | None] = ContextVar("answer_limit")


@contextmanager
def answer_within(seconds: float | None) -> Iterator[None]:
    """Limit the answers to the statements of the block; None for no limit.

    Args:
        seconds: the limit of each statement in seconds.
    """
    token = ANSWER_LIMIT.set(seconds)
    try:
        yield
    finally:
        with suppress(ValueError):  # a block that ends in another context, whose limit is its own
            ANSWER_LIMIT.reset(token)


LONGEST_TRIP = 12.0
"""Seconds for the answers to several statements with a deadline: less than the silence after which the console counts a
database as lost."""

ANSWER_MARGIN = 2.0
"""Seconds after its deadline by which a server must have reported the end of a statement."""


def limit_of_deadline(deadline: float, statements: int = 1) -> float:
    """Return the limit of the answer to a round trip, in seconds.

    Args:
        deadline: maximum seconds of each statement, which the server knows.
        statements: the number of statements in the round trip.
    """
    return min(max(LONGEST_TRIP, deadline + ANSWER_MARGIN), statements * deadline + ANSWER_MARGIN)


class Watched(Protocol):
    """A connection to a server, as the watch needs it."""

    host: ServerHost
    since: float
    """Start of the running statement in monotonic seconds; 0.0 while none runs."""
    answered: float
    """Start of the last statement with an answer."""
    limit: float | None
    fault: str | None
    """The reason why the connection was dropped."""
    cancelled: bool
    asked: float
    """Time of the last question about the statement."""
    inode: int
    """Identity of the socket: its descriptor may have another meaning after a close."""

    @property
    def descriptor(self) -> int:
        """The descriptor of the socket; -1 if it is closed."""

    @property
    def process(self) -> int:
        """The process of the server."""

    def cancel_request(self) -> Callable[[float], None]:
        """Return a function that cancels the statement; its argument is the maximum wait in seconds."""

    def question(self) -> Callable[[], str | None]:
        """Return a function that asks the server about the statement, and returns a fault or None."""


class ServerWatch:
    """The connections of this process to servers, and the thread that watches them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._silent: dict[ServerHost, float] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._helpers = 0
        self.parked = False
        """True while the thread sleeps until the next statement."""

    def add(self, connection: Watched) -> None:
        """Watch a connection until it is garbage."""
        with self._lock:
            self._connections.add(connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="runner-server-watch", daemon=True)
                self._thread.start()

    def wake(self) -> None:
        """Let the thread run again, because a statement has started."""
        self.parked = False
        self._wake.set()

    def suspect(self, host: ServerHost) -> None:
        """Remember that a host gave no answer."""
        self._silent[host] = time.monotonic()

    def trust(self, host: ServerHost) -> None:
        """Forget that a host gave no answer."""
        self._silent.pop(host, None)

    def is_suspect(self, host: ServerHost) -> bool:
        """Return True if a host gave no answer a short time ago."""
        return time.monotonic() - self._silent.get(host, -SUSPICION_SECONDS) < SUSPICION_SECONDS

    def drop_all(self, host: ServerHost, before: float, fault: str) -> None:
        """Drop the connections to a host that does not answer, also the idle ones.

        Args:
            before: keep connections with an answer to a statement that started later, in monotonic seconds.
        """
        with self._lock:
            for connection in list(self._connections):
                if connection.host == host and connection.answered < before:
                    _shut_down(connection, fault)

    def _run(self) -> None:
        last = resumed = time.monotonic()
        pause = TICK
        while True:
            if pause:
                time.sleep(pause)
            now = time.monotonic()
            if now - last > pause + 2 * TICK:  # the process was stopped: answers may be on their way
                resumed = now
            last = now
            with self._lock:
                busy = [connection for connection in list(self._connections) if connection.since]
            for connection in busy:
                with suppress(Exception):  # a connection that is closed at this moment must not end the watch
                    self._check(connection, now, resumed)
            pause = min([TICK, *(each.limit / 8 for each in busy if each.limit is not None)])
            busy.clear()
            if not self._has_statements():
                self._park()
                last = time.monotonic()

    def _park(self) -> None:
        self._wake.clear()
        self.parked = True
        if not self._has_statements():  # one may have started before it could see that the thread sleeps
            self._wake.wait()
        self.parked = False

    def _has_statements(self) -> bool:
        with self._lock:
            return any(connection.since for connection in list(self._connections))

    def _check(self, connection: Watched, now: float, resumed: float) -> None:
        since, limit = connection.since, connection.limit
        waited = now - max(since, resumed)
        if not since or connection.fault is not None:
            return
        if limit is None:
            if now - max(since, resumed, connection.asked) >= QUESTION_AFTER:
                self._ask(connection, since, now)
        elif waited >= limit:
            self._drop(connection, since, describe_silence(now - since, connection))
        elif waited >= limit * CANCEL_AT and not connection.cancelled:
            self._cancel(connection, since, limit * (1 - CANCEL_AT))

    def _drop(self, connection: Watched, since: float, fault: str) -> None:
        with self._lock:
            if connection.since == since and not _has_answer(connection) and _shut_down(connection, fault):
                self.suspect(connection.host)

    def _cancel(self, connection: Watched, since: float, seconds: float) -> None:
        with self._lock:
            if connection.since != since or _has_answer(connection):
                return
            request = connection.cancel_request()
            connection.cancelled = True
        self._help(lambda: request(seconds))

    def _ask(self, connection: Watched, since: float, now: float) -> None:
        connection.asked = now
        question = connection.question()

        def ask() -> None:
            fault = question()
            if fault is not None and not _is_sending(connection):
                self._drop(connection, since, f"{describe_silence(time.monotonic() - since, connection)}: {fault}")

        self._help(ask)

    def _help(self, work: Callable[[], None]) -> None:
        """Do work that may block in a thread of its own."""
        if self._helpers >= MOST_CANCELS:
            return
        self._helpers += 1

        def run() -> None:
            try:
                with suppress(Exception):
                    work()
            finally:
                self._helpers -= 1

        threading.Thread(target=run, name="runner-server-cancel", daemon=True).start()


def describe_silence(seconds: float, connection: Watched) -> str:
    """Describe a server that gives no answer."""
    return f"no answer for {seconds:.1f} s from {connection.host} (pid {connection.process})"


def _has_answer(connection: Watched) -> bool:
    """True if the answer has arrived: the event loop or the thread of the statement is busy and reads it later."""
    descriptor = connection.descriptor
    if descriptor < 0:
        return True
    return readiness(descriptor)(0)


def _is_sending(connection: Watched) -> bool:
    """True if a large statement is still on its way: the other side has not acknowledged all of it."""
    unsent = array("i", [0])
    with suppress(ModuleNotFoundError, OSError):  # Windows; no socket of TCP, or closed
        import fcntl
        import termios

        fcntl.ioctl(connection.descriptor, termios.TIOCOUTQ, unsent)
    return unsent[0] > 0


def _shut_down(connection: Watched, fault: str) -> bool:
    """Shut down the socket of a connection; False if it is closed. Its owner closes the descriptor."""
    if connection.descriptor < 0:
        return False
    try:
        copy = os.dup(connection.descriptor)
    except OSError:
        return False
    if os.fstat(copy).st_ino != connection.inode:  # closed, and the number means another file now
        os.close(copy)
        return False
    connection.fault = fault
    with socket.socket(fileno=copy) as own, suppress(OSError):
        own.shutdown(socket.SHUT_RDWR)
    return True


WATCH = ServerWatch()


def _after_fork() -> None:
    """A child shares the sockets with its parent, whose statements it must not end."""
    WATCH.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
