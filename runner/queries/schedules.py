"""schedules: the periodic rules with their last runs, the lateness of their runs, and the schedule of a task."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.db.types import db_later, db_now
from runner.errors import InvalidInput
from runner.model.schedule import ScheduleSpec, TickOutcome
from runner.model.task import Shown
from runner.policy.schedule import parse_rule
from runner.policy.schedule_ticks import delayed, next_ticks
from runner.queries.registries import Pause
from runner.queries.rows import as_text, from_row, moment, number, readable, text
from runner.queries.task_list.row import TaskRow, task_rows
from runner.text.sanitize import shell_word

LAST_RUNS = 12
"""Runs of each schedule in a list."""

LATE = timedelta(seconds=10)
"""Lateness of a run that has not started above which the schedule counts as late."""

MOST_STARTS = 5_000
"""Starts that are read for the lateness of all schedules: the latest ones."""

CHUNK = 50
"""Schedules per statement."""


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """One tick of a schedule, and its task.

    Args:
        due: when its task was due; later than the tick by the jitter.
        outcome: see TickOutcome.
        at: when a runner handled the tick.
        task: the task; None if there is none, or if it was pruned.
        runner_id: the runner of a broadcast; None for other schedules.
        started_at: when its first attempt began, if that is known.
    """

    tick: datetime
    due: datetime
    outcome: str
    at: datetime | None
    task: TaskRow | None
    task_id: int | None
    runner_id: int | None
    started_at: datetime | None

    @property
    def late(self) -> timedelta | None:
        """The lateness of its start; None if it has not started, or if that is unknown."""
        return None if self.started_at is None else max(self.started_at - self.due, timedelta(0))

    @property
    def waits(self) -> bool:
        """True if its task exists and has never started."""
        return self.task is not None and self.task.attempt == 0 and not self.task.state.final

    @property
    def failed(self) -> bool:
        """True if its task is dead, or retries after a failure."""
        return self.task is not None and self.task.shown in (Shown.DEAD, Shown.RETRYING, Shown.LOST)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule.

    Args:
        next_at: its next tick as stored; None until a runner has computed it.
        upcoming: its next ticks; empty while it is paused or its definition is not valid.
        last_tick: its last tick.
        pause: the pause in force; None if it is not paused.
        requested_at: when an operator asked for a run that no runner has submitted yet.
        module: the module whose code defines it; None for a schedule of an operator.
        edited: the columns that differ from the code, because an operator edited them.
        error: why its ticks cannot be computed; None if they can.
        version: the version that an operation must present.
        runs: its last runs, the latest first.
    """

    id: str
    spec: ScheduleSpec
    next_at: datetime | None
    upcoming: tuple[datetime, ...]
    last_tick: datetime | None
    pause: Pause | None
    requested_at: datetime | None
    module: str | None
    edited: tuple[str, ...]
    error: str | None
    version: int
    runs: tuple[ScheduleRun, ...] = field(default=())

    @property
    def remedy(self) -> str:
        """The command that mends a schedule that cannot run: an edit, or the deletion if its id is not valid."""
        from runner.handlers.schedules import check_id  # most schedules are valid

        try:
            check_id(self.id)
        except InvalidInput:
            return f"Delete it, and add it under another id: runner schedules delete {shell_word(self.id)}"
        return f"Correct it: runner schedules edit {shell_word(self.id)}"

    def lateness(self, at: datetime) -> timedelta | None:
        """The lateness of its oldest run that has not started, or of a tick that no runner has handled.

        Returns:
            None if it is not late.
        """
        due = [run.due for run in self.runs if run.waits]
        if self.pause is None and self.next_at is not None:
            due.append(self.next_at)
        late = max((at - moment for moment in due), default=timedelta(0))
        return late if late > LATE else None


