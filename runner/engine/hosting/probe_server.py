"""ProbeServer: answers the HTTP requests of probes and scrapers in a thread of its own."""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from runner.settings.types import split_address

log = logging.getLogger("runner.probes")

MOST_BYTES = 8_192
"""Longest request in bytes."""

MOST_EXCHANGES = 32
"""Maximum number of open connections; a further one closes the oldest."""

LONGEST_EXCHANGE = 5.0
"""Seconds after which a connection is closed: its client is slow, or sends nothing."""

ACCEPT_PAUSE = 0.1
"""Seconds before the next connection after one that the system refused, e.g. for lack of descriptors."""

JOIN_TIMEOUT = 2.0
"""Maximum wait in seconds for the end of the thread."""

PLAIN = "text/plain; charset=utf-8"


class Reply(NamedTuple):
    """The reply to a request: a status code, a text, and its content type."""

    status: int
    body: bytes
    kind: str = PLAIN

    @classmethod
    def of(cls, problem: str) -> "Reply":
        """503 with a problem, or 200 without one."""
        return cls(HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK, f"{problem or 'ok'}\n".encode())


Answer: TypeAlias = Callable[[], Reply]
"""Answers the requests of a path."""


class _Exchange:
    """One connection: its request so far, then the rest of its reply."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.ends_at = time.monotonic() + LONGEST_EXCHANGE
        self.request = b""
        self.reply = memoryview(b"")


class ProbeServer:
    """Serves a few paths over HTTP/1.1, one request per connection.

    One thread reads and writes all connections without blocking, so that a slow client delays no other one.

    Args:
        address: HOST:PORT to listen on, port 0 for a free one; None to listen on nothing.
        answers: by path.
        tick: called every `interval` seconds in the thread.
        interval: seconds; None for no ticks.

    Raises:
        OSError: the address is not valid on this machine, or in use.
    """

    def __init__(
        self,
        address: str | None,
        answers: Mapping[str, Answer],
        tick: Callable[[], None] = lambda: None,
        interval: float | None = None,
    ) -> None:
        self._answers, self._tick, self._interval = answers, tick, interval
        self._exchanges: dict[socket.socket, _Exchange] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(address) if address is not None else None
        self._woken, self._waker = socket.socketpair()
        for each in (self._listener, self._woken):
            if each is not None:
                self._selector.register(each, selectors.EVENT_READ)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="runner-probes", daemon=True)

    @property
    def url(self) -> str:
        """The address in use; empty without one."""
        if self._listener is None:
            return ""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        if self.url:
            log.info("listening on %s: %s", self.url, ", ".join(self._answers))

    def stop(self) -> None:
        """Stop the thread, and close all connections."""
        self._stopping = True
        with contextlib.suppress(OSError):  # the thread has ended, and closed both ends
            self._waker.send(b"\0")
        self._thread.join(JOIN_TIMEOUT)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a handler may have closed descriptors that it did not open
            log.error("no more answers to probes: %r", error)
        finally:
            for each in (*self._exchanges, self._listener, self._woken, self._waker, self._selector):
                if each is not None:
                    with contextlib.suppress(OSError):
                        each.close()

    def _serve(self) -> None:
        ticks_at = time.monotonic()
        while not self._stopping:
            if self._interval is not None and time.monotonic() >= ticks_at:
                ticks_at = time.monotonic() + self._interval
                self._tick()
            for key, _ in self._selector.select(self._pause(ticks_at)):
                if key.fileobj is self._listener:
                    self._accept(self._listener)
                elif (exchange := self._exchanges.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                    with contextlib.suppress(OSError):  # the client has gone away
                        if self._goes_on(exchange):
                            continue
                    self._close(exchange)
            for exchange in [each for each in self._exchanges.values() if each.ends_at <= time.monotonic()]:
                self._close(exchange)

    def _pause(self, ticks_at: float) -> float | None:
        """Seconds until the next tick or the end of a slow exchange; None if there is neither."""
        times = [ticks_at] if self._interval is not None else []
        times += [exchange.ends_at for exchange in self._exchanges.values()]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(ACCEPT_PAUSE)
            return
        connection.setblocking(False)
        if len(self._exchanges) >= MOST_EXCHANGES:
            self._close(next(iter(self._exchanges.values())))
        self._exchanges[connection] = _Exchange(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _close(self, exchange: _Exchange) -> None:
        del self._exchanges[exchange.connection]
        self._selector.unregister(exchange.connection)
        exchange.connection.close()

    def _goes_on(self, exchange: _Exchange) -> bool:
        """Read the request or write the reply; False at its end."""
        if not exchange.reply:
            data = exchange.connection.recv(8 * MOST_BYTES)
            exchange.request += data
            is_complete = b"\r\n\r\n" in exchange.request or b"\n\n" in exchange.request
            if not is_complete and len(exchange.request) < MOST_BYTES:
                return bool(data)
            exchange.reply = memoryview(self._response(exchange.request, is_complete))
            self._selector.modify(exchange.connection, selectors.EVENT_WRITE)
        with contextlib.suppress(BlockingIOError):
            exchange.reply = exchange.reply[exchange.connection.send(exchange.reply) :]
        return bool(exchange.reply)

    def _response(self, request: bytes, is_complete: bool) -> bytes:
        words = request.decode("latin-1").partition("\n")[0].rstrip("\r").split(" ")
        if not is_complete or len(words) != 3 or not words[2].startswith("HTTP/"):  # noqa: PLR2004 - method, path, version
            reply = Reply(HTTPStatus.BAD_REQUEST, b"not an HTTP request\n")
        elif words[0] not in ("GET", "HEAD"):
            reply = Reply(HTTPStatus.METHOD_NOT_ALLOWED, b"use GET\n")
        elif (answer := self._answers.get(words[1].partition("?")[0])) is None:
            paths = ", ".join(self._answers)
            reply = Reply(HTTPStatus.NOT_FOUND, f"unknown path; use one of {paths}\n".encode())
        else:
            reply = _reply(answer)
        status = HTTPStatus(reply.status)
        allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {reply.kind}\r\n"
            f"Content-Length: {len(reply.body)}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if words[0] == "HEAD" else reply.body)


def _reply(answer: Answer) -> Reply:
    try:
        return answer()
    except Exception as error:
        log.exception("could not answer a request")
        return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log\n".encode())


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
