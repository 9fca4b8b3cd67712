"""Connector: connects to the one of several servers that accepts changes."""

import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from runner.db.follow import follow, follow_async
from runner.db.server_hosts import ServerHost, host_list
from runner.db.server_watch import WATCH, AnswerLimits
from runner.settings.password_command import COMMANDS

if TYPE_CHECKING:
    from runner.db.server_connection import AsyncServerConnection, ServerConnection

TARGET, PREFER_STANDBY = "target_session_attrs", "prefer-standby"

READER_SECONDS = 10.0
"""Seconds for which a program reads from a standby before it tries the other hosts again."""

Call = Callable[[], Any]
"""One step of a connection: returns its result, or an awaitable for event loops."""


def _call(step: Call) -> Any:
    return step()


class Connector(NamedTuple):
    """Connects to one of the servers of a URL.

    Args:
        strict: True to accept only a server that accepts changes, False to prefer it.
        application: name of the connections on the server; empty for the one in the parameters.
    """

    limits: AnswerLimits = AnswerLimits()
    strict: bool = False
    application: str = ""

    def prepare(self, engine: sa.Engine) -> None:
        """Let an engine for PostgreSQL connect in this way."""

        def connect(dialect: sa.Dialect, _: Any, __: list[Any], parameters: dict[str, Any]) -> Any:
            if not dialect.is_async:
                return self.connect(parameters)
            # SQLAlchemy 2.0 passes one dict to each connection, 2.1 a copy.
            own = {name: value for name, value in parameters.items() if name != "async_creator_fn"}
            parameters["async_creator_fn"] = lambda *_, **__: self.connect_async(own)
            return None

        sa.event.listen(engine, "do_connect", connect)
        sa.event.listen(engine, "checkout", _check_out)
        sa.event.listen(engine, "checkin", _check_in)

    def connect(self, parameters: Mapping[str, Any]) -> "ServerConnection":
        """Connect and block.

        Args:
            parameters: of psycopg; hosts, addresses and ports are lists with commas.

        Raises:
            psycopg.OperationalError: no server accepted the connection.
        """
        from runner.db.server_connection import ServerConnection

        connection: ServerConnection = follow(self._steps(ServerConnection, parameters), _call)
        return connection

    async def connect_async(self, parameters: Mapping[str, Any]) -> "AsyncServerConnection":
        """The form of `connect` for event loops."""
        from runner.db.server_connection import AsyncServerConnection

        steps = self._steps(AsyncServerConnection, parameters)
        connection: AsyncServerConnection = await follow_async(steps, _call)
        return connection

    def _steps(self, kind: Any, parameters: Mapping[str, Any]) -> Generator[Call, Any, Any]:
        """Connect with the password of the parameters, or the last one of its command. Yield calls, receive results."""
        import psycopg

        if self.application:
            parameters = {**parameters, "application_name": self.application}
        command = COMMANDS.get(str(parameters.get("password")))
        if command is None:
            return (yield from self._try_hosts(kind, parameters))
        password = command.password
        try:
            return (yield from self._try_hosts(kind, {**parameters, "password": password}))
        except psycopg.OperationalError:
            renewed = yield partial(kind.renew_password, command, password)
            if renewed is None:
                raise
        return (yield from self._try_hosts(kind, {**parameters, "password": renewed}))

    def _try_hosts(self, kind: Any, parameters: Mapping[str, Any]) -> Generator[Call, Any, Any]:
        """Try the hosts in turn."""
        import psycopg

        limits = self._limits(parameters)
        hosts, failures = yield partial(kind.look_up, host_list(parameters), limits.connect)
        explicit, reader, last = parameters.get(TARGET), None, None
        for target in ("standby", "any") if explicit == PREFER_STANDBY else (explicit,):
            for host in sorted(hosts, key=WATCH.is_suspect):
                started = time.monotonic()
                own = dict(parameters) | host.parameters | ({TARGET: target} if target else {})
                try:
                    connection = yield partial(kind.open, host, own, limits)
                    refusal = None if explicit else (yield partial(connection.refusal, ask=len(hosts) > 1))
                except psycopg.Error as error:
                    if isinstance(error, kind.silence):
                        WATCH.suspect(host)
                        WATCH.drop_all(host, started, str(error))
                    failures.append(str(error))
                    last = error
                    continue
                if refusal is None:
                    self._forget_silent(hosts, host)
                    if reader is not None:
                        yield reader.close
                    return connection
                failures.append(refusal)
                if self.strict or reader is not None:
                    yield connection.close
                else:
                    reader = connection
        if reader is not None:
            reader.expires = time.monotonic() + READER_SECONDS if len(hosts) > 1 else reader.expires
            return reader
        raise kind.failure(failures, last)

    def _limits(self, parameters: Mapping[str, Any]) -> AnswerLimits:
        """The limits, with connect_timeout of the URL: a runner keeps to the shorter one."""
        own = str(parameters.get("connect_timeout", ""))
        if not own.isdecimal() or int(own) == 0:
            return self.limits
        return self.limits._replace(connect=min(self.limits.connect, int(own)) if self.strict else float(own))

    @staticmethod
    def _forget_silent(hosts: list[ServerHost], writer: ServerHost) -> None:
        """Drop the connections to the other hosts that gave no answer: another one accepts changes now."""
        WATCH.trust(writer)
        for host in hosts:
            if host != writer and WATCH.is_suspect(host):
                WATCH.drop_all(host, float("inf"), f"no answer from {host}; {writer} accepts changes")


def _check_out(connection: Any, _: Any, __: Any) -> None:
    """Replace a connection that was dropped, with all others of the pool, and one whose time is over."""
    driver = getattr(connection, "driver_connection", connection)
    if driver.fault is not None or driver.closed:
        raise sa.exc.InvalidatePoolError
    if driver.expires < time.monotonic():
        raise sa.exc.DisconnectionError


def _check_in(connection: Any, record: Any) -> None:
    """Keep no connection that was dropped."""
    if connection is not None and getattr(connection, "driver_connection", connection).closed:
        record.invalidate()


DEFAULT_CONNECTOR = Connector()
"""That of programs that are no runner."""
