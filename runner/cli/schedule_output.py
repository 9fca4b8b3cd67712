"""The output of `runner schedules`: the list, one schedule with its runs, and previews of ticks."""

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

from runner.cli.output import print_line, print_pairs, print_table, print_title
from runner.model.schedule import ScheduleSpec, TickOutcome, overlap_effect
from runner.model.task import Shown
from runner.policy.schedule import describe
from runner.queries.registries import Pause
from runner.queries.schedules import ScheduleRow, ScheduleRun
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.document import Flat
from runner.text.formatting import duration
from runner.text.redact import mask
from runner.text.sanitize import count_noun
from runner.text.times import format_moment

SIGNS = {TickOutcome.SKIPPED: "◇", TickOutcome.MISSED: "‖"}
"""Signs of ticks without a task."""


def print_schedules(rows: Sequence[ScheduleRow], starts: Sequence[tuple[datetime, float]], at: datetime) -> None:
    """Print a table of schedules, and the lateness of their runs."""
    if not rows:
        print_line("There are no schedules. Declare one with @schedule, or: runner schedules add ID HANDLER --every 5m")
        return
    print_table(_columns(at), rows)
    seconds = sorted(late for _, late in starts)
    if seconds:
        half, most = seconds[len(seconds) // 2], seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)]
        figures = f"p50 {duration(half)}, p99 {duration(most)}"
        print_line(f"start lateness of {count_noun(len(seconds), 'run')} in 24 h: {figures}", style="dim")


def _columns(at: datetime) -> tuple[Column[ScheduleRow], ...]:
    return (
        Column("SCHEDULE", lambda row: row.id, fixed=True),
        Column("EVERY", _rule),
        figure("NEXT", lambda row: next_of(row, at)),
        Column("LAST 12", lambda row: map(sign_of, reversed(row.runs)), "".join, fixed=True),
        Column("LATE", lambda row: row.lateness(at) or ((run := _last(row)) and run.late), duration, right=True),
        Column("TOOK", lambda row: _took(_last(row)), duration, right=True),
        Column("NOTE", lambda row: note_of(row, at)),
    )


def _rule(row: ScheduleRow) -> str:
    return describe(row.spec.rule) + (f" {row.spec.timezone}" if row.spec.timezone != "UTC" else "")


def _last(row: ScheduleRow) -> ScheduleRun | None:
    """The last run that has a task."""
    return next((run for run in row.runs if run.task is not None), None)


def _took(run: ScheduleRun | None) -> float | None:
    return run.task.duration if run and run.task else None


def next_of(row: ScheduleRow, at: datetime) -> str:
    """The time until the next tick, for a cell."""
    if row.pause is not None:
        return "paused"
    if row.error is not None:
        return "invalid"
    late = row.lateness(at)
    if late is not None:
        return f"late {formatting.age(late)}"
    return formatting.distance(row.upcoming[0], at) if row.upcoming else "after its run"


def sign_of(run: ScheduleRun) -> str:
    """One character for a run in a row of the last ones."""
    if run.outcome in (TickOutcome.SKIPPED, TickOutcome.MISSED):
        return SIGNS[TickOutcome(run.outcome)]
    if run.task is None:
        return "·"
    return _STATE_SIGNS.get(run.task.shown, "○")


_STATE_SIGNS = {Shown.SUCCEEDED: "•", Shown.DEAD: "✗", Shown.CANCELLED: "⊘", Shown.RETRYING: "↻"}


def note_of(row: ScheduleRow, at: datetime) -> str:
    """The reason why a schedule does not tick, or how it differs from the code."""
    if row.error is not None:
        return row.error
    if row.pause is not None:
        end = f", resumes {formatting.distance(row.pause.until, at)}" if row.pause.until else ""
        return f"by {formatting.text(row.pause.by)}: {formatting.text(row.pause.why)}{end}"
    parts = [f"edited: {', '.join(row.edited)}"] if row.edited else []
    return "; ".join([*parts, *(["broadcast"] if row.spec.broadcast else [])])


def print_schedule(row: ScheduleRow, at: datetime, zone: tzinfo) -> None:
    """Print one schedule: its values, its next ticks and its last runs."""
    overlap = overlap_effect(row.spec.overlap)
    pairs = [
        ("schedule", row.id),
        ("rule", f"{row.spec.rule}  ({describe(row.spec.rule)}, {row.spec.timezone})"),
        ("handler", row.spec.handler),
        ("payload", mask(row.spec.payload)),
        ("options", mask(row.spec.options)),
        ("misfire", row.spec.misfire),
        ("overlap", f"{row.spec.overlap}: {overlap}"),
        ("jitter", duration(row.spec.jitter or None)),
        ("broadcast", "yes" if row.spec.broadcast else "no"),
        ("defined in", row.module or "this database, by an operator"),
        ("edited", ", ".join(row.edited) or formatting.NOTHING),
        ("next", next_of(row, at)),
        ("note", note_of(row, at) or formatting.NOTHING),
    ]
    print_pairs(pairs)
    if row.upcoming:
        print_title("next")
        print_preview(row.upcoming, row.spec.timezone, at)
    print_title("last runs")
    if row.runs:
        print_table(run_columns(zone), row.runs)
    else:
        print_line("It has not run.", style="dim")


def run_columns(zone: tzinfo) -> tuple[Column[ScheduleRun], ...]:
    """The columns of a run, with times of the table in a zone."""
    return (
        Column("TICK", lambda run: run.tick, lambda tick: format_moment(tick, zone), fixed=True),
        Column("TASK", lambda run: run.task_id, formatting.text, right=True),
        Column("STATE", _state, fixed=True),
        Column("LATE", lambda run: run.late, duration, right=True),
        Column("TOOK", _took, duration, right=True),
        Column("ATTEMPT", lambda run: run.task, _attempts, right=True),
        Column("HOST", lambda run: run.task and run.task.host, formatting.text),
    )


def _state(run: ScheduleRun) -> str:
    return formatting.state(run.task.shown) if run.task else run.outcome if run.task_id is None else "pruned"


def _attempts(task: TaskRow | None) -> str:
    return formatting.attempts(task.attempt, task.max_attempts) if task else formatting.NOTHING


def print_preview(ticks: Sequence[datetime], timezone: str, at: datetime, count: int = 10) -> None:
    """Print the next ticks in the time zone of the schedule."""
    for tick in ticks[:count]:
        print_line(f"  {format_moment(tick, ZoneInfo(timezone))}  {formatting.distance(tick, at)}")


class RunDocument(NamedTuple):
    """One tick of a schedule.

    Args:
        outcome: see TickOutcome.
        task: the id of its task; None if there is none.
        state: the displayed state of the task; None without a task, or if it was pruned.
        runner: the runner of a broadcast; None for other schedules.
        late: the lateness of its start; None if it has not started, or if that is unknown.
        took: seconds that the last attempt took.
    """

    tick: datetime
    outcome: str
    task: int | None
    state: Shown | None
    runner: int | None
    late: timedelta | None
    took: float | None


class ScheduleDocument(NamedTuple):
    """A schedule.

    Args:
        next: its next ticks; empty while it is paused or its definition is not valid.
        paused: the pause in force; None if it is not paused.
        module: the module whose code defines it; None for a schedule of an operator.
        edited: the values that differ from the code, because an operator edited them.
        error: why its ticks cannot be computed; None if they can.
        version: the version that an operation must present.
        runs: its last runs, the latest first.
    """

    id: str
    spec: Annotated[ScheduleSpec, Flat()]
    next: tuple[datetime, ...]
    last_tick: datetime | None
    paused: Pause | None
    module: str | None
    edited: tuple[str, ...]
    error: str | None
    version: int
    runs: list[RunDocument]


def _run_document(run: ScheduleRun, state: Shown | None) -> RunDocument:
    return RunDocument(run.tick, run.outcome, run.task_id, state, run.runner_id, run.late, _took(run))


def schedule_document(row: ScheduleRow) -> ScheduleDocument:
    """A schedule for programs."""
    runs = [_run_document(run, run.task.shown if run.task else None) for run in row.runs]
    values = (row.upcoming, row.last_tick, row.pause, row.module, row.edited, row.error, row.version)
    return ScheduleDocument(row.id, row.spec, *values, runs)