async def schedules(
    tx: Transaction, ids: Sequence[str] | None = None, *, runs: int = LAST_RUNS, limit: int = 500
) -> list[ScheduleRow]:
    """List schedules with their last runs.

    Args:
        ids: only these; None for all.
        runs: maximum number of runs of each.
        limit: maximum number of schedules.

    Returns:
        The schedules; the next one first, and those without a next tick last.
    """
    table = tx.tables.schedule
    statement = sa.select(*readable(tx, table.c))
    if ids is not None:
        statement = statement.where(table.c.id.in_(ids))
    rows = await tx.execute(statement.order_by(table.c.next_at.is_(None), table.c.next_at, table.c.id).limit(limit))
    mappings = rows.mappings().all()
    jitters = {as_text(row["id"]): number(row["jitter"]) or 0.0 for row in mappings}
    now, found = await tx.gather(clock(tx), _runs(tx, list(jitters), runs))
    last = found.by_schedule(jitters)
    return [_schedule(row, last.get(as_text(row["id"]), ()), now) for row in mappings]


def _schedule(row: Mapping[Any, Any], runs: Sequence[ScheduleRun], now: datetime) -> ScheduleRow:
    spec = from_row(ScheduleSpec, row)
    pause = None
    until = moment(row["paused_until"])
    if row["paused_at"] is not None and (until is None or until > now):
        pause = Pause(moment(row["paused_at"]), until, text(row["paused_by"]), text(row["paused_why"]))
    next_at = None if pause is not None else moment(row["next_at"])
    return from_row(
        ScheduleRow,
        row,
        spec=spec,
        next_at=next_at,
        upcoming=() if pause or row["error"] else _upcoming(spec, next_at, runs, now),
        pause=pause,
        requested_at=moment(row["run_requested_at"]),
        edited=_edited(spec, text(row["declared"])),
        runs=tuple(runs),
    )


UPCOMING = 10
"""The ticks of a schedule that are computed in advance."""


def _upcoming(
    spec: ScheduleSpec, next_at: datetime | None, runs: Sequence[ScheduleRun], now: datetime
) -> tuple[datetime, ...]:
    try:
        rule = parse_rule(spec.rule, spec.timezone)
    except InvalidInput:
        return ()
    if rule.delay is not None and next_at is None:
        return () if any(run.task is not None and not run.task.state.final for run in runs) else (now,)
    return tuple(next_ticks(rule, next_at, now, UPCOMING))


def _edited(spec: ScheduleSpec, declared: str | None) -> tuple[str, ...]:
    try:
        values = json.loads(declared or "null")
    except ValueError:
        return ()
    if not isinstance(values, dict):
        return ()
    return tuple(name for name, value in spec.values().items() if name in values and values[name] != value)


async def schedule_runs(tx: Transaction, id: str, limit: int = 50) -> list[ScheduleRun]:
    """List the runs of one schedule, the latest first."""
    schedule = tx.tables.schedule.c
    jitters, runs = await tx.gather(
        tx.rows(sa.select(schedule.jitter).where(schedule.id == id)), _runs(tx, [id], limit)
    )
    jitter = number(jitters[0][0]) if jitters else None
    by_schedule: dict[str, list[ScheduleRun]] = runs.by_schedule({id: jitter or 0.0})
    return by_schedule.get(id, [])


class StoredRuns(NamedTuple):
    """Ticks as stored, their tasks, and the start of the first attempt of tasks that have failed once."""

    rows: Sequence[sa.RowMapping]
    tasks: Mapping[int, TaskRow]
    starts: Mapping[int, datetime]

    def by_schedule(self, jitters: Mapping[str, float]) -> dict[str, list[ScheduleRun]]:
        """The runs of each schedule, the latest first; the jitter of a schedule delays them."""
        runs: dict[str, list[ScheduleRun]] = defaultdict(list)
        for row in self.rows:
            id, task = row["schedule"], self.tasks.get(row["task_id"])
            runs[id].append(
                ScheduleRun(
                    tick=row["tick"],
                    due=delayed(id, row["tick"], jitters[id]) if jitters[id] else row["tick"],
                    outcome=row["outcome"],
                    at=row["at"],
                    task=task,
                    task_id=row["task_id"],
                    runner_id=row["runner_id"] or None,
                    started_at=_started(task, self.starts),
                )
            )
        return {
            id: sorted(each, key=lambda run: (run.tick, run.runner_id or 0), reverse=True) for id, each in runs.items()
        }


