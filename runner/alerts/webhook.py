"""Webhook: posts a notice as signed JSON to an address."""

import hashlib
import hmac
import json
import time
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from runner.alerts.notice import AlertNotice, Message
from runner.alerts.sending import limited
from runner.model.outcome import Dead, Retry
from runner.settings.receivers import Receiver
from runner.text.operator import now
from runner.text.sanitize import one_line

TIMEOUT = 10.0
"""Seconds for one step of a request."""

SIGNATURE = "Tasktui-Signature"
"""The header with the timestamp and the signature: t=1732000000,v1=4f1c..."""

LATER = (408, 409, 425, 429)
"""Status codes below 500 after which a repetition may succeed."""

LONGEST_WAIT = 3_600.0
"""Maximum seconds that a server may ask to wait."""


class WebhookFailed(Exception):
    """A web server did not accept a request for now."""


class _Connections(HTTPHandler, HTTPSHandler):
    """Opens the connections of a request, and keeps them for the one who limits it."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[HTTPConnection] = []

    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(partial(self._open, HTTPConnection), request)

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(partial(self._open, HTTPSConnection), request)

    def _open(self, kind: type[HTTPConnection], host: str, **options: Any) -> HTTPConnection:
        self.opened.append(kind(host, **options))
        return self.opened[-1]


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: another host must not receive the notice."""
        return


def post(receiver: Receiver, notice: AlertNotice) -> None:
    """Post a notice; waits for the server.

    Raises:
        Retry: the server asks for a repetition at a later time.
        WebhookFailed: the server is not reachable, or refuses the request for now.
        Dead: the server refuses the request for good.
    """
    url, _, key = receiver.url.partition("#")
    body = json.dumps({"id": Message.of(notice).thread, **asdict(notice)}, ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "tasktui"}
    if key:
        timestamp = int(time.time())
        headers[SIGNATURE] = f"t={timestamp},v1={signature(key, timestamp, body)}"
    fetch(Request(url, body, headers), str(receiver))  # noqa: S310 - the scheme is checked with the settings


def signature(key: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a webhook: HMAC-SHA256 over the timestamp, a full stop and the body, in hexadecimal.

    Args:
        timestamp: seconds since 1970 in UTC.
    """
    return hmac.new(key.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def fetch(request: Request, shown: str) -> None:
    """Send a request; waits for the server.

    Args:
        shown: the address without secrets, for messages.

    Raises:
        Retry, WebhookFailed, Dead: see `post`.
    """
    connections = _Connections()

    def late(text: str) -> WebhookFailed:
        return WebhookFailed(f"{text}: {shown} did not take the notice")

    try:
        with limited(connections.opened, late), build_opener(_NoRedirects, connections).open(request, timeout=TIMEOUT):
            pass
    except HTTPError as error:
        with error:
            _refuse(error.code, error.reason, error.headers.get("Retry-After"), shown)
    except (URLError, OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        text = f"{type(reason).__name__}: {one_line(str(reason))}"
        raise WebhookFailed(f"{text}: {shown} did not take the notice") from None


def _refuse(code: int, reason: str, retry_after: str | None, shown: str) -> NoReturn:
    text = one_line(f"{code} {reason}: {shown} did not take the notice")
    if code in LATER or code >= 500:  # noqa: PLR2004 - errors of the server
        if (wait := _wait(retry_after or "")) is not None:
            raise Retry(wait, text)
        raise WebhookFailed(text)
    if code < 400:  # noqa: PLR2004 - redirects
        raise Dead(f"{text}; redirects are not followed: name the final address")
    raise Dead(text)


def _wait(text: str) -> float | None:
    """Read the header Retry-After in seconds; None without a valid one."""
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT)
    try:
        return min(max(0.0, (parsedate_to_datetime(text) - now()).total_seconds()), LONGEST_WAIT)
    except (TypeError, ValueError):
        return None
