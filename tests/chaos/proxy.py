"""Proxy: a TCP proxy in front of PostgreSQL that cuts connections and swallows answers at random byte offsets."""

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from typing import Literal, Self
from urllib.parse import urlsplit

Kind = Literal["close", "reset", "swallow"]
KINDS: tuple[Kind, ...] = ("close", "reset", "swallow")

BYTES = (1, 60_000)
"""The range of offsets after which a fault happens; small offsets are as likely as large ones."""

SWALLOW_SECONDS = (0.2, 4.0)
"""Seconds for which the answers of the server are swallowed before the connection is reset."""

BUFFER = 65_536
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with time 0: a close then resets the connection."""

Report = Callable[[str], None]


class Connection:
    """One connection through the proxy.

    Args:
        client: the stream to the program.
        server: the stream to the database.
        on_fault: called with the name of each fault.
    """

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, on_fault: Report) -> None:
        self.client, self.server = client, server
        self._on_fault = on_fault
        self._kind: Kind | None = None
        self._from_server = False
        self._remaining = 0
        self._seconds = 0.0
        self._swallowing = False
        self.held = False
        """True while the connection is half-open: bytes of both sides are swallowed, and nothing is reset."""

    def arm(self, kind: Kind, remaining: int, *, from_server: bool, seconds: float) -> None:
        """Let a fault happen after a number of bytes.

        Args:
            kind: close, reset, or swallow the answers and then reset.
            remaining: bytes to forward before.
            from_server: count the bytes of the server; answers are always counted for `swallow`.
            seconds: how long answers are swallowed.
        """
        if not self._swallowing:
            self._kind, self._remaining, self._seconds = kind, remaining, seconds
            self._from_server = from_server or kind == "swallow"

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_server: bool) -> None:
        """Forward one direction until it ends or a fault happens."""
        try:
            while data := await reader.read(BUFFER):
                if self._kind is not None and from_server is self._from_server:
                    if len(data) >= self._remaining:
                        writer.write(data[: self._remaining])
                        self._happen(self._kind)
                        continue
                    self._remaining -= len(data)
                if not (from_server and self._swallowing) and not self.held:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            self.end(reset=False)

    def _happen(self, kind: Kind) -> None:
        self._kind = None
        self._on_fault(f"answers {kind}" if self._from_server else f"requests {kind}")
        if kind == "swallow":
            self._swallowing = True
            asyncio.get_running_loop().call_later(self._seconds, self._end_swallowing)
        else:
            self.end(reset=kind == "reset")

    def _end_swallowing(self) -> None:
        self._on_fault("reset after swallowed answers")
        self.end(reset=True)

    def end(self, *, reset: bool) -> None:
        """End both sides."""
        for writer in (self.client, self.server):
            if reset and not writer.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    """Forwards connections to a database; runs in a thread of its own.

    Args:
        url: URL of the database.
        seed: decides about kinds and offsets.
        swallow_seconds: the range of times for which answers are swallowed.
    """

    def __init__(self, url: str, seed: int, swallow_seconds: tuple[float, float] = SWALLOW_SECONDS) -> None:
        self._parts = urlsplit(url)
        self._draw = random.Random(seed)
        self._swallow_seconds = swallow_seconds
        self.on_fault: Report = lambda _: None
        """Called with the name of each fault when it happens, in the thread of the proxy."""
        self._connections: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._hold_until = 0.0
        self.faults: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """URL of the database through the proxy."""
        assert self._server is not None
        login = self._parts.netloc.rpartition(":")[0]
        return self._parts._replace(netloc=f"{login}:{self._server.sockets[0].getsockname()[1]}").geturl()

    def cut_all(self) -> None:
        """Reset every connection now."""
        self._loop.call_soon_threadsafe(lambda: self._arm(1.0, "reset", immediately=True))

    def swallow_all(self) -> None:
        """Swallow the answers on every connection from now on, and reset them later."""
        self._loop.call_soon_threadsafe(lambda: self._arm(1.0, "swallow", immediately=True))

    def hold_all(self, seconds: float = 0.0) -> None:
        """Swallow the bytes of both sides of every connection from now on, and reset none: they are half-open.

        Args:
            seconds: time for which new connections are half-open, too.
        """
        self._call(lambda: self._hold(seconds))

    def _hold(self, seconds: float) -> None:
        self._hold_until = self._loop.time() + seconds
        for connection in self._connections:
            connection.held = True
            self._count("half-open")

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function in the thread of the proxy and wait for it."""

        async def call() -> None:
            function()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def arm_some(self) -> None:
        """Let a random fault happen on half of the connections, each after its own number of bytes."""
        self._loop.call_soon_threadsafe(lambda: self._arm(0.5))

    def _arm(self, share: float, kind: Kind | None = None, *, immediately: bool = False) -> None:
        for connection in list(self._connections):
            if self._draw.random() < share:
                remaining = 0 if immediately else int(BYTES[0] * (BYTES[1] / BYTES[0]) ** self._draw.random())
                fault = kind if kind is not None else self._draw.choice(KINDS)
                connection.arm(
                    fault,
                    remaining,
                    from_server=self._draw.random() < 0.5,
                    seconds=self._draw.uniform(*self._swallow_seconds),
                )
                if immediately and kind == "reset":
                    self._count("reset of all connections")
                    connection.end(reset=True)

    def _count(self, fault: str) -> None:
        self.faults[fault] += 1
        self.on_fault(fault)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        except OSError:
            writer.close()
            return
        connection = Connection(writer, server, self._count)
        connection.held = self._loop.time() < self._hold_until
        self._connections.add(connection)
        try:
            await asyncio.gather(
                connection.forward(reader, server, from_server=False),
                connection.forward(answers, writer, from_server=True),
            )
        finally:
            self._connections.discard(connection)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.end(reset=False)
        while self._connections:
            await asyncio.sleep(0.01)
