"""Server connections: connections of psycopg to one of several hosts, whose statements the server watch observes."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from inspect import unwrap
from time import monotonic
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

import psycopg
from psycopg.pq import PollingStatus

from runner.db.loop_statements import LoopStatements
from runner.db.readiness import readiness, write_readiness
from runner.db.round_trips import RoundTrips
from runner.db.server_hosts import ServerHost, look_up, looked_up
from runner.db.server_watch import ANSWER_LIMIT, WATCH, AnswerLimits, describe_silence
from runner.settings.password_command import PasswordCommand

T = TypeVar("T")

_wait, _wait_async = psycopg.Connection.wait, psycopg.AsyncConnection.wait

# Instrumentation for traces replaces these methods by functions that connect with a class of psycopg.
_connect, _connect_async = (unwrap(vars(kind)["connect"]) for kind in (psycopg.Connection, psycopg.AsyncConnection))

CANCEL_SECONDS = 2.0
"""Maximum wait in seconds for a cancel request, before the connection of a cancelled caller is closed."""

READ_ONLY_STATES = ("25006", "0A000")
"""SQLSTATEs of a refused change, and of the begin of a transaction that may change something, on a standby."""

REPORTED, READ_ONLY = b"in_hot_standby", b"default_transaction_read_only"

STANDBY = "read-only standby: pg_is_in_recovery() is true on {}"
CLOSED = "read-only server: default_transaction_read_only is on at {}"


class NoAnswer(psycopg.OperationalError):
    """A server gave no answer in time. If it received the statement, it may have executed it."""


class StatementCancelled(psycopg.errors.QueryCanceled):
    """A server confirmed that it cancelled a statement that had taken too long."""

    unavailable = True


class ReadOnlyServer(psycopg.errors.ReadOnlySqlTransaction):
    """The server is a standby, or is set to read-only."""


class ConnectionAttempt(NamedTuple):
    """The attempt that runs in the current context.

    Args:
        seconds: maximum duration.
    """

    host: ServerHost
    seconds: float


ATTEMPT: ContextVar[ConnectionAttempt] = ContextVar("connection_attempt")


@contextmanager
def attempt(host: ServerHost, seconds: float) -> Iterator[None]:
    """Limit the connection attempt of the block."""
    token = ATTEMPT.set(ConnectionAttempt(host, seconds))
    try:
        yield
    finally:
        ATTEMPT.reset(token)


def _limited(connecting: Generator[Any, int, T]) -> Generator[Any, int, T]:
    """Let the steps of a connection attempt fail when its time has passed; psycopg's own limit is 2 s at least."""
    host, seconds = ATTEMPT.get()
    end = monotonic() + seconds
    try:
        request = next(connecting)
        while True:
            ready = yield request
            if not ready and monotonic() > end:
                connecting.close()
                raise NoAnswer(f"no answer for {seconds:.1f} s from {host} while connecting")
            request = connecting.send(ready)
    except StopIteration as stop:
        result: T = stop.value
        return result


