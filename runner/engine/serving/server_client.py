"""ServerClient: requests to a server for HTTP executors."""

import http.client
import ipaddress
import json
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

from runner.errors import InvalidInput, RunnerError
from runner.text.sanitize import one_line

TIMEOUT = 60.0
"""Seconds without an answer of the server."""


class ServerRefused(RunnerError):
    """The server {url} refused the request ({status}): {why}."""


class ServerUnreachable(OSError):
    """A server does not answer."""


class ServerClient:
    """One server. Each thread has a connection of its own.

    Args:
        url: such as https://tasks.example.org:8765.
        token: the secret.

    Raises:
        InvalidInput: the URL is not valid, or the token would cross a network in the clear.
    """

    def __init__(self, url: str, token: str) -> None:
        parts, self.url, self._token = urlsplit(url), url, token
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InvalidInput(why=f"--server {one_line(url)!r} is no address such as https://tasks.example.org:8765")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise InvalidInput(why=f"{one_line(url)} would send the token in the clear: use https://")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._threads = threading.local()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request and return the reply.

        Raises:
            ServerUnreachable: the server does not answer, or is overloaded.
            ServerRefused: the server refused the request.
        """
        data = json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        connection = self._connection()
        try:
            connection.request("POST", f"{self._path}/v1/{path}", data, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._threads.connection = None
            raise ServerUnreachable(f"no answer from {self.url}: {type(error).__name__}: {error}") from None
        if answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ServerUnreachable(f"{self.url} answered {answer.status}: {_problem(text)}")
        if answer.status != http.HTTPStatus.OK:
            raise ServerRefused(url=self.url, status=answer.status, why=_problem(text))
        return json.loads(text)

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._threads, "connection", None)
        if connection is None:
            if self._tls is None:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
            else:
                connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT, context=self._tls)
            self._threads.connection = connection
        return connection


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
