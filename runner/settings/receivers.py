"""Receiver: an address to which notices of alerts go, from the setting `alert_receivers`."""

import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

MAIL_SCHEMES = ("smtp", "smtps")
WEB_SCHEMES = ("http", "https")

RECEIVER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")

LAST_PORT = 65_535

_UNSAFE = re.compile(r"[^\x21-\x7e]")

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


class Receiver(NamedTuple):
    """One receiver.

    Args:
        url: its address. It may hold secrets: `str` shows the scheme and the host alone.
    """

    name: str
    url: str

    def __str__(self) -> str:
        host = self.parts.hostname if self.is_mail or self.is_web else None
        return f"{self.name}={self.parts.scheme}://{host or '***'}"

    @property
    def parts(self) -> SplitResult:
        """The parts of the address."""
        return urlsplit(self.url)

    @property
    def is_mail(self) -> bool:
        """True if it receives e-mail over SMTP."""
        return self.parts.scheme in MAIL_SCHEMES

    @property
    def is_web(self) -> bool:
        """True if it is a webhook."""
        return self.parts.scheme in WEB_SCHEMES


def parse_receiver(text: str) -> Receiver:
    """Parse a receiver, such as ops=smtp://mail.example.com?from=tasks@example.com&to=ops@example.com.

    Raises:
        ValueError: it is not valid; the message does not repeat it, because it may hold secrets.
    """
    name, equals, url = (part.strip() for part in text.partition("="))
    if not equals or not RECEIVER_NAME.fullmatch(name):
        raise ValueError("a receiver has a name and an address, such as hook=https://example.com/alerts")
    try:
        receiver = Receiver(name, url)
        parts, port = receiver.parts, receiver.parts.port
    except ValueError:  # its text may repeat a part of a password
        why = f"write / ? # of a password as %2F %3F %23; a port is a number up to {LAST_PORT}"
        raise ValueError(f"the host or the port of receiver {name} is not valid: {why}") from None
    known = receiver.is_mail or receiver.is_web
    if not _SCHEME.fullmatch(parts.scheme) or "://" not in url or port == 0 or (known and not parts.hostname):
        why = "use smtp://, smtps://, https://, or an address of Apprise such as slack://"
        raise ValueError(f"the address of receiver {name} has no scheme or no host: {why}")
    if receiver.is_web:
        require_sendable(url)
    return receiver


def require_sendable(url: str) -> None:
    """Check that HTTP can carry the address of a web server, before its signing key.

    Raises:
        ValueError: it cannot; the message does not repeat it, because it may hold secrets.
    """
    sent = url.partition("#")[0]
    if unsafe := _UNSAFE.search(sent):
        where = f"character {unsafe.start() + 1} of an address"
        raise ValueError(f"{where} is a space, a control character or outside ASCII: write it as %20 or alike")
    if "@" in urlsplit(sent).netloc:
        raise ValueError("an address of a web server has a login before its host: a webhook sends none, use #KEY")


def require_different_names(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the receivers of the setting, which are checked.

    Raises:
        ValueError: two have the same name.
    """
    names = [parse_receiver(text).name for text in texts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two receivers have the name {twice}")
    return texts
