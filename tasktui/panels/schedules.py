"""The panels of schedules: rulers of planned runs, the runs of one schedule, and how late runs start."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo

from runner.model.schedule import TickOutcome, overlap_effect
from runner.model.task import Shown
from runner.policy.schedule import describe
from runner.queries.schedules import LATE, ScheduleRow, ScheduleRun
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from runner.text.runner_name import runner_name
from runner.text.sanitize import count_noun
from tasktui.data.schedules import DAY, ScheduleBoard, planned
from tasktui.render.plot import Span, area, framed, gauge, joined, nice, time_axis, time_labels
from tasktui.render.render import cut_middle, fitted, line
from tasktui.render.rows import BLANK, Part, Row, fit, heading, opening, rule, wrapped
from tasktui.render.rows import state as state_part

NORMAL, TALL = 100, 56
"""Columns from which the screen shows figures and plots, and rows from which it shows the next day."""

HOUR = timedelta(hours=1)
DENSE = re.compile("◆{3,}")
"""Planned runs of a long ruler that touch: a line is calmer."""

LABEL_ROOM, LEAST_LABEL_ROOM = 16, 10
"""Cells between two labels of a ruler, and of a short one."""

BAR = 34
"""Cells of the bar of a run."""

HOLDER = 21
"""Cells of the name of a runner."""

FEW_RUNS = 4
"""Rows up to which a narrow screen shows the runs in one line."""

BAR_ROLES = {Shown.DEAD: "dead", Shown.RETRYING: "retrying", Shown.RUNNING: "running", Shown.LOST: "lost"}

LEAST_RUNS = 6
"""Rows of the runs below which the plots are left out."""

PLOT = 4
"""Rows of the lateness plot."""

LONGEST_NICE = 30.0
AGES = tuple(60.0 * minutes for minutes in (1, 2, 4, 6, 8, 10, 20, 30, 60, 120, 240, 480, 720, 1440))
"""Seconds up to which the axis of lateness has round seconds, and the longer ages at its top, with round halves."""

AXIS = 7
"""Cells before a plot."""

OUTCOMES = {
    TickOutcome.SKIPPED: ("◇ skipped", "muted"),
    TickOutcome.MISSED: ("‖ missed", "retrying"),
}
"""The text and role of ticks without a task."""


def ruler(row: ScheduleRow, at: datetime, length: timedelta, width: int, zone: tzinfo) -> list[Part]:
    """The planned runs of a schedule on a line; one beyond its end is named at the right.

    Args:
        at: the current time, at the left end.
        width: cells.
    """
    cells: list[Part] = [("─", "line")] * width
    role = "retrying" if row.lateness(at) is not None else "accent"
    beyond: datetime | None = None
    if row.pause is not None and row.pause.until is not None and row.pause.until <= at + length:
        _put(cells, row.pause.until, at, length, ("◇", "paused"))
    for tick in planned(row, at, length):
        if tick > at + length:
            beyond = tick
        else:
            _put(cells, max(tick, at), at, length, ("◆", role))
    if beyond is not None:
        text = f" {formatting.weekday_clock(beyond, at, zone)} ▸"
        if len(text) < width:
            cells[width - len(text) :] = [(character, "faint") for character in text]
    if length <= HOUR:
        return joined(cells)
    return [(DENSE.sub(lambda runs: "━" * len(runs[0]), text), spec) for text, spec in joined(cells)]


def _put(cells: list[Part], tick: datetime, at: datetime, length: timedelta, part: Part) -> None:
    cells[min(int((tick - at) / length * len(cells)), len(cells) - 1)] = part


def ruler_axis(at: datetime, length: timedelta, width: int, zone: tzinfo) -> list[Part]:
    """The axis of the rulers, which begins now; a label at the end moves to the left as far as its tick allows."""
    cells: list[Part] = [("─", "line")] * width
    room = LABEL_ROOM if width >= 3 * LABEL_ROOM else LEAST_LABEL_ROOM
    for label, text in [(at, "now"), *time_labels(Span(at, at + length, zone), width, room)]:
        column = int((label - at) / length * width)
        begin = max(0, min(column - len(text) // 2, width - len(text)))
        end = begin + len(text)
        around = cells[max(0, begin - 1) : end + 1]
        if column < end <= width and all(sign == "─" for sign, _ in around):
            cells[max(0, begin - 1) : end + 1] = [(" ", "")] * len(around)
            role = "bold accent" if text == "now" else "faint"
            cells[begin:end] = [(character, role) for character in text]
    return joined(cells)


def rule_of(row: ScheduleRow, length: int) -> str:
    """The rule in words, with its time zone."""
    return describe(line(row.spec.rule, length), line(row.spec.timezone, length))


def last_runs(row: ScheduleRow, width: int = 12) -> list[Part]:
    """The results of the last runs, the latest at the right."""
    parts = [_result(run) for run in reversed(row.runs[:width])]
    return [(" " * (width - len(parts)), ""), *joined(parts)] if len(parts) < width else joined(parts)


def _result(run: ScheduleRun) -> Part:
    if run.outcome == TickOutcome.MISSED:
        return ("‖", "paused")
    if run.outcome == TickOutcome.SKIPPED:
        return ("◇", "muted")
    if run.task is None:
        return ("·", "faint")
    if run.failed:
        return ("✗", "dead")
    if run.task.shown is Shown.CANCELLED:
        return ("⊘", "cancelled")
    return ("•", "succeeded") if run.task.state.final else ("•", "running")


def lower(
    board: ScheduleBoard, length: timedelta, size: tuple[int, int], room: int, ruler: tuple[int, int], zone: tzinfo
) -> list[Row]:
    """The axis of the rulers in the list, and below it what there is room for: runs, lateness, the next day.

    Args:
        size: columns and rows of the screen.
        room: rows for these panels.
        ruler: the first cell of the ruler in the list, and its width.
    """
    width, height = size
    row = board.row(board.id)
    if row is None:
        return nothing(width)
    left, cells = ruler
    axis: list[Row] = [[(" " * (left + 1), ""), *ruler_axis(board.at, length, cells - 1, zone)]]
    if width < NORMAL:
        title = rule([heading(line(row.id, 40))], width, [(rule_of(row, 30), "muted")])
        rows = [*axis, title, *wrapped(sentence(board, row, zone), width), BLANK]
        rest = room - len(rows)
        runs = _runs(board, zone, width, rest) if rest > FEW_RUNS else [brief_runs(board, zone, width)]
        return [*rows, *runs][: max(1, room)]
    tall = height >= TALL and length == HOUR
    late = lateness(board, zone, width, 2 * PLOT if tall else PLOT)
    day = next_day(board, zone, width, min(len(board.rows) + 2, 14)) if tall else []
    remaining = room - len(axis) - 1 - sum(len(part) + 1 for part in (late, day) if part)
    if remaining < LEAST_RUNS:
        late, day, remaining = [], [], room - len(axis) - 1
    rows = [*axis, BLANK, *detail(board, row, zone, width, remaining)]
    for part in (late, day):
        rows += [BLANK, *part] if part else []
    return rows[: max(1, room)]


def detail(board: ScheduleBoard, row: ScheduleRow, zone: tzinfo, width: int, room: int) -> list[Row]:
    """The runs of the schedule under the cursor, as many as there is room for."""
    queue = next((run.task.queue for run in board.runs if run.task is not None), None)
    overlap = overlap_effect(row.spec.overlap)
    where = f" in queue {line(queue, 30)}" if queue and not row.spec.broadcast else ""
    about = f"{rule_of(row, 60)}{' on every runner' if row.spec.broadcast else where}, {overlap}"
    rows: list[Row] = [rule([heading(line(row.id, 60))], width, [(about, "muted")]), sentence(board, row, zone)]
    return rows if room < 5 else [*rows, BLANK, *_runs(board, zone, width, room - 3)]


def _runs(board: ScheduleBoard, zone: tzinfo, width: int, room: int) -> list[Row]:
    if not board.runs:
        return []
    longest = max((_seconds(run, board.at) or 0.0 for run in board.runs), default=0.0)
    runner = f"{'RUNNER':<{HOLDER + 1}}" if width >= NORMAL else ""
    titles = f"  {'DUE':<12}{'STATE':<14}{'LATE':>9}{'TOOK':>9}  {'DURATION':<{bar_of(width)}}  {runner}TASK"
    rows = [_run(run, board, zone, longest, width) for run in board.runs[: max(1, room - 1)]]
    return [fit([(titles, "muted")], width), *rows]


def sentence(board: ScheduleBoard, row: ScheduleRow, zone: tzinfo) -> Row:
    """The state of a schedule in one sentence."""
    if row.error is not None:
        return [("  It cannot run: ", "bold dead"), (line(row.error), "text")]
    if row.pause is not None:
        end = f"until {formatting.clock(row.pause.until, board.at, zone)}" if row.pause.until else "until it is resumed"
        why = f": {line(row.pause.why)}" if row.pause.why else ""
        ago = formatting.since(row.pause.since, board.at)
        return [("  Paused ", "bold paused"), (f"by {line(row.pause.by)} {ago} ago, {end}{why}", "text")]
    late = row.lateness(board.at)
    if late is not None:
        waits = [run for run in row.runs if run.waits]
        due = min([run.due for run in waits] + ([row.next_at] if row.next_at else []))
        tick = formatting.weekday_clock(due, board.at, zone)
        head = f"  The run of {tick} has not started, {formatting.age(late)} late: "
        return [(head, "bold strong"), (_reason(row, waits, board.at, zone), "text")]
    when = f"Next {formatting.distance(row.upcoming[0], board.at)}." if row.upcoming else "Next after its run."
    edited = f" An operator edited {', '.join(row.edited)}." if row.edited else ""
    return [(f"  {when}", "bold strong"), (f"{_past(row.runs)}{edited}", "text")]


def _past(runs: Sequence[ScheduleRun]) -> str:
    """The results of the last ticks, and why some of them had no run."""
    last = f"of the last {len(runs)} ticks" if len(runs) > 1 else "tick"
    longest = max((run.task.duration or 0.0 for run in runs if run.task is not None), default=0.0)
    took = f" (the longest took {formatting.duration(longest)})" if longest else ""
    counts = (
        (sum(run.outcome == TickOutcome.SKIPPED for run in runs), f"skipped: the run before was not finished{took}"),
        (sum(run.outcome == TickOutcome.MISSED for run in runs), "missed: no runner was up"),
        (sum(run.failed for run in runs), "failed"),
        (sum(run.task is not None and run.task.shown is Shown.CANCELLED for run in runs), "cancelled"),
    )
    text = "".join(f" {number} {last} {result}." for number, result in counts if number)
    tasks = [run.task for run in runs if run.task is not None]
    if text or not tasks:
        return text
    return " All recent runs succeeded." if any(task.state.final for task in tasks) else " No run has ended yet."


def _reason(row: ScheduleRow, waits: Sequence[ScheduleRun], at: datetime, zone: tzinfo) -> str:
    earlier = next(
        (run for run in row.runs if run.task is not None and not run.waits and not run.task.state.final), None
    )
    if waits and earlier is not None and waits[-1].task is not None and waits[-1].task.shown is Shown.BLOCKED:
        state = earlier.task.shown if earlier.task else ""
        return f"the run of {formatting.weekday_clock(earlier.due, at, zone)} is {state}, and runs do not overlap."
    if waits:
        return "its task waits; w explains why."
    return "no runner has handled the tick; 5 lists the runners."


def _seconds(run: ScheduleRun, at: datetime) -> float | None:
    task = run.task
    if task is None:
        return None
    if task.duration is not None:
        return task.duration
    return (at - run.started_at).total_seconds() if run.started_at and not task.state.final else None


def bar_of(width: int) -> int:
    """The cells of the durations on a screen of a width."""
    return min(BAR, max(10, width - (84 if width >= NORMAL else 60)))


def _run(run: ScheduleRun, board: ScheduleBoard, zone: tzinfo, longest: float, width: int) -> Row:
    at = board.at
    due = fitted(formatting.weekday_clock(run.due, at, zone), 12)
    task = run.task
    if task is None:
        text, role = OUTCOMES.get(TickOutcome(run.outcome), ("pruned", "faint"))
        return fit([(f"  {due}", "text"), (f"{text:<14}", role)], width)
    waits = run.waits
    late = at - run.due if waits else run.late
    text, spec = ("◇ waits", "blocked") if waits and task.shown is Shown.BLOCKED else state_part(task.shown)
    seconds = _seconds(run, at)
    retries = task.shown is Shown.RETRYING
    took = f"{task.attempt} of {task.max_attempts}" if retries and task.max_attempts else _length(seconds)
    bar = gauge([((seconds or 0.0) / longest if longest else 0.0, BAR_ROLES.get(task.shown, "spark"))], bar_of(width))
    serious = late is not None and late > LATE
    return fit(
        [
            (f"  {due}", "text"),
            (fitted(text, 14), spec),
            (f"{'' if late is None else formatting.duration(late):>9}", "retrying" if serious else "muted"),
            (f"{took:>9}", "text"),
            ("  ", ""),
            *(bar if seconds is not None else [(" " * bar_of(width), "")]),
            ("  ", ""),
            *(fit(cut_middle([(_holder(task, board), "muted")], HOLDER), HOLDER + 1) if width >= NORMAL else []),
            (str(task.id), "muted"),
        ],
        width,
    )


def _holder(task: TaskRow, board: ScheduleBoard) -> str:
    """The runner of the last attempt; with its id if its process is unknown, as that of one that ended long ago."""
    if task.runner_id is None:
        return ""
    return board.runners.get(task.runner_id) or runner_name(task.runner_id, task.host)


def _length(seconds: float | None) -> str:
    return "" if seconds is None else formatting.duration(seconds)


def brief_runs(board: ScheduleBoard, zone: tzinfo, width: int) -> Row:
    """The last four runs in one line, for a narrow screen."""
    parts: list[Part] = [("  ", "")]
    for run in reversed(board.runs[:4]):
        parts.append((f"{formatting.weekday_clock(run.due, board.at, zone)} ", "muted"))
        if run.task is None:
            text, role = OUTCOMES.get(TickOutcome(run.outcome), ("pruned", "faint"))
        elif run.waits and run.task.shown is Shown.BLOCKED:
            text, role = "◇ waits", "blocked"
        else:
            sign, role = state_part(run.task.shown)
            text = f"{sign[:1]} {_length(_seconds(run, board.at))}" if run.task.state.final else sign
        parts.append((f"{text}  ", role))
    return fit(parts, width)


def lateness(board: ScheduleBoard, zone: tzinfo, width: int, height: int = PLOT) -> list[Row]:
    """How late the runs of the last day started, and at the end how late a tick is that no runner has handled."""
    p95 = board.percentile(0.95)
    if p95 is None:
        return []
    plot = width - AXIS - 1
    span = Span(board.at - DAY, board.at, zone)
    values = [0.0] * plot
    for due, late in board.starts:
        column = span.column(due, plot)
        if 0 <= column < plot:
            values[column] = max(values[column], late)
    worst = max((age for row in board.late if (age := row.lateness(board.at))), default=None)
    values[-1] = max(values[-1], worst.total_seconds() if worst else 0.0)
    figure: list[Part] = [
        (f"p95 of {count_noun(len(board.starts), 'run')} ", "muted"),
        (formatting.duration(p95), "text"),
    ]
    figure += [(", worst now ", "muted"), (formatting.age(worst), "bold retrying")] if worst else []
    most = max(values) or 1.0
    top = next((age for age in AGES if LONGEST_NICE < most <= age), nice(most))
    least = top / (8 * height)  # A short lateness beside a long one is still seen.
    values = [max(value, least) if value else 0.0 for value in values]
    limit = LATE.total_seconds()
    rows = area(values, height, lambda value: "trouble" if value > limit else "done", top=top)
    title = rule([heading("START LATENESS, LAST 24 H")], width, figure)
    return [title, *framed(rows, top, formatting.age), time_axis(span, plot)]


def next_day(board: ScheduleBoard, zone: tzinfo, width: int, room: int) -> list[Row]:
    """The next 24 hours of the schedules, for a tall screen."""
    rows = board.rows[: room - 2]
    title = rule([heading("NEXT 24 HOURS")], width, [("enter on a schedule lists its runs", "muted")])
    return [title, *rulers(rows, board.at, DAY, width, zone)]


def rulers(rows: Sequence[ScheduleRow], at: datetime, length: timedelta, width: int, zone: tzinfo) -> list[Row]:
    """Schedules by name, each with its ruler, above a shared axis."""
    name = min(24, max((len(row.id) for row in rows), default=0) + 1)
    plot = width - name - 4
    lines: list[Row] = []
    for row in rows:
        role = "muted" if row.pause else "retrying" if row.lateness(at) is not None else "text"
        lines.append([("  ", ""), (fitted(line(row.id), name), role), *ruler(row, at, length, plot, zone)])
    return [*lines, [(" " * (name + 2), ""), *ruler_axis(at, length, plot, zone)]]


def next_schedules(rows: Sequence[ScheduleRow], at: datetime, zone: tzinfo, width: int) -> list[Row]:
    """The next hour of the next schedules, for the overview."""
    title = rule([heading("NEXT SCHEDULES")], width, opening("6", "Schedules"))
    return [title, *rulers(rows, at, HOUR, width, zone)]


def count_figure(board: ScheduleBoard) -> list[Part]:
    """The number of schedules, and of those in trouble."""
    rows = board.rows
    late, paused = len(board.late), sum(row.pause is not None for row in rows)
    invalid = sum(row.error is not None for row in rows)
    parts: list[Part] = [(f"{len(rows)}", "muted")]
    parts += [(", ", "muted"), (f"{late} late", "bold retrying")] if late else []
    parts += [(f", {paused} paused", "paused")] if paused else []
    parts += [(", ", "muted"), (f"{invalid} invalid", "bold dead")] if invalid else []
    return parts


def nothing(width: int) -> list[Row]:
    """The text of a screen without schedules."""
    hint: list[Part] = [("  There are no schedules. Press ", "muted"), ("A", "bold strong")]
    hint += [(", or declare one with ", "muted"), ("@schedule", "bold strong"), (".", "muted")]
    return wrapped(hint, width)
