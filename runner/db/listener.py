"""Listener: a connection of its own that receives and sends the notifications of PostgreSQL."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from runner.db.connect import POSTGRESQL_OPTIONS
from runner.db.database import Database
from runner.db.dialects.postgresql import quoted
from runner.event_wait import within
from runner.text.formatting import age

if TYPE_CHECKING:
    from runner.db.server_connection import AsyncServerConnection  # imports psycopg, which is optional

RECONNECT_DELAY = 1.0
"""Seconds until the next attempt after LISTEN failed."""

SEND = "SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS notice(channel, payload)"

MOST_UNSENT = 10_000
"""Notifications that wait to be sent; further ones are dropped. Polling replaces them."""


class Listener:
    """Calls functions with the notifications of channels, and sends some.

    LISTEN needs a connection of its own: it is session state. Behind a pooler that shares sessions no notifications
    arrive, and polling has to find the changes.

    Args:
        channels: a function for each channel, called in the event loop with each payload.
        on_connect: called in the event loop after each LISTEN: changes before it were not notified.
        every: seconds without a notification after which the server is asked for an answer.
        log: receives one line per outage.
    """

    def __init__(
        self,
        database: Database,
        channels: Mapping[str, Callable[[str], object]],
        on_connect: Callable[[], object],
        every: float,
        log: logging.Logger,
    ) -> None:
        self._database, self._channels, self._on_connect = database, channels, on_connect
        self._every, self._log = every, log
        self._unsent: list[tuple[str, str]] = []
        self._event = asyncio.Event()
        self._heard_at = 0.0
        self._fault: BaseException | None = None
        """The error of the connection, or of a function that a notification called."""
        self.connected = False
        """True while notifications arrive, unless a pooler keeps them."""

    def send(self, channel: str, payload: str) -> None:
        """Send a notification soon. It is lost if the connection breaks. Call it on the event loop."""
        if self.connected and len(self._unsent) < MOST_UNSENT:
            self._unsent.append((channel, payload))
            self._event.set()

    async def run(self) -> None:
        """Receive and send until cancelled, and reconnect after errors."""
        import psycopg

        failed_at: float | None = None
        while True:
            try:
                connection = await _connect(self._database)
                async with connection:
                    for channel in self._channels:
                        await connection.execute(f"LISTEN {quoted(channel)}")
                    if failed_at is not None:
                        self._log.info("LISTEN works again after %s", age(time.monotonic() - failed_at))
                    failed_at, self.connected = None, True
                    self._on_connect()
                    await self._exchange(connection)
            except (psycopg.Error, OSError) as error:
                level = logging.INFO if failed_at is None else logging.DEBUG  # once per outage
                self._log.log(level, "LISTEN failed, polling instead: %s", " ".join(str(error).split()))
                failed_at = failed_at or time.monotonic()
            finally:
                self.connected = False
                self._unsent.clear()
            await asyncio.sleep(RECONNECT_DELAY)

    async def _exchange(self, connection: "AsyncServerConnection") -> None:
        """Receive and send. Ask a server that is silent for some time: a lost connection is silent too."""
        # Those that arrive with the answer to a statement.
        connection.add_notify_handler(lambda notice: self._deliver(notice.channel, notice.payload))
        while True:
            silent = not await self._wait(connection)
            connection.check_fault()
            if unsent := self._unsent:
                self._unsent = []
                await connection.execute(SEND, [[*part] for part in zip(*unsent, strict=True)])
            elif silent:
                await connection.execute("SELECT 1")

    async def _wait(self, connection: "AsyncServerConnection") -> bool:
        """Receive until there is something to send; False if the socket is silent for some time.

        psycopg's own `notifies` wakes up ten times a second.

        Raises:
            psycopg.OperationalError: the connection is broken.
        """
        loop, event = asyncio.get_running_loop(), self._event
        socket = connection.pgconn.socket  # not available once the connection is broken
        self._heard_at, self._fault = time.monotonic(), None
        loop.add_reader(socket, self._read, connection)
        try:
            while not self._unsent:
                if not await within(event, self._heard_at + self._every - time.monotonic()):
                    if time.monotonic() >= self._heard_at + self._every:
                        return False
                    continue
                event.clear()
                if self._fault is not None:
                    raise self._fault
        finally:
            loop.remove_reader(socket)
        return True

    def _read(self, connection: "AsyncServerConnection") -> None:
        """Deliver the notifications that have arrived, without a turn of the event loop for `_wait`."""
        server = connection.pgconn
        try:
            connection.check_fault()
            server.consume_input()
            self._heard_at = time.monotonic()
            notices = dict[tuple[bytes, bytes], None]()  # a burst of submits is one notice
            while notice := server.notifies():
                notices[notice.relname, notice.extra] = None
            for name, payload in notices:
                self._deliver(name.decode(errors="replace"), payload.decode(errors="replace"))
        except BaseException as error:
            self._fault = error
            self._event.set()

    def _deliver(self, channel: str, payload: str) -> None:
        if (receive := self._channels.get(channel)) is not None:
            receive(payload)


async def _connect(database: Database) -> "AsyncServerConnection":
    engine = database.engine
    _, parameters = engine.dialect.create_connect_args(engine.url)
    parameters.pop("context", None)
    options: dict[str, object] = POSTGRESQL_OPTIONS | dict(parameters) | {"autocommit": True}
    return await database.connector.connect_async(options)
