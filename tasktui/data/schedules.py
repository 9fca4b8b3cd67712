"""The data of the schedules screen: the schedules, the runs of one of them, and how late runs start."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.policy.schedule import parse_rule
from runner.policy.schedule_ticks import next_ticks
from runner.queries.runners import runner_names
from runner.queries.schedules import ScheduleRow, ScheduleRun, recent_starts, schedule_runs
from runner.queries.schedules import schedules as read_schedules

DAY = timedelta(days=1)

MOST_RUNS = 50
"""Runs of the schedule under the cursor."""

MOST_PLANNED = 300
"""Ticks to compute for a ruler; more than it has cells."""


@dataclass(frozen=True, slots=True)
class ScheduleBoard:
    """The schedules at one moment.

    Args:
        rows: the schedules, the next one first.
        id: the schedule under the cursor; None without one.
        runs: its runs, the latest first.
        starts: when each run of the last day was due, and the seconds until it started.
        runners: names of the live runners, and of those that ended last, by id.
    """

    at: datetime
    rows: tuple[ScheduleRow, ...]
    id: str | None
    runs: tuple[ScheduleRun, ...]
    starts: tuple[tuple[datetime, float], ...]
    runners: Mapping[int, str]

    def row(self, id: str | None) -> ScheduleRow | None:
        """Return a schedule by its id."""
        return next((row for row in self.rows if row.id == id), None)

    @property
    def late(self) -> list[ScheduleRow]:
        """The schedules that are late."""
        return [row for row in self.rows if row.lateness(self.at) is not None]

    def percentile(self, q: float) -> float | None:
        """A percentile of the lateness of the last day in seconds; None without runs."""
        seconds = sorted(late for _, late in self.starts)
        return seconds[min(len(seconds) - 1, int(len(seconds) * q))] if seconds else None


async def read_board(tx: Transaction, id: str | None) -> ScheduleBoard:
    """Read the schedules.

    Args:
        id: the schedule whose runs to read; None for none.
    """
    rows, starts, at, runs, names = await tx.gather(
        read_schedules(tx), recent_starts(tx, DAY), clock(tx), schedule_runs(tx, id or "", MOST_RUNS), runner_names(tx)
    )
    known = any(row.id == id for row in rows)
    return ScheduleBoard(at, tuple(rows), id if known else None, tuple(runs) if known else (), tuple(starts), names)


def planned(row: ScheduleRow, at: datetime, length: timedelta) -> list[datetime]:
    """Return the ticks of a schedule within a time from now, and the first one after it."""
    if not row.upcoming:
        return []
    ticks = _ticks(row.spec.rule, row.spec.timezone, row.upcoming[0], length)
    inside = [tick for tick in ticks if tick <= at + length]
    return inside or list(ticks[:1])


@lru_cache(maxsize=1_024)
def _ticks(rule: str, timezone: str, first: datetime, length: timedelta) -> tuple[datetime, ...]:
    """The ticks from a stored one on; they change only with it. Beyond MOST_PLANNED ticks, one per cell of a ruler."""
    try:
        parsed = parse_rule(rule, timezone)
        ticks = next_ticks(parsed, first, first, MOST_PLANNED)
        sparse = len(ticks) < MOST_PLANNED
        while not sparse and ticks[-1] < first + length:
            later = next_ticks(parsed, None, ticks[-1] + length / MOST_PLANNED, 1)
            sparse = not later
            ticks += later
        return tuple(ticks)
    except InvalidInput:
        return ()
