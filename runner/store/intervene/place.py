"""place: what can be paused, by name."""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What can be paused."""

    QUEUE = "queue"
    HANDLER = "handler"


class Place(NamedTuple):
    """A queue or a handler, by name."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
