"""Headers: short texts that travel with a task beside its payload, such as the position in a trace."""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from runner.errors import InvalidTask
from runner.model.text_limits import require_storable

MOST_HEADERS = 32
"""Maximum number of headers of a task."""

LONGEST_HEADER_NAME = 100
"""Maximum number of characters of the name of a header."""

HEADERS_LIMIT = 8_192
"""Maximum size in bytes of the headers of a task, as JSON."""

TRACE_HEADERS = ("traceparent", "tracestate", "baggage", "sentry-trace")
"""The headers with a position in a trace. A submit inside a handler inherits them from its attempt."""

SCHEDULE = "schedule"
"""The header with the id of the schedule that submitted a task."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_NAME = re.compile(rf"[\w!#$%&'*+.^`|~-]{{1,{LONGEST_HEADER_NAME}}}", re.ASCII)


def require_headers(field: str, headers: Any) -> None:
    """Reject headers that are not a mapping of short texts.

    Raises:
        InvalidTask: a name or a value is not valid, or there are too many.
    """
    if not isinstance(headers, Mapping):
        why = "expected a mapping of texts, such as {'request-id': 'a1'}"
        raise InvalidTask(field=field, value=str(headers)[:80], why=why)
    if len(headers) > MOST_HEADERS:
        raise InvalidTask(field=field, value=len(headers), why=f"a task has at most {MOST_HEADERS} headers")
    for name, value in headers.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            why = f"the name of a header has 1 to {LONGEST_HEADER_NAME} letters, digits, or signs such as - and _"
            raise InvalidTask(field=field, value=str(name)[:80], why=why)
        if not isinstance(value, str):
            why = f"expected text for {name}, got {type(value).__name__}"
            raise InvalidTask(field=field, value=str(value)[:80], why=why)
        if not value.isprintable():
            require_storable(field, value)
            raise InvalidTask(field=field, value=value[:80], why=f"{name} contains unprintable characters")
    if (size := len(json.dumps(dict(headers)))) > HEADERS_LIMIT:
        why = f"the headers have {size:,} bytes as JSON, and {HEADERS_LIMIT:,} are allowed"
        raise InvalidTask(field=field, value=", ".join(headers)[:80], why=why)


def read_headers(text: str | None) -> Mapping[str, str]:
    """Return the headers of a row, read-only; a value that is not text, which plain SQL may store, is left out."""
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return NO_HEADERS
    pairs = values.items() if isinstance(values, dict) else ()
    return MappingProxyType({name: value for name, value in pairs if isinstance(value, str)})


_TRACE_ID = r"[0-9a-f]{2}-([0-9a-f]{32})-"
_IN_VALUE, _IN_JSON = re.compile(_TRACE_ID), re.compile(rf'"traceparent": ?"{_TRACE_ID}')


def trace_id(headers: str | None) -> str | None:
    """Return the trace id in the header traceparent.

    Args:
        headers: JSON text; None without any.
    """
    match = None if headers is None else _IN_JSON.search(headers)
    return None if match is None else match[1]


def trace_id_of(headers: Mapping[str, str]) -> str | None:
    """Return the trace id in the header traceparent."""
    match = _IN_VALUE.match(headers.get(TRACE_HEADERS[0], ""))
    return None if match is None else match[1]


def write_headers(headers: Mapping[str, str]) -> str | None:
    """Return headers as JSON; None for none."""
    return json.dumps(dict(headers)) if headers else None
