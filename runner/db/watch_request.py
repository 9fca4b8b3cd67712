"""WatchRequest: the notification by which a client asks runners for notices of changes of tasks.

The client sends it on the channel of `request_channel`, again and again while callers wait. A runner that changes one
of the tasks answers on the channel of the client, with the ids of the tasks. No table has a trace of both.
"""

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from runner.db.dialects.postgresql import channel
from runner.db.schema import Tables

MOST_IDS = 350
"""Ids in a notification, whose text has at most 8,000 bytes."""

MOST_DIGITS = 20


class Watch(Enum):
    """The changes that a client asks for."""

    END = "end"
    CHANGE = "change"


class WatchRequest(NamedTuple):
    """A request for notices.

    Args:
        client: the name of the client: 16 hexadecimal digits.
        watch: the changes to report.
        ids: the tasks.
    """

    client: str
    watch: Watch
    ids: list[int]

    def texts(self) -> Iterator[str]:
        """The texts of its notifications."""
        for ids in id_texts(self.ids):
            yield f"{self.client} {self.watch.value} {ids}"


_REQUEST = re.compile(r"([0-9a-f]{16}) (end|change) (.*)", re.ASCII)


def read_request(text: str) -> WatchRequest | None:
    """Read the text of a notification; None if it is none of a request."""
    match = _REQUEST.fullmatch(text)
    return WatchRequest(match[1], Watch(match[2]), read_ids(match[3])) if match else None


def id_texts(ids: Sequence[int]) -> Iterator[str]:
    """The texts of notifications with these ids."""
    for first in range(0, len(ids), MOST_IDS):
        yield ",".join(map(str, ids[first : first + MOST_IDS]))


def read_ids(text: str) -> list[int]:
    """The ids in the text of a notification; without anything that is none."""
    return [int(part) for part in text.split(",") if part.isdecimal() and part.isascii() and len(part) < MOST_DIGITS]


def request_channel(tables: Tables) -> str:
    """The channel of requests, on which runners listen."""
    return channel(tables, "_watch")


def start_channel(tables: Tables) -> str:
    """The channel on which a runner reports that it listens from now on: clients repeat their requests."""
    return channel(tables, "_runner")


def notice_channel(tables: Tables, client: str) -> str:
    """The channel of the notices for a client."""
    return channel(tables, f"_{client}")
