"""A TCP proxy that puts a PostgreSQL server far away, and counts the round trips to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import sqlalchemy as sa

from tests.postgres.relay import relaying

BLOCK = 65_536

END = (b"COMMIT", b"ROLLBACK")
"""Statements for whose answers a reader does not wait."""


class DistantServer:
    """Forwards connections to one server, and delays each direction.

    Args:
        target: URL of the database behind it.
        seconds: delay of each direction: half of a round trip.
    """

    def __init__(self, target: str, seconds: float) -> None:
        self._target = sa.make_url(target)
        self._seconds = seconds
        self.url = ""
        """URL of the database through the proxy."""
        self.round_trips: list[int] = []
        """Round trips of each connection: requests that were sent after the answer to the one before had arrived."""

    def longest(self, before: Sequence[int] = ()) -> int:
        """The most round trips of a connection, since a copy of `round_trips` was made."""
        earlier = [*before, *[0] * (len(self.round_trips) - len(before))]
        return max((now - then for now, then in zip(self.round_trips, earlier, strict=True)), default=0)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["DistantServer"]:
        """Listen during the block."""
        async with relaying(self._connect) as port:
            self.url = self._target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
            yield self

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.round_trips)
        self.round_trips.append(0)
        answers, server = await asyncio.open_connection(self._target.host, self._target.port)
        answered = asyncio.Event()
        answered.set()
        pumps = [
            asyncio.ensure_future(self._delayed(reader, server, partial(self._count, number, answered))),
            asyncio.ensure_future(self._delayed(answers, writer, None, answered)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, server):
                end.close()
            await asyncio.gather(*pumps, return_exceptions=True)

    def _count(self, number: int, answered: asyncio.Event, data: bytes) -> None:
        if answered.is_set() and not any(end in data[:40] for end in END):
            self.round_trips[number] += 1
        answered.clear()

    async def _delayed(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        count: Callable[[bytes], None] | None,
        answered: asyncio.Event | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                at, data = await queue.get()
                await asyncio.sleep(at - loop.time())
                if answered is not None:
                    answered.set()
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        delivery = asyncio.ensure_future(deliver())
        try:
            while data := await reader.read(BLOCK):
                if count is not None:
                    count(data)
                queue.put_nowait((loop.time() + self._seconds, data))
            queue.put_nowait((loop.time() + self._seconds, b""))  # the end
            await delivery
        finally:
            delivery.cancel()