class WatchedConnection:
    """The state of a connection that the server watch reads; see `runner.db.server_watch.Watched`."""

    pgconn: Any
    read_only: Any
    host = ServerHost("", "", "")
    since = 0.0
    answered = 0.0
    asked = 0.0
    limit: float | None = None
    own_limit: float | None = None
    fault: str | None = None
    unanswered = 0.0
    """Start of a statement whose caller was cancelled before the answer, in monotonic seconds; its reader resets it."""
    cancelled = False
    awaits: str | None = None
    """The lock that a statement waited for before it was cancelled, with the session that holds it; None if that is not
    known."""
    expires = float("inf")
    """Time in monotonic seconds after which the hosts are tried again: no other one accepted changes."""
    inode = 0
    process = 0
    _parameters: Mapping[str, Any]
    _seconds = AnswerLimits().connect

    silence = NoAnswer
    """The error of a server that gives no answer."""

    @classmethod
    def _connect_gen(cls, *arguments: Any, **options: Any) -> Any:
        return _limited(super()._connect_gen(*arguments, **options))  # type: ignore[misc] # of the driver's class

    def follow(self, host: ServerHost, limits: AnswerLimits, parameters: Mapping[str, Any]) -> Self:
        """Let the server watch observe the connection.

        Args:
            parameters: connect to the same host.
        """
        self.host, self.own_limit = host, limits.transaction
        self._parameters, self._seconds = parameters, limits.connect
        self.process = self.pgconn.backend_pid
        with suppress(OSError):  # a socket of Windows is no file
            self.inode = os.fstat(self.pgconn.socket).st_ino
        WATCH.add(self)
        return self

    @property
    def descriptor(self) -> int:
        """The descriptor of the socket; -1 if it is closed."""
        try:
            return int(self.pgconn.socket)
        except psycopg.Error:
            return -1

    @staticmethod
    def failure(texts: list[str], last: psycopg.Error | None) -> psycopg.Error:
        """Return the error of a connection to several hosts.

        Args:
            last: the last error of the driver; None if all servers are read-only or unknown.
        """
        if last is not None and len(texts) == 1:
            return last
        text = "; ".join(texts)
        return psycopg.OperationalError(text) if last is not None or "read-only" not in text else ReadOnlyServer(text)

    def start(self) -> None:
        """Begin to wait for an answer."""
        self.limit = ANSWER_LIMIT.get(self.own_limit)
        self.since = monotonic()
        if WATCH.parked:
            WATCH.wake()

    def end(self) -> None:
        """Receive an answer."""
        self.answered, self.since = self.since, 0.0
        if self.cancelled:
            self.raise_late()

    def raise_late(self) -> NoReturn:
        """Raise the error of an answer after the statement was cancelled.

        Its outcome is unknown: a commit that waits for a synchronous standby ends with success when it is cancelled.
        """
        self.raise_fault(psycopg.OperationalError())

    def raise_fault(self, error: Exception) -> NoReturn:
        """Raise the error of a statement, or the fault of the server that caused it."""
        since, self.since = self.since or self.answered, 0.0
        if self.fault is not None:
            raise NoAnswer(self.fault) from None
        state = getattr(error, "sqlstate", None)
        if self.cancelled:
            text = describe_silence(monotonic() - since, self)
            self.stop_reading()
            self.pgconn.finish()  # the cancel request must not meet another statement
            if state is None:
                raise NoAnswer(text) from None
            why = "probably another transaction holds a lock" if self.awaits is None else self.awaits
            raise StatementCancelled(f"{text}; {why}") from None
        if getattr(getattr(error, "diag", None), "context", None):
            raise error  # by a function, with any state
        if state in READ_ONLY_STATES and (fact := self.read_only_fact(known=state != READ_ONLY_STATES[0])):
            self.stop_reading()
            self.pgconn.finish()  # the hosts are tried again
            raise ReadOnlyServer(f"{fact} ({error})") from None
        raise error

    def read_only_fact(self, *, known: bool = True) -> str | None:
        """Return why a server refuses changes, as it reported itself; None if it accepts them.

        Args:
            known: False if it refused a change. A server before PostgreSQL 14, and a pooler, report nothing.
        """
        standby, closed = (self.pgconn.parameter_status(name) for name in (REPORTED, READ_ONLY))
        if standby == b"on":
            return STANDBY.format(self.host)
        if closed == b"on":
            return CLOSED.format(self.host)
        return None if known or standby is not None or self.read_only else f"read-only transaction on {self.host}"

    def stop_reading(self) -> None:
        """Stop watching the socket for single statements."""

    def check_fault(self) -> None:
        """Raise the fault of a connection that was dropped.

        Raises:
            NoAnswer: the server gave no answer to this connection or to others.
            psycopg.OperationalError: code of an application has closed the socket. Another connection may have its
                number now, and must receive its answers itself.
        """
        if self.fault is not None:
            raise NoAnswer(self.fault)
        if self.inode:
            try:
                is_own = os.fstat(self.descriptor).st_ino == self.inode
            except OSError:
                is_own = False
            if not is_own:
                raise psycopg.OperationalError("the connection is lost: its socket was closed")

    def cancel_request(self) -> Callable[[float], None]:
        """Return a function that cancels the statement; its argument is the maximum wait in seconds."""
        send, look = self._cancel_sender(), partial(_awaited_lock, self.host, dict(self._parameters), self.process)

        def cancel(seconds: float) -> None:
            end = monotonic() + seconds
            with suppress(psycopg.Error):  # a server that gives no answer gets the request all the same
                self.awaits = look(seconds * LOOK_SHARE)
            send(max(0.0, end - monotonic()))

        return cancel

    def _cancel_sender(self) -> Callable[[float], None]:
        if psycopg.capabilities.has_cancel_safe():
            return partial(_send_cancel, self.pgconn.cancel_conn())
        request = self.pgconn.get_cancel()
        return lambda _: request.cancel()

    def question(self) -> Callable[[], str | None]:
        """Return a function that asks the server about the statement, and returns a fault or None."""
        return partial(_ask, self.host, dict(self._parameters), self._seconds, self.process)


def _send_cancel(request: Any, seconds: float) -> None:
    end = monotonic() + seconds
    request.start()
    try:
        while (status := request.poll()) in (PollingStatus.READING, PollingStatus.WRITING):
            ready = readiness if status == PollingStatus.READING else write_readiness
            if not ready(request.socket)(max(0.0, end - monotonic())):
                return
    finally:
        request.finish()


