"""bookmark: where one page of a list ended, and the next begins."""

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple, TypeAlias

from runner.errors import InvalidInput
from runner.people.sorts import By, Sort

Value: TypeAlias = str | int
"""What a task is sorted by: a number, or a time as its database writes it, which reads it back to the last digit."""

BY_ID = (By.ID, By.AGE)

HIGHEST_ID = 2**63 - 1
LONGEST_ID = 20
"""What both databases can hold, and its characters with the sign."""


class Bookmark(NamedTuple):
    """A task's place in a list.

    Args:
        id: the task's.
        values: what it was sorted by, without the id; nothing where the id is all.
    """

    id: int
    values: tuple[Value, ...] = ()


def written(mark: Bookmark, sort: Sort) -> str:
    """A place as people pass it on: in the order of ids the id, else a word that means nothing to them."""
    if sort.by in BY_ID:
        return str(mark.id)
    text = json.dumps([mark.id, *mark.values], separators=(",", ":")).encode()
    packed = zlib.crc32(text).to_bytes(4, "big") + text
    return f"{sort.by}.{urlsafe_b64encode(packed).decode().rstrip('=')}"


def read_bookmark(text: str, sort: Sort) -> Bookmark:
    """Read a place that `written` wrote for the same order, or for its reverse.

    Raises:
        InvalidInput: it is none.
    """
    by, dot, word = text.partition(".")
    try:
        if dot and sort.by == by:
            return _unpacked(urlsafe_b64decode(word + "=" * (-len(word) % 4)))
        if not dot and sort.by in BY_ID and len(text) <= LONGEST_ID and abs(int(text)) <= HIGHEST_ID:
            return Bookmark(int(text))
    except (ValueError, TypeError):
        pass
    raise InvalidInput(
        why=f"{text[:60]!r} is no place in a list sorted by {sort.by}; take the one that the last page named"
    )


def _unpacked(packed: bytes) -> Bookmark:
    check, text = packed[:4], packed[4:]
    if zlib.crc32(text).to_bytes(4, "big") != check:
        raise ValueError(check)
    id, *values = json.loads(text)
    return Bookmark(id, tuple(values))
