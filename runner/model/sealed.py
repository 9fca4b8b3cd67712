"""Sealed value: an encrypted value as the database stores it, a JSON object that is also text."""

import json
import re
from typing import NamedTuple

CODEC = "$codec"
"""The name of the codec in a sealed value, which no argument of a handler has."""

PREFIX = '{"$codec":'
"""The first characters of a sealed value, as `Sealed.text` writes it."""

# In JSON inside of JSON, quotation marks have backslashes. A list may have cut the end.
_PATTERN = re.compile(
    r"""\{\s*\\*"\$codec\\*"\s*:\s*\\*"(?P<codec>[^"\\\s]{1,200})\\*"(?:\s*,\s*\\*"key\\*"\s*:\s*"""
    r"""\\*"(?P<key>[^"\\\s]{0,64})\\*"(?:\s*,\s*\\*"data\\*"\s*:\s*\\*"[^"\\]*(?:\\*"\s*\}?)?)?[^"\s]{0,9})?"""
)

EXACT = re.compile(
    r"""\{"\$codec":"(?P<codec>[^"\\\s]{1,200})","key":"(?P<key>[^"\\\s]{0,64})","data":"(?P<data>[^"\\]*)"\}"""
)
"""A sealed value inside of another text, as `Sealed.text` writes it."""


class Sealed(NamedTuple):
    """A sealed value.

    Args:
        codec: name of its codec.
        key: id of the key that encrypted it; empty if its codec has no ids.
        data: the encrypted text.
    """

    codec: str
    key: str
    data: str

    @property
    def text(self) -> str:
        """The stored text."""
        return json.dumps({"$codec": self.codec, "key": self.key, "data": self.data}, separators=(",", ":"))


def read_sealed(text: str | None) -> Sealed | None:
    """Read a stored text; None if it is not a sealed value."""
    if text is None or CODEC not in text[:32]:
        return None
    try:
        return sealed_of(json.loads(text))
    except (ValueError, RecursionError):
        return None


def sealed_of(value: object) -> Sealed | None:
    """Read a decoded JSON value; None if it is not a sealed value."""
    match value:
        case {"$codec": str() as codec, "data": str() as data, **rest} if rest.keys() <= {"key"}:
            return Sealed(codec, str(rest.get("key", "")), data)
    return None


def sealed_in(text: str) -> list[Sealed]:
    """Return the sealed values inside of a text."""
    return [Sealed(match["codec"], match["key"], match["data"]) for match in EXACT.finditer(text)]


def shown(codec: str, key: str | None) -> str:
    """Describe a sealed value for people."""
    return f"encrypted ({codec}, key {key})" if key else f"encrypted ({codec})"


def hide_sealed(text: str) -> str:
    """Replace the sealed values inside of a text by their descriptions."""
    return _PATTERN.sub(lambda match: shown(match["codec"], match["key"]), text) if CODEC in text else text
