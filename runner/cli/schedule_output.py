"""The output of `runner schedules`: the list, one schedule with its runs, and previews of ticks."""

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from runner.cli.output import TableColumn, plain, print_line, print_pairs, print_table, print_title
from runner.model.schedule import SPEC_COLUMNS, TickOutcome, overlap_effect
from runner.model.task import Shown
from runner.policy.schedule import describe
from runner.queries.schedules import ScheduleRow, ScheduleRun
from runner.text import formatting
from runner.text.redact import mask
from runner.text.sanitize import count_noun
from runner.text.times import format_moment

COLUMNS = (
    TableColumn("SCHEDULE", no_wrap=True),
    TableColumn("EVERY"),
    TableColumn("NEXT", right=True, no_wrap=True),
    TableColumn("LAST 12", no_wrap=True),
    TableColumn("LATE", right=True),
    TableColumn("TOOK", right=True),
    TableColumn("NOTE"),
)

RUN_COLUMNS = (
    TableColumn("TICK", no_wrap=True),
    TableColumn("TASK", right=True),
    TableColumn("STATE", no_wrap=True),
    TableColumn("LATE", right=True),
    TableColumn("TOOK", right=True),
    TableColumn("ATTEMPT", right=True),
    TableColumn("HOST"),
)

SIGNS = {TickOutcome.SKIPPED: "◇", TickOutcome.MISSED: "‖"}
"""Signs of ticks without a task."""


def print_schedules(rows: Sequence[ScheduleRow], starts: Sequence[tuple[datetime, float]], at: datetime) -> None:
    """Print a table of schedules, and the lateness of their runs."""
    if not rows:
        print_line("There are no schedules. Declare one with @schedule, or: runner schedules add ID HANDLER --every 5m")
        return
    print_table(COLUMNS, [_cells(row, at) for row in rows])
    seconds = sorted(late for _, late in starts)
    if seconds:
        half, most = seconds[len(seconds) // 2], seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)]
        figures = f"p50 {formatting.duration(half)}, p99 {formatting.duration(most)}"
        print_line(f"start lateness of {count_noun(len(seconds), 'run')} in 24 h: {figures}", style="dim")


def _cells(row: ScheduleRow, at: datetime) -> list[str]:
    last = next((run for run in row.runs if run.task is not None), None)
    late = row.lateness(at) or (last.late if last else None)
    return [
        row.id,
        describe(row.spec.rule) + (f" {row.spec.timezone}" if row.spec.timezone != "UTC" else ""),
        next_of(row, at),
        "".join(sign_of(run) for run in reversed(row.runs)),
        formatting.duration(late),
        formatting.duration(last.task.duration if last and last.task else None),
        note_of(row, at),
    ]


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
        ("jitter", formatting.duration(row.spec.jitter or None)),
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
        print_table(RUN_COLUMNS, [_run_cells(run, zone) for run in row.runs])
    else:
        print_line("It has not run.", style="dim")


def _run_cells(run: ScheduleRun, zone: tzinfo) -> list[str]:
    task = run.task
    state = formatting.state(task.shown) if task else run.outcome if run.task_id is None else "pruned"
    return [
        format_moment(run.tick, zone),
        formatting.text(run.task_id),
        state,
        formatting.duration(run.late),
        formatting.duration(task.duration if task else None),
        formatting.attempts(task.attempt, task.max_attempts) if task else formatting.NOTHING,
        formatting.text(task.host if task else None),
    ]


def print_preview(ticks: Sequence[datetime], timezone: str, at: datetime, count: int = 10) -> None:
    """Print the next ticks in the time zone of the schedule."""
    for tick in ticks[:count]:
        print_line(f"  {format_moment(tick, ZoneInfo(timezone))}  {formatting.distance(tick, at)}")


def schedule_document(row: ScheduleRow) -> dict[str, Any]:
    """A schedule as JSON values."""
    document: dict[str, Any] = {"id": row.id} | {name: getattr(row.spec, name) for name in SPEC_COLUMNS}
    document |= {
        "next": list(row.upcoming),
        "last_tick": row.last_tick,
        "paused": plain(row.pause) if row.pause else None,
        "module": row.module,
        "edited": list(row.edited),
        "error": row.error,
        "version": row.version,
        "runs": [_run_document(run) for run in row.runs],
    }
    return document


def _run_document(run: ScheduleRun) -> dict[str, Any]:
    late: timedelta | None = run.late
    return {
        "tick": run.tick,
        "outcome": run.outcome,
        "task": run.task_id,
        "state": run.task.shown.value if run.task else None,
        "runner": run.runner_id,
        "late": late,
        "took": run.task.duration if run.task else None,
    }
