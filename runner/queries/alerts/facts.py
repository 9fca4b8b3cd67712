"""Facts: the figures that the rules of alerts judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from runner.queries.alerts.thresholds import DEFAULT_THRESHOLDS, Thresholds
from runner.queries.counting import Count
from runner.queries.overview import Overview
from runner.queries.reports import Flow

if TYPE_CHECKING:  # The first data of the console do not need these.
    from runner.queries.deaths import RepeatedFailures
    from runner.queries.ended_runners import EndedRunner
    from runner.queries.health import Health
    from runner.queries.schedules import ScheduleRow
    from runner.queries.task.parents import StuckTasks

from runner.text import formatting
from runner.text.sanitize import clean

MAX_KINDS = 3
"""Error types, queues and runners listed in an alert."""

MAX_TEXT, MAX_ERROR = 60, 300
"""Maximum characters of a text from the database, and of an error of it, which has the advice at its end."""


def shown(value: object, limit: int = MAX_TEXT) -> str:
    """A text from the database on one line, safe to print."""
    return clean(formatting.text(value), limit)


@dataclass(frozen=True, kw_only=True)
class SlowFacts:
    """The figures that the overview lacks; a rule without its figures finds nothing.

    Args:
        results: results of the last ten minutes by runner and handler.
        blocked: the blocked tasks that wait for a dead or cancelled task; None without any.
        dead: tasks that died within the span of the thresholds and are still dead, by handler.
        flows: results of the last ten minutes by queue and handler.
        repeated: the live tasks that failed more often than the threshold, by handler.
        lost: the runners that were lost in the last ten minutes.
        ended: the runner that ended last, within a day; None without one.
        schedules: the schedules with their last ticks.
        health: the state of the database; None if it was not read.
        due: seconds since the first ready task became due, by queue and handler.
    """

    results: Mapping[int, Mapping[str, Flow]] = field(default_factory=dict)
    blocked: "StuckTasks | None" = None
    dead: Mapping[str, Count] = field(default_factory=dict)
    flows: Mapping[tuple[str, str], Flow] = field(default_factory=dict)
    due: Mapping[tuple[str, str], float] = field(default_factory=dict)
    repeated: "Sequence[RepeatedFailures]" = ()
    lost: "Sequence[EndedRunner]" = ()
    ended: "EndedRunner | None" = None
    schedules: "Sequence[ScheduleRow]" = ()
    health: "Health | None" = None


NO_SLOW_FACTS = SlowFacts()


@dataclass(frozen=True)
class AlertFacts:
    """The figures of one moment.

    Args:
        slow: those that the overview lacks.
        zone: time zone of displayed times.
    """

    overview: Overview
    slow: SlowFacts = NO_SLOW_FACTS
    zone: tzinfo = UTC
    thresholds: Thresholds = DEFAULT_THRESHOLDS

    def ago(self, seconds: float) -> datetime | None:
        """The time so many seconds before; None for an impossible one."""
        try:
            return self.overview.at - timedelta(seconds=seconds)
        except (OverflowError, ValueError):  # a hand-written row may contain any value
            return None
