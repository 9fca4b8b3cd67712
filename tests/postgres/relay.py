"""Connections to a local port, each served by a coroutine until the end of a block."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def relaying(serve: Serve) -> AsyncIterator[int]:
    """Listen during the block, and yield the port."""
    connections = set[asyncio.Future[None]]()

    def forget(connection: asyncio.Future[None]) -> None:
        connections.discard(connection)
        if not connection.cancelled():
            connection.exception()  # the client sees a closed connection

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(serve(reader, writer))
        connections.add(connection)
        connection.add_done_callback(forget)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
