"""The HTTP server of probes answers every client, whatever the others send."""

import errno
import http.client
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from runner.engine.hosting import probe_server
from runner.engine.hosting.probe_server import ProbeServer, Reply
from tests.engine.harness import WAIT_SECONDS


def get(url: str, path: str, method: str = "GET") -> tuple[int, str]:
    """The status and the text of a request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_SECONDS)
    connection.request(method, path)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def fail() -> Reply:
    raise ValueError("geheim")


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    answers = {
        "/livez": lambda: Reply.of(""),
        "/readyz": lambda: Reply.of("draining"),
        "/long": lambda: Reply(200, b"x" * 10_000_000),
        "/broken": fail,
    }
    server = ProbeServer("127.0.0.1:0", answers)
    server.start()
    yield server
    server.stop()


def connected(server: ProbeServer, data: bytes = b"") -> socket.socket:
    address = urlsplit(server.url)
    client = socket.create_connection((str(address.hostname), address.port or 0), timeout=WAIT_SECONDS)
    client.sendall(data)
    return client


def rest(client: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    data = b""
    while part := client.recv(65_536):
        data += part
    client.close()
    return data


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/livez", 200, "ok\n"),
        ("GET", "/readyz?verbose", 503, "draining\n"),
        ("HEAD", "/readyz", 503, ""),
        ("POST", "/livez", 405, "use GET\n"),
        ("GET", "/", 404, "unknown path; use one of /livez, /readyz, /long, /broken\n"),
        ("GET", "/broken", 500, "ValueError: see the log\n"),
    ],
)
def test_a_request_gets_its_reply(server: ProbeServer, method: str, path: str, status: int, text: str) -> None:
    assert get(server.url, path, method) == (status, text)


@pytest.mark.parametrize(
    "request_bytes",
    [b"\r\n\r\n", b"\x00\xff\n\n", b"GET /livez\r\n\r\n", b"GET /livez FTP/1\r\n\r\n", b"x" * 9_000],
    ids=["empty", "binary", "no version", "other protocol", "too long"],
)
def test_a_malformed_request_is_refused(server: ProbeServer, request_bytes: bytes) -> None:
    assert rest(connected(server, request_bytes)).startswith(b"HTTP/1.1 400 ")
    assert get(server.url, "/livez") == (200, "ok\n")


def test_slow_clients_delay_no_other_client(server: ProbeServer) -> None:
    """One sends half of a request, one reads nothing of a long reply, one has gone away."""
    half, deaf = connected(server, b"GET /livez HT"), connected(server, b"GET /long HTTP/1.1\r\n\r\n")
    connected(server, b"GET /long HTTP/1.1\r\n\r\n").close()
    assert get(server.url, "/livez") == (200, "ok\n")
    half.sendall(b"TP/1.1\r\n\r\n")
    assert rest(half).startswith(b"HTTP/1.1 200 ")
    assert rest(deaf).endswith(b"x" * 100)


def test_a_client_that_sends_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch, server: ProbeServer) -> None:
    monkeypatch.setattr(probe_server, "LONGEST_EXCHANGE", 0.01)
    assert rest(connected(server)) == b""


def test_many_idle_connections_leave_room_for_a_probe(server: ProbeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "MOST_EXCHANGES", 3)
    idle = [connected(server) for _ in range(5)]
    assert get(server.url, "/livez") == (200, "ok\n")
    assert rest(idle[0]) == b""
    for client in idle:
        client.close()


def test_a_server_whose_thread_has_failed_can_be_stopped() -> None:
    def lose_descriptors() -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    server = ProbeServer(None, {}, tick=lose_descriptors, interval=60.0)
    server.start()
    server._thread.join(WAIT_SECONDS)
    server.stop()
