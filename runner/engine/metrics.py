"""Metrics: counters of a runner for its log."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Metrics:
    """Counts since the start.

    Args:
        verbs: moves by verb.
    """

    verbs: Counter[str] = field(default_factory=Counter)
