"""Real servers on loopback: SMTP, and HTTP that answers as the test wants."""

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

if TYPE_CHECKING:
    from email.message import EmailMessage


class Mailbox:
    """The mails that a server has accepted, and the replies that it gives.

    Args:
        replies: reply to each recipient, by address; others are accepted.
    """

    def __init__(self, replies: dict[str, str] | None = None) -> None:
        self.mails: list[EmailMessage] = []
        self.logins: list[tuple[str, str]] = []
        self.is_encrypted: list[bool] = []
        self._replies = replies or {}

    async def handle_RCPT(  # noqa: N802 - the name of the hook
        self, _: SMTP, __: Session, envelope: Envelope, address: str, ___: list[str]
    ) -> str:
        if reply := self._replies.get(address):
            return reply
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        mail = message_from_bytes(envelope.original_content or b"", policy=policy.default)
        self.mails.append(mail)
        self.is_encrypted.append(session.ssl is not None)
        return "250 OK"

    def authenticate(self, _: SMTP, __: Session, ___: Envelope, ____: str, data: LoginPassword) -> AuthResult:
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"p@ss", handled=False)


@contextmanager
def mail_server(
    mailbox: Mailbox, tls: ssl.SSLContext | None = None, *, wrapped: bool = False, port: int = 0
) -> Iterator[int]:
    """Serve SMTP and yield the port.

    Args:
        tls: the certificate; None offers no STARTTLS.
        wrapped: TLS from the first byte.
    """
    options: dict[str, Any] = {"hostname": "127.0.0.1", "port": port, "enable_SMTPUTF8": True}
    if wrapped:
        options |= {"ssl_context": tls}
    elif tls is not None:
        options |= {"tls_context": tls, "require_starttls": True, "authenticator": mailbox.authenticate}
    controller = _Controller(mailbox, **options)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


class _Controller(Controller):
    def _trigger_server(self) -> None:
        """Connect once, to the port that the system has chosen: the start waits for a connection."""
        self.port = _port_of(self)
        socket.create_connection(("127.0.0.1", self.port)).close()


def _port_of(controller: Controller) -> int:
    server: Any = controller.server
    return int(server.sockets[0].getsockname()[1])


class Answers:
    """The requests that a web server has received, and its answers in order; the last one repeats."""

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self._answers: Sequence[tuple[int, dict[str, str]]] = answers or ((200, {}),)

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        self.requests.append((method, path, headers, body))
        return self._answers[min(len(self.requests), len(self._answers)) - 1]


@contextmanager
def web_server(answers: Answers) -> Iterator[str]:
    """Serve HTTP and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, headers = answers.take(self.command, self.path, dict(self.headers), body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