NO_LOCK = "it waited for no lock"

LOOK_SHARE = 0.6
"""Share of the time for a cancel request in which the lock that the statement waits for is looked up."""


def _awaited_lock(host: ServerHost, parameters: dict[str, Any], process: int, seconds: float) -> str | None:
    """Look up, over another connection, the lock that a process waits for; None if that is not known."""
    from runner.db.row_locks import BY_ADDRESS, KEY, WAITS_OF, first_wait  # not needed unless a statement hangs
    from runner.text.stuck_row import lock_text

    with attempt(host, seconds):
        connection = ServerConnection.connect(**parameters, autocommit=True)
    connection.follow(host, AnswerLimits(seconds, seconds, seconds), parameters)
    try:
        with connection.transaction():  # a pooler may share the session
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(seconds * 1000)}ms",))
            if not (rows := connection.execute(WAITS_OF, (process,)).fetchall()):
                row = connection.execute(UNBLOCKED, (process,)).fetchone()  # none behind a pooler
                return NO_LOCK if row is not None and row[0] else None
            table, address, *_ = rows[0]
            key = ""
            with suppress(psycopg.Error), connection.transaction():
                columns = connection.execute(KEY, (table,)).fetchone() if address else None
                if columns and columns[0]:
                    text = BY_ADDRESS.format(columns=columns[0], table=table, address="%s")
                    row = connection.execute(text, (address,)).fetchone()
                    key = str(row[0]) if row else ""
            lock = first_wait(rows, key)
            return None if lock is None else lock_text(lock)
    finally:
        connection.close()


UNBLOCKED = "SELECT pg_blocking_pids(pid) = '{}' FROM pg_stat_activity WHERE pid = %s AND usename = current_user"
"""Whether a process waits for no lock of any kind; WAITS_OF has those of tables and rows."""

STATE = "SELECT state FROM pg_stat_activity WHERE pid = %s AND usename = current_user"


def _ask(host: ServerHost, parameters: dict[str, Any], seconds: float, process: int) -> str | None:
    """Ask a server, over another connection, whether it still executes the statement of a process."""
    started = monotonic()
    try:
        with attempt(host, seconds):
            connection = ServerConnection.connect(**parameters, autocommit=True)
    except NoAnswer as error:
        WATCH.suspect(host)
        WATCH.drop_all(host, started, str(error))
        return str(error)
    except psycopg.Error:  # too many connections, for example: it answers
        return None
    connection.follow(host, AnswerLimits(seconds, seconds, seconds), parameters)
    try:
        row = connection.execute(STATE, (process,)).fetchone()
    except NoAnswer as error:
        return str(error)
    finally:
        connection.close()
    # Without a row, a pooler is in between, or the login has changed. With track_activities=off the state is unknown.
    idle = row is not None and str(row[0]).startswith("idle")
    return "the server waits for the next statement" if idle else None


QUERY = "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')"


def _refusal(host: ServerHost, row: Any) -> str | None:
    """Return why a server refuses changes, from its answer to QUERY."""
    return STANDBY.format(host) if row[0] else CLOSED.format(host) if row[1] == "on" else None


