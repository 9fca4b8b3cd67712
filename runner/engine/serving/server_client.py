"""ServerClient: requests to a server for HTTP executors."""

import http.client
import ipaddress
import json
import os
import socket
import ssl
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from runner.engine.serving.endpoints import ENDPOINTS
from runner.engine.serving.protocol import MOST_BYTES
from runner.errors import InvalidInput, RunnerError
from runner.text.sanitize import one_line

TIMEOUT = 40.0
"""Seconds without an answer of the server; a settle waits up to 30 seconds for its database."""

STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
"""The errors of a connection that its other end has closed."""

FIELDS = {endpoint.name: endpoint.reply.model_fields.keys() for endpoint in ENDPOINTS}
"""The fields of the reply of each endpoint. The reply of a proxy in the place of the server has others."""

TRUST = "SSL_CERT_FILE names a file with the certificates of the authorities to trust"


class ServerRefused(RunnerError):
    """The server {url} refused the request ({status}): {why}."""


class ServerUnreachable(OSError):
    """A server does not answer."""


class StaleConnection(Exception):
    """The server has closed a connection since its last request."""


class ServerClient:
    """One server. Requests in several threads have a connection each, which later requests use again.

    The environment variable SSL_CERT_FILE names a file with the authorities to trust, in the place of the system's.

    Args:
        url: such as https://tasks.example.org:8765.
        token: the secret.

    Raises:
        InvalidInput: the URL is not valid, the token would cross a network in the clear, or the file with the
            authorities cannot be read.
    """

    def __init__(self, url: str, token: str) -> None:
        parts, self.url, self._token = urlsplit(url), url, token
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InvalidInput(why=f"--server {one_line(url)!r} is no address such as https://tasks.example.org:8765")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise InvalidInput(why=f"{one_line(url)} would send the token in the clear: use https://")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = _trusting() if parts.scheme == "https" else None
        self._changing = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: dict[http.client.HTTPConnection, str] = {}
        """The path of each request without a reply yet; empty if it was interrupted."""
        self._is_closed = False

    def post(self, path: str, body: dict[str, Any], timeout: float = TIMEOUT) -> Any:
        """Send a request and return the reply.

        Args:
            timeout: seconds without an answer of the server.

        Raises:
            ServerUnreachable: the server does not answer, or is overloaded, or another program answers in its place.
            ServerRefused: the server refused the request, or would refuse one of its size.
        """
        data = json.dumps(body).encode()
        if len(data) > MOST_BYTES:  # the server would close the connection before it has read the body
            why = f"the body exceeds {MOST_BYTES:,} bytes"
            raise ServerRefused(url=self.url, status=int(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE), why=why)
        try:
            try:
                status, text = self._send(path, data, timeout, again=True)
            except StaleConnection:
                status, text = self._send(path, data, timeout, again=False)
        except ssl.SSLCertVerificationError as error:
            raise ServerUnreachable(f"{self.url}: {error.verify_message}; {TRUST}") from None
        except (OSError, http.client.HTTPException) as error:
            closed = self._tls is None and isinstance(error, http.client.RemoteDisconnected)
            hint = "; a server with a certificate needs https://" if closed else ""
            raise ServerUnreachable(f"no answer from {self.url}: {type(error).__name__}: {error}{hint}") from None
        if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ServerUnreachable(f"{self.url} answered {status}: {_problem(text)}")
        if status != http.HTTPStatus.OK:
            raise ServerRefused(url=self.url, status=status, why=_problem(text))
        return self._reply(path, text)

    def _reply(self, path: str, text: bytes) -> Any:
        try:
            reply = json.loads(text)
        except (ValueError, RecursionError):
            reply = None
        if isinstance(reply, dict) and reply.keys() >= FIELDS[path]:
            return reply
        shown = one_line(text[:200].decode(errors="replace"))
        raise ServerUnreachable(f"{self.url} answered with no reply of the protocol: {shown}")

    def interrupt(self, path: str) -> None:
        """End the requests of a path that wait for their reply; each raises ServerUnreachable."""
        with self._changing:
            for connection in [each for each, busy in self._busy.items() if busy == path]:
                self._busy[connection] = ""
                if connection.sock is not None:
                    with suppress(OSError):  # not the method of an SSLSocket, which another thread reads
                        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections: idle ones now, others after their reply."""
        with self._changing:
            self._is_closed, idle, self._idle = True, self._idle, []
        for connection in idle:
            connection.close()

    def _send(self, path: str, data: bytes, timeout: float, *, again: bool) -> tuple[int, bytes]:
        """Send a request, over a connection that is open already if `again` allows it."""
        with self._changing:
            connection = self._idle.pop() if again and self._idle else self._connect()
            self._busy[connection] = path
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        is_open, is_usable = connection.sock is not None, False
        try:
            headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
            connection.request("POST", f"{self._path}/v1/{path}", data, headers)
            answer = connection.getresponse()
            text = answer.read()
            is_usable = not answer.will_close
        except STALE:
            if is_open and self._busy[connection]:
                raise StaleConnection from None
            raise
        finally:
            with self._changing:
                del self._busy[connection]
                if is_usable := is_usable and not self._is_closed:
                    self._idle.append(connection)
            if not is_usable:
                connection.close()
        return answer.status, text

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port)
        return http.client.HTTPSConnection(self._host, self._port, context=self._tls)


def _trusting() -> ssl.SSLContext:
    """Return a context with the authorities to trust; Python ignores a file that it cannot read."""
    context = ssl.create_default_context()
    if path := os.environ.get("SSL_CERT_FILE"):
        try:
            context.load_verify_locations(path)
        except OSError as error:
            why = f"SSL_CERT_FILE names {one_line(path)}, whose certificates cannot be read: {error.strerror or error}"
            raise InvalidInput(why=why) from None
    return context


def is_loopback(host: str) -> bool:
    """True if a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _problem(text: bytes) -> str:
    try:
        return one_line(str(json.loads(text)["error"]))
    except (ValueError, KeyError, TypeError):
        return one_line(text[:500].decode(errors="replace"))
