"""A TCP proxy in front of PostgreSQL that swallows answers: the server has committed, and the client does not learn.

It can announce connections as poolers do, which the client then takes for one.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy as sa

from tests.postgres.relay import relaying

READY = b"Z\x00\x00\x00\x05"
"""The start of ReadyForQuery, the last message of an answer; a byte for the state follows."""

KEY = b"K\x00\x00\x00\x0c"
"""The start of BackendKeyData; the number of the process follows in four bytes."""

PREPARED = re.compile(rb"(?:_pg3|runner)_\d+")
"""Names of the prepared statements of the driver, and of `LoopStatements`."""

BLOCK = 65_536


class Proxy:
    """Forwards connections to one server.

    Args:
        target: URL of the database behind it.
        pools: announce processes of its own, as poolers do.
    """

    def __init__(self, target: str, pools: bool = False) -> None:
        self._pools = pools
        self._target = sa.make_url(target)
        self._sign = b""
        self._times = 0
        self.lost = 0
        """Answers that it has swallowed."""
        self.url = ""
        """URL of the database through the proxy."""

    def lose(self, sign: str, times: int = 1) -> None:
        """Swallow the answers to the next statements that contain a text, and cut their connections."""
        self._sign, self._times = sign.encode(), times

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Proxy"]:
        """Listen during the block."""
        async with relaying(self._connect) as port:
            self.url = self._target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
            yield self

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind = await asyncio.open_connection(self._target.host, self._target.port)
        except BaseException:
            writer.close()
            raise
        connection = _Connection(reader, writer, *behind)
        pumps = [asyncio.ensure_future(self._forward(connection)), asyncio.ensure_future(self._answer(connection))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, behind[1]):  # before the waits, which the end of the proxy interrupts
                end.close()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, behind[1]):
                with contextlib.suppress(OSError, TimeoutError):
                    await asyncio.wait_for(end.wait_closed(), 1)

    async def _forward(self, connection: "_Connection") -> None:
        while data := await connection.client.read(BLOCK):
            if self._times and self._sign in connection.statement(data):
                self._times -= 1
                connection.swallows = True
            connection.to_server.write(data)
            await connection.to_server.drain()

    async def _answer(self, connection: "_Connection") -> None:
        swallowed = b""
        while data := await connection.server.read(BLOCK):
            if self._pools and (key := data.find(KEY)) >= 0:
                process = key + len(KEY)
                data = data[:process] + bytes(4) + data[process + 4 :]
            if connection.swallows:
                swallowed += data
                if swallowed[-len(READY) - 1 : -1] == READY:
                    self.lost += 1
                    return
            else:
                connection.to_client.write(data)
                await connection.to_client.drain()


class _Connection:
    """A connection of a client, and the one behind it."""

    def __init__(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self.client, self.to_client, self.server, self.to_server = client, to_client, server, to_server
        self.swallows = False
        self._prepared: dict[bytes, bytes] = {}

    def statement(self, data: bytes) -> bytes:
        """Return the text of the statement that a message executes."""
        name = PREPARED.search(data)
        if name is None:
            return data
        if data.startswith(b"P"):
            self._prepared[name[0]] = data
            return b""
        return self._prepared.get(name[0], data)  # Savepoints have such names too.
