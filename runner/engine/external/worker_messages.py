"""Worker messages: a socket of the runner for the workers of an executor whose API has no way for messages.

Only workers on the host of the runner can connect. Each end proves that it knows a key, which travels with the calls.
"""

import contextlib
import functools
import logging
import secrets
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener

from runner.engine.external.call_site import call_site
from runner.engine.external.executor import Receive

log = logging.getLogger("runner")

NUMBER = 8
"""The bytes of the number of a call, which precede each message."""


class WorkerMessages:
    """The runner's end of the socket.

    Args:
        on_lost: receives the numbers of the open calls of a worker that has ended.
    """

    def __init__(self, on_lost: Callable[[set[int]], object]) -> None:
        self.key = secrets.token_bytes(32)
        self._on_lost = on_lost
        self._receivers: dict[int, Receive] = {}
        self._connections: dict[int, Connection] = {}
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        """The path of the socket."""
        return str(self._listener.address) if self._listener is not None else ""

    def listen(self) -> None:
        """Accept connections, in a thread."""
        self._listener = Listener(family="AF_UNIX", authkey=self.key)
        threading.Thread(target=self._accept, args=(self._listener,), name="runner-workers", daemon=True).start()

    def expect(self, number: int, receive: Receive) -> None:
        """Receive the messages of a call from now on."""
        self._receivers[number] = receive

    def forget(self, number: int) -> bool:
        """Forget a call; False if it is not known."""
        self._connections.pop(number, None)
        return self._receivers.pop(number, None) is not None

    def send(self, number: int, data: bytes) -> None:
        """Send a message to the worker of a call; do nothing if it is not connected."""
        if (connection := self._connections.get(number)) is not None:
            with contextlib.suppress(OSError):
                connection.send_bytes(number.to_bytes(NUMBER, "big") + data)

    def close(self) -> None:
        """Accept no more connections."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                Client(listener.address, authkey=self.key).close()  # wakes the thread that accepts
            listener.close()

    def _accept(self, listener: Listener) -> None:
        while listener is self._listener:
            try:
                connection = listener.accept()
            except Exception as error:  # the other end does not know the key, or has ended
                if listener is self._listener:
                    log.warning("a worker could not connect: %s", error)
                continue
            threading.Thread(target=self._read, args=(connection,), name="runner-worker", daemon=True).start()

    def _read(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError), connection:
            while True:
                data = connection.recv_bytes()
                number = int.from_bytes(data[:NUMBER], "big")
                if (receive := self._receivers.get(number)) is not None:
                    self._connections[number] = connection
                    receive(data[NUMBER:])
        if lost := {number for number, other in list(self._connections.items()) if other is connection}:
            self._on_lost(lost)


class RunnerUnreachable(ConnectionError):
    """A worker has no connection to its runner."""


class RunnerConnection:
    """The worker's end of the socket, for all calls of one runner."""

    def __init__(self, address: str, key: bytes) -> None:
        self._address, self._sending = address, threading.Lock()
        self._connection: Connection | None = None
        self._error = ""
        try:
            self._connection = Client(address, authkey=key)
        except Exception as error:  # a worker on another host, for example
            self._error = f"{type(error).__name__}: {error}"
        else:
            threading.Thread(target=self._read, args=(self._connection,), name="runner-replies", daemon=True).start()

    def send(self, number: int, data: bytes) -> None:
        """Send a message of a call.

        Raises:
            RunnerUnreachable: this worker is not connected.
        """
        if self._connection is None:
            raise RunnerUnreachable(f"{self._error}: this worker cannot reach its runner at {self._address}")
        with self._sending:
            self._connection.send_bytes(number.to_bytes(NUMBER, "big") + data)

    def _read(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                data = connection.recv_bytes()
                call_site().deliver(int.from_bytes(data[:NUMBER], "big"), data[NUMBER:])


@functools.cache
def connection_to(address: str, key: bytes) -> RunnerConnection:
    """Return the connection of this process to a runner."""
    return RunnerConnection(address, key)


def run_call(number: int, data: bytes, address: str, key: bytes) -> bytes:
    """Execute a call in this worker, and return its end as a message."""
    connection = connection_to(address, key)
    return call_site().run(data, lambda message: connection.send(number, message))
