"""Schedules: the definition of a periodic rule, and the words for its policies."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Self

from runner.model.task import Described


class Overlap(Described):
    """How a schedule treats a tick while an earlier run is unfinished; the description is a clause about its runs."""

    SKIP = "skip", "a tick during a run is skipped"
    QUEUE = "queue", "a tick during a run waits for its end"
    REPLACE = "replace", "a tick during a run replaces it"
    ALLOW = "allow", "runs may overlap"


OVERLAPS = tuple(overlap.value for overlap in Overlap)
"""The names of the policies."""


def overlap_effect(name: str) -> str:
    """Return the effect of an overlap policy as a clause; the name itself if a row names no policy."""
    return Overlap(name).description if name in OVERLAPS else name


class TickOutcome(StrEnum):
    """The outcome of a tick in the history of a schedule."""

    SUBMITTED = "submitted"
    """Its task was submitted."""
    SKIPPED = "skipped"
    """An earlier run was unfinished, and the overlap policy is "skip" or "replace"."""
    MISSED = "missed"
    """No runner was up in time, and the misfire policy drops the tick. It represents all ticks missed with it."""
    MANUAL = "manual"
    """An operator ran the schedule."""


class ScheduleSpec(NamedTuple):
    """The definition of a schedule: the columns that people set.

    Args:
        rule: a cron line, "every 5m", or "after_end 30s".
        timezone: time zone of a cron line, as in the IANA database.
        payload: arguments of each task, as the text of a JSON object.
        options: task options, as the text of a JSON object.
        misfire: treatment of missed ticks: "skip", "once" or "all N".
        overlap: treatment of a tick while an earlier run is unfinished; see Overlap.
        jitter: maximum delay of a task after its tick in seconds.
        broadcast: True to run each tick on every live runner that has the handler.
    """

    handler: str
    rule: str
    timezone: str = "UTC"
    payload: str = "{}"
    options: str = "{}"
    misfire: str = "once"
    overlap: str = Overlap.SKIP.value
    jitter: float = 0.0
    broadcast: bool = False

    def values(self) -> dict[str, Any]:
        """The values by column."""
        return {name: getattr(self, name) for name in SPEC_COLUMNS}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Take the definition from the values of a row; other values are ignored."""
        return cls(**{name: values[name] for name in SPEC_COLUMNS if name in values})


SPEC_COLUMNS = ScheduleSpec._fields
"""The columns of a definition."""