class ServerConnection(WatchedConnection, psycopg.Connection[Any]):
    """A blocking connection."""

    connect: Any = classmethod(_connect)

    @staticmethod
    def look_up(hosts: list[ServerHost], seconds: float) -> tuple[list[ServerHost], list[str]]:
        """Look up the addresses of hosts; see `runner.db.server_hosts.looked_up`."""
        lookups = look_up(hosts)
        wait([future for _, future in lookups if future is not None], seconds)
        return looked_up(lookups, seconds)

    @staticmethod
    def renew_password(command: PasswordCommand, failed: str) -> str | None:
        """Return a password to try instead of one that failed; see `PasswordCommand.renew`."""
        return command.renew(failed)

    @classmethod
    def open(cls, host: ServerHost, parameters: Mapping[str, Any], limits: AnswerLimits) -> Self:
        """Connect to one host."""
        with attempt(host, limits.connect):
            connection: Self = cls.connect(**parameters)
            return connection.follow(host, limits, parameters)

    def refusal(self, *, ask: bool) -> str | None:
        """Return why the server refuses changes, or None; a server that does not report it is asked if allowed."""
        if self.pgconn.parameter_status(REPORTED) is not None or not ask:
            return self.read_only_fact()
        fact = _refusal(self.host, self.execute(QUERY).fetchone())
        self.rollback()
        return fact

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for the answer to a statement. `start` and `end` are inline: calls would cost a single submit 1 %."""
        self.limit = ANSWER_LIMIT.get(self.own_limit)
        self.since = monotonic()
        if WATCH.parked:
            WATCH.wake()
        try:
            result = _wait(self, gen, *arguments, **options)
        except psycopg.Error as error:
            self.raise_fault(error)
        except BaseException:
            self.unanswered, self.since = self.since, 0.0
            raise
        self.answered, self.since = self.since, 0.0
        if self.cancelled:
            self.raise_late()
        return result

    def rollback(self) -> None:
        """Roll back. A connection that is closed has done so: another error would hide the first one."""
        if not self.closed:
            super().rollback()

    def _try_cancel(self, *, timeout: float = CANCEL_SECONDS) -> None:
        _in_thread(self._cancel_sender(), min(timeout, CANCEL_SECONDS)).join(min(timeout, CANCEL_SECONDS))


class AsyncServerCursor(psycopg.AsyncCursor[Any]):
    """A cursor whose statements can travel together with those of others; see RoundTrips."""

    async def execute(self, *statement: Any, **options: Any) -> Self:
        """Execute a statement."""
        send = partial(super().execute, *statement, **options)
        round_trips = getattr(self.connection, "round_trips", None)
        await (send() if round_trips is None else round_trips.execute(send, self))
        return self


class AsyncServerConnection(WatchedConnection, psycopg.AsyncConnection[Any]):
    """A connection for event loops."""

    connect: Any = classmethod(_connect_async)

    round_trips: RoundTrips | None = None
    """The statements of its reading transaction; None without one."""

    statements: LoopStatements | None = None
    """Executes single statements; None if the session prepares none."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = AsyncServerCursor

    @staticmethod
    async def look_up(hosts: list[ServerHost], seconds: float) -> tuple[list[ServerHost], list[str]]:
        """The form of ServerConnection.look_up for event loops."""
        lookups = look_up(hosts)
        if futures := [asyncio.wrap_future(future) for _, future in lookups if future is not None]:
            done, late = await asyncio.wait(futures, timeout=seconds)
            for each in late:
                each.cancel()
            for each in done:
                each.exception()  # else asyncio logs it; `looked_up` reads it from the thread's future
        return looked_up(lookups, seconds)

    @staticmethod
    async def renew_password(command: PasswordCommand, failed: str) -> str | None:
        """The form of ServerConnection.renew_password for event loops."""
        return await asyncio.to_thread(command.renew, failed)

    @classmethod
    async def open(cls, host: ServerHost, parameters: Mapping[str, Any], limits: AnswerLimits) -> Self:
        """Connect to one host."""
        with attempt(host, limits.connect):
            connection: Self = await cls.connect(**parameters)
            return connection.follow(host, limits, parameters)

    async def refusal(self, *, ask: bool) -> str | None:
        """The form of ServerConnection.refusal for event loops."""
        if self.pgconn.parameter_status(REPORTED) is not None or not ask:
            return self.read_only_fact()
        fact = _refusal(self.host, await (await self.execute(QUERY)).fetchone())
        await self.rollback()
        return fact

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """The form of ServerConnection.wait for event loops."""
        self.stop_reading()  # the driver watches the socket itself
        self.check_fault()
        self.limit = ANSWER_LIMIT.get(self.own_limit)
        self.since = monotonic()
        if WATCH.parked:
            WATCH.wake()
        try:
            result = await _wait_async(self, gen, *arguments, **options)
        except psycopg.Error as error:
            self.raise_fault(error)
        except BaseException:
            self.unanswered, self.since = self.since, 0.0
            raise
        self.answered, self.since = self.since, 0.0
        if self.cancelled:
            self.raise_late()
        return result

    async def close(self) -> None:
        """Close the connection, and cancel the statements of a round trip whose steps were cancelled."""
        if self.round_trips is not None and self.round_trips.is_sending and not self.closed:
            await self._try_cancel()
        self.stop_reading()
        await super().close()

    def stop_reading(self) -> None:
        """Stop watching the socket for single statements."""
        if self.statements is not None:
            self.statements.stop_reading()

    async def cancel_statement(self) -> None:
        """Ask the server to cancel the statement of a caller that was cancelled."""
        if not self.closed:
            await self._try_cancel()

    async def rollback(self) -> None:
        """The form of ServerConnection.rollback for event loops."""
        if not self.closed:
            await super().rollback()

    async def _try_cancel(self, *, timeout: float = CANCEL_SECONDS) -> None:
        _in_thread(self._cancel_sender(), min(timeout, CANCEL_SECONDS))


def _in_thread(function: Callable[..., object], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=_silently, args=(function, *arguments), name="runner-server-call", daemon=True)
    thread.start()
    return thread


def _silently(function: Callable[..., object], *arguments: Any) -> None:
    with suppress(Exception):
        function(*arguments)