async def _runs(tx: Transaction, ids: Sequence[str], limit: int) -> StoredRuns:
    """Read the last ticks of schedules along the primary key, and their tasks."""
    if not limit:
        return StoredRuns((), {}, {})
    tick = tx.tables.tick
    parts = [
        sa.select(sa.select(tick).where(tick.c.schedule == id).order_by(tick.c.tick.desc()).limit(limit).subquery())
        for id in ids
    ]
    chunks = (parts[first : first + CHUNK] for first in range(0, len(ids), CHUNK))
    results = await tx.gather(*(tx.execute(sa.union_all(*chunk)) for chunk in chunks))
    rows = [row for result in results for row in result.mappings()]
    return StoredRuns(rows, *await _tasks(tx, [row["task_id"] for row in rows if row["task_id"] is not None]))


async def _tasks(tx: Transaction, ids: Sequence[int]) -> tuple[dict[int, TaskRow], dict[int, datetime]]:
    """The tasks by id, and the start of the first attempt of tasks that have failed once."""
    if not ids:
        return {}, {}
    attempt = tx.tables.attempt
    statement = sa.select(attempt.c.task_id, sa.func.min(attempt.c.started_at).label("started_at"))
    first = statement.where(tx.dialect.one_of(attempt.c.task_id, ids)).group_by(attempt.c.task_id)
    found, rows = await tx.gather(task_rows(tx, ids), tx.execute(first))
    tasks = {task.id: task for task in found}
    again = {id for id, task in tasks.items() if task.attempt > 1 or task.shown is Shown.RETRYING}
    starts = {row["task_id"]: moment(row["started_at"]) for row in rows.mappings() if row["task_id"] in again}
    return tasks, {id: start for id, start in starts.items() if start is not None}


def _started(task: TaskRow | None, starts: Mapping[int, datetime]) -> datetime | None:
    return None if task is None else starts.get(task.id, task.claimed_at)


async def recent_starts(tx: Transaction, span: timedelta) -> list[tuple[datetime, float]]:
    """Read the lateness of the runs of all schedules, for a plot and percentiles.

    Args:
        span: how far back; at most the latest MOST_STARTS runs are read.

    Returns:
        The time at which each run was due, and the seconds until it started, oldest first. A run that still waits
        counts with its age.
    """
    tick, schedule = tx.tables.tick, tx.tables.schedule
    recent = (tick.c.at > db_later(db_now(), -span.total_seconds())) & tick.c.task_id.is_not(None)
    window = sa.select(tick.c.schedule, tick.c.tick, tick.c.task_id).where(recent)
    window = window.order_by(tick.c.at.desc()).limit(MOST_STARTS)
    rows, jittered, now = await tx.gather(
        tx.rows(window),
        tx.rows(sa.select(schedule.c.id, schedule.c.jitter).where(schedule.c.jitter > 0)),
        clock(tx),
    )
    jitters = {row.id: row.jitter for row in jittered}
    tasks, starts = await _tasks(tx, [row.task_id for row in rows])
    points = []
    for row in rows:
        task = tasks.get(row.task_id)
        start = _started(task, starts) or (now if task is not None and not task.state.final else None)
        if start is not None:
            due = delayed(row.schedule, row.tick, jitters.get(row.schedule, 0.0))
            points.append((due, max((start - due).total_seconds(), 0.0)))
    return sorted(points)


@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """The schedule that submitted a task.

    Args:
        manual: True if an operator ran the schedule.
        overlap: its overlap policy; None if the schedule no longer exists.
    """

    id: str
    tick: datetime
    manual: bool
    overlap: str | None


async def schedule_of(tx: Transaction, task_id: int) -> TaskSchedule | None:
    """Return the schedule that submitted a task; None if none did."""
    tick, schedule = tx.tables.tick, tx.tables.schedule
    joined = tick.outerjoin(schedule, schedule.c.id == tick.c.schedule)
    statement = sa.select(tick.c.schedule, tick.c.tick, tick.c.outcome, schedule.c.overlap).select_from(joined)
    for row in await tx.rows(statement.where(tick.c.task_id == task_id)):
        return TaskSchedule(row.schedule, row.tick, row.outcome == TickOutcome.MANUAL, row.overlap)
    return None
