"""Mail: sends e-mail over SMTP, with TLS unless the address of the receiver renounces it."""

import smtplib
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime, parseaddr
from typing import Any, Self
from urllib.parse import parse_qs, unquote

from runner.alerts.sending import limited
from runner.model.outcome import Dead
from runner.settings.receivers import Receiver
from runner.text.operator import now
from runner.text.sanitize import one_line

TIMEOUT = 20.0
"""Seconds for one step of a conversation with a server."""

PORTS = {"smtp": 587, "smtps": 465}

PERMANENT = 500
"""The lowest reply code of an SMTP server that a repetition does not mend."""


class MailRefused(Exception):
    """A mail server refused a message for now."""


@dataclass(frozen=True, slots=True)
class MailAddress:
    """A mail server with its login, and the addresses of a message.

    Args:
        tls: `start` requires STARTTLS, `wrap` is TLS from the first byte, `none` sends in clear.
    """

    host: str
    port: int
    tls: str
    user: str
    password: str
    sender: str
    recipients: tuple[str, ...]

    @classmethod
    def of(cls, receiver: Receiver) -> Self:
        """Read the address of a receiver.

        Raises:
            Dead: an address is missing or not valid.
        """
        parts = receiver.parts
        options = {
            name: [one_line(each) for each in values]
            for name, values in parse_qs(parts.query.replace("+", "%2B")).items()
        }
        sender, recipients = options.get("from", [""])[0], options.get("to", [])
        for name, addresses in (("from", [sender]), ("to", recipients or [""])):
            if any("@" not in parseaddr(address)[1] for address in addresses):
                raise Dead(f"receiver {receiver.name} needs {name}=ADDRESS, such as ?{name}=ops@example.com")
        tls = "wrap" if parts.scheme == "smtps" else options.get("tls", ["start"])[0]
        if tls not in ("wrap", "start", "none"):
            raise Dead(f"receiver {receiver.name} has tls={tls}: use tls=none, or leave it out")
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(host, port, tls, user, password, sender, tuple(recipients))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def new_mail(to: MailAddress, subject: str, text: str, html: str = "") -> EmailMessage:
    """Begin a message.

    Args:
        subject: one line.
        html: the same text as HTML; empty for none.
    """
    mail = EmailMessage(SMTP_POLICY)
    mail["From"], mail["To"], mail["Subject"] = to.sender, ", ".join(to.recipients), subject
    mail["Date"], mail["Auto-Submitted"] = format_datetime(now()), "auto-generated"
    mail.set_content(text)
    if html:
        mail.add_alternative(html, subtype="html")
    return mail


def send_mail(to: MailAddress, mail: EmailMessage) -> Sequence[str]:
    """Send a message; waits for the server.

    Returns:
        The recipients that the server refused, while it accepted others.

    Raises:
        MailRefused: the server is not reachable, or refuses the message for now.
        Dead: it refuses the login, the sender or all recipients for good, or offers no TLS.
    """
    opened: list[smtplib.SMTP] = []

    def late(text: str) -> MailRefused:
        return MailRefused(f"{text}: {to} did not take the message")

    try:
        with limited(opened, late), _open(to, opened) as server:
            if to.user:
                server.login(to.user, to.password)
            refused = server.send_message(mail, to.sender, list(to.recipients))
    except smtplib.SMTPAuthenticationError as error:
        raise Dead(f"{_reply(error.smtp_code, error.smtp_error)}: {to} refused the login of {to.user}") from None
    except smtplib.SMTPRecipientsRefused as error:
        replies = [f"{name}: {_reply(*reply)}" for name, reply in error.recipients.items()]
        lowest = min(code for code, _ in error.recipients.values())
        _refuse(f"{to} refused all recipients: {'; '.join(replies)}", lowest)
    except smtplib.SMTPResponseException as error:
        _refuse(f"{_reply(error.smtp_code, error.smtp_error)}: {to} refused the message", error.smtp_code)
    except smtplib.SMTPNotSupportedError as error:
        raise Dead(f"{to}: {error}") from None
    except UnicodeError:  # its text repeats characters of a password
        raise Dead(f"{to}: SMTP does not carry the host, or a character outside ASCII of the login") from None
    except (OSError, smtplib.SMTPException) as error:
        raise MailRefused(f"{type(error).__name__}: {error}: {to} did not take the message") from None
    return tuple(refused)


class _MailServer(smtplib.SMTP):
    """A conversation that joins a list before it connects, for the one who limits it."""

    def __init__(self, opened: list[smtplib.SMTP], *where: Any, **options: Any) -> None:
        opened.append(self)
        super().__init__(*where, **options)


class _MailServerWithTls(_MailServer, smtplib.SMTP_SSL): ...


def _open(to: MailAddress, opened: list[smtplib.SMTP]) -> smtplib.SMTP:
    where = to.host, to.port, socket.gethostname() or "localhost"
    if to.tls == "wrap":
        return _MailServerWithTls(opened, *where, timeout=TIMEOUT, context=ssl.create_default_context())
    server = _MailServer(opened, *where, timeout=TIMEOUT)
    if to.tls == "none":
        return server
    try:
        server.ehlo()
        if not server.has_extn("starttls"):
            raise Dead(f"{to} offers no STARTTLS: use smtps://, or add tls=none if the network is trusted")
        server.starttls(context=ssl.create_default_context())
    except BaseException:
        with suppress(OSError):
            server.close()
        raise
    return server


def _refuse(text: str, code: int) -> None:
    raise Dead(text) if code >= PERMANENT else MailRefused(text)


def _reply(code: int, text: bytes | str) -> str:
    return one_line(f"{code} {text.decode(errors='replace') if isinstance(text, bytes) else text}")
