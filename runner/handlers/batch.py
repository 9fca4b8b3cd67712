"""Batch: the outcomes of the tasks that a task depended on, as its handler receives them."""

import json
from typing import NamedTuple, Self


class BatchResult(NamedTuple):
    """Outcomes of the tasks that a task depended on.

    Args:
        total: number of them.
        succeeded: number that succeeded.
        dead: number that are dead.
        cancelled: number that were cancelled.
    """

    total: int
    succeeded: int
    dead: int
    cancelled: int

    @property
    def failed(self) -> int:
        """Number that did not succeed, including dependencies that an operator removed before they finished."""
        return self.total - self.succeeded

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """Read the counts of a row; None if there are none or they are not readable."""
        try:
            counts = json.loads(text) if text else None
            return cls(*(int(counts[name]) for name in cls._fields)) if counts else None
        except (ValueError, KeyError, TypeError):
            return None
