"""Batch: how the tasks have ended that one waited for, as its handler is told."""

import json
from typing import NamedTuple, Self


class Batch(NamedTuple):
    """How the tasks have ended that one waited for.

    Args:
        total: how many they are.
        succeeded: how many of them succeeded.
        dead: how many were given up.
        cancelled: how many were cancelled.
    """

    total: int
    succeeded: int
    dead: int
    cancelled: int

    @property
    def failed(self) -> int:
        """How many did not succeed, with those that an operator let go of before they had ended."""
        return self.total - self.succeeded

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """Read it as it stands in a row; what cannot be read is nothing."""
        try:
            counts = json.loads(text) if text else None
            return cls(*(int(counts[name]) for name in cls._fields)) if counts else None
        except (ValueError, KeyError, TypeError):
            return None
