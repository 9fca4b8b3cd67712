"""The panels of one task: headline, sentence, facts, attempts, error, payload, dependencies."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from textwrap import wrap
from typing import TypeAlias

from runner.model.sealed import read_sealed
from runner.model.step import error_of
from runner.model.task import FINAL, Priority, Shown, State
from runner.queries.task.attempts import Attempt, checkpoint_lines
from runner.queries.task.detail import TaskDetail, task_fields
from runner.queries.task.steps import signal_lines
from runner.queries.task.timeline import timeline
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from runner.text.formatting import SIGNS
from runner.text.redact import decode, mask
from runner.text.runner_name import process_name
from runner.text.sanitize import count_noun, one_line
from tasktui.render.code import error_rows, payload_rows
from tasktui.render.plot import Span, gauge, time_axis
from tasktui.render.render import cut_middle, fitted, line
from tasktui.render.rows import BLANK, Part, Row, ends, fit, handler, heading, inset, opening, pill, rule, width_of
from tasktui.render.theme import draws_ascii

MOST_ATTEMPTS = 8
"""Attempts of the chart: the last ones."""

MOST_PLANNED = 3
FOLDED_ROWS = 14
"""Rows of a folded payload."""

LEGEND = 26
"""Cells before the bars of the attempts, besides the names of their runners."""

Bar: TypeAlias = tuple[Row, str, Row]
"""The cells of an attempt before the name of its runner, the name, and the cells after it."""


def headline(detail: TaskDetail, width: int) -> Row:
    """State, id, handler and key; the version at the right."""
    task = detail.task
    left = [
        pill(task.shown),
        (f"  {task.id}  ", "bold strong"),
        *handler(task.handler, min(40, len(line(task.handler)))),
    ]
    key: list[Part] = [(f"  {line(task.key, 60)}", "strong")] if task.key else []
    return ends([(" ", ""), *left, *key], [(f"version {task.version} ", "faint")], width)


def sentence(detail: TaskDetail) -> list[Part]:
    """The state of a task in one sentence: the main clause, and the cause."""
    task, at = detail.task, detail.at
    failures, error = len(detail.attempts), formatting.brief(detail.error)
    failed = f" {count_noun(failures, 'attempt')} failed: {error}" if failures and error else ""
    if task.state.final:
        return _ending(detail, error if task.shown is not Shown.SUCCEEDED else failed.strip())
    if task.state is State.WAITING and (obstacle := _obstacle(detail)):
        return [(f"{_due(task, at)}, but held back: ", "bold strong"), (obstacle, "text")]
    if (pending := detail.pending) is not None:
        state = line(pending.state(at))
        return [(f"{state[:1].upper()}{state[1:]}.", "strong"), (f" I ends the {pending.kind}.", "muted")]
    since, where = formatting.since(task.relevant_time, at), _location(detail)
    attempt = formatting.attempts(task.attempt, task.max_attempts).replace("/", " of ")
    again = "again " if task.shown is Shown.RETRYING else ""
    progress = detail.dependencies.progress or "unknown"
    waits = detail.suspicion or "It waits for a free runner or a limit; w explains."
    main, more = {
        Shown.RUNNING: _running(detail, f"{since} on {where}, attempt {attempt}", failed),
        Shown.LOST: ("Its runner is lost.", f" {where} is silent; a live runner rescues the task."),
        Shown.READY: (f"{_due(task, at)}.", f" {waits}{failed}"),
        Shown.BLOCKED: ("Waits for other tasks: ", progress),
    }.get(task.shown, (f"Runs {again}{formatting.distance(task.run_at, at)}.", failed))
    return [(main, "strong"), (more, "muted")]


def _running(detail: TaskDetail, run: str, failed: str) -> tuple[str, str]:
    if detail.has_ended:
        return f"Ended, its outcome is not written: started {run.replace(' on ', ' ago on ', 1)}.", failed
    requested = "; termination requested" if detail.task.cancel_requested else ""
    return f"Running for {run}{requested}.", failed


def summary(detail: TaskDetail, width: int) -> list[Row]:
    """The sentence in one row, or the cause in rows of its own."""
    main, (cause, role) = sentence(detail)
    if width_of([main, (cause, role)]) + 2 <= width:
        return inset([[main, (cause, role)]])
    return inset([[main], *([(text, role)] for text in wrap(cause.strip(), width - 2))])


def _ending(detail: TaskDetail, reason: str) -> list[Part]:
    task = detail.task
    took = f" in {formatting.duration(task.duration)}" if task.duration is not None else ""
    verb = {Shown.SUCCEEDED: "Succeeded", Shown.DEAD: "Died"}.get(task.shown, "Cancelled")
    attempt = formatting.attempts(task.attempt, task.max_attempts).replace("/", " of ")
    text = f"{verb} {formatting.since(task.finished_at, detail.at)} ago{took}, attempt {attempt}"
    sign = ":" if reason and task.shown is Shown.CANCELLED else "."  # An error is a text of its own.
    return [(f"{text}{sign}", "strong"), (f" {reason}", "muted")]


def _location(detail: TaskDetail) -> str:
    return _runner_of(detail)


def _due(task: TaskRow, at: datetime) -> str:
    if task.run_at is None or task.run_at > at:
        return f"Due {formatting.distance(task.run_at, at)}"
    return f"Due for {formatting.since(task.run_at, at)}"


def _obstacle(detail: TaskDetail) -> str:
    """The pause or the open breaker that holds a task back; a breaker only one that is due."""
    for name, pause in (("queue", detail.queue_pause), ("handler", detail.handler_pause)):
        if pause is not None:
            target = detail.task.queue if name == "queue" else detail.task.handler
            why = f": {line(pause.why, 60)}" if pause.why else ""
            return f"{name} {line(target, 40)} is paused by {line(pause.by, 30)}{why}"
    task, breaker = detail.task, detail.breaker
    if breaker is None or (task.run_at is not None and task.run_at > detail.at):
        return ""
    probe = f"Next probe in {formatting.age(breaker.next_in)}." if breaker.next_in > 0 else "It probes now."
    return f"the breaker of {line(task.handler, 40)} is open. {probe}"


def facts(detail: TaskDetail, zone: tzinfo, width: int) -> list[Row]:
    """The fields of a task in columns; the headline has the others."""
    task, skipped = detail.task, {"task", "state", "handler", "key", "progress"}
    fields = [("queue", line(task.queue, 60)), ("priority", f"{task.priority} of {Priority.HIGHEST}")]
    others = ((name, line(value).replace(" UTC (+00:00)", " UTC")) for name, value in task_fields(detail, zone))
    fields += [field for field in others if field[0] not in skipped]
    columns = 1 if width < 98 else 2 if width < 178 else 3
    each = width // columns
    short = [field for field in fields if len(field[1]) <= each - 16]
    long = [field for field in fields if len(field[1]) > each - 16]
    height = -(-len(short) // columns)
    rows: list[Row] = []
    for index in range(height):
        row: list[Part] = []
        for name, value in short[index::height]:
            row += fit([(f"  {name:<13}", "muted"), (value, "text")], each)
        rows.append(row)
    return [*rows, *(fit([(f"  {name:<13}", "muted"), (value, "text")], width) for name, value in long)]


def line_of_facts(detail: TaskDetail, width: int) -> Row:
    """The most important fields of a task in one line, for a narrow screen."""
    task, at = detail.task, detail.at
    by = f" by {line(detail.submitted_by, 30)}" if detail.submitted_by else ""
    fields = {
        "queue": line(task.queue, 30),
        "attempts": formatting.attempts(task.attempt, task.max_attempts).replace("/", " of "),
        "submitted": f"{formatting.since(task.submitted_at, at)} ago{by}",
        "timeout": formatting.age(detail.timeout) if detail.timeout is not None else "",
    }
    parts: list[Part] = []
    for name, value in fields.items():
        more = [(f"  {name} ", "muted"), (value, "text")] if value else []
        parts += more if width_of([*parts, *more]) <= width else []
    return parts


def attempts(detail: TaskDetail, zone: tzinfo, width: int) -> list[Row]:
    """The attempts as bars over time: failed, succeeded, running, held and planned ones."""
    failed, planned = detail.attempts[-MOST_ATTEMPTS:], detail.next_runs[:MOST_PLANNED]
    if not failed and detail.task.state is not State.RUNNING:
        return []
    longest = max(map(len, [*map(_runner_of, failed), _runner_of(detail)]))
    names = max(10, min(longest + 1, width // 6))
    legend = LEGEND + names
    span, room = _span_of(detail, failed, planned, zone), width - legend - 7
    own, source = line(detail.handler_retry, 40) if detail.handler_retry else "", detail.source("retry")
    of_handler = f"retry plan {own}, from {source}" if own else f"retry plan of {source}"
    plan = f"retry plan {line(detail.retry)}" if detail.retry else of_handler
    bars = [*_failed(detail, failed, span, room), *_latest(detail, failed, span, room)]
    bars += _planned(detail, planned, span, room)
    rows = [[*start, *fit(cut_middle([(name, "muted")], names - 1), names), *rest] for start, name, rest in bars]
    axis = time_axis(span, room, "", now="")
    return [rule([heading("ATTEMPTS")], width, [(plan, "muted")]), *rows, [(" " * legend, ""), *axis[1:]]]


def _runner_of(run: Attempt | TaskDetail) -> str:
    """The name of the runner of an attempt."""
    host = run.task.host if isinstance(run, TaskDetail) else run.host
    return process_name(host, run.pid) if host else ""


def _span_of(detail: TaskDetail, failed: Sequence[Attempt], planned: Sequence[datetime], zone: tzinfo) -> Span:
    """The time of the bars. The axis of a task that has ended ends there, so that its bars keep their width."""
    task, at = detail.task, detail.at
    begins = [one.started_at or one.ended_at for one in failed]
    begin = min([moment for moment in (*begins, task.claimed_at) if moment], default=at)
    ends = [one.ended_at for one in failed if one.ended_at]
    last = max([(task.finished_at if task.state in FINAL else None) or at, *planned, *ends])
    margin = max((last - begin) * 0.04, timedelta(seconds=1))
    return Span(begin - margin, last + margin, zone)


def _failed(detail: TaskDetail, failed: Sequence[Attempt], span: Span, room: int) -> Iterator[Bar]:
    before = None
    for one in failed:
        bar = _bar(span, room, (before, one.started_at, one.ended_at), "dead", detail.at)
        took = formatting.duration(detail.run_time(one))
        yield _attempt(one.attempt, Shown.DEAD, "failed", _runner_of(one), took, bar)
        before = one.ended_at


def _latest(detail: TaskDetail, failed: Sequence[Attempt], span: Span, room: int) -> Iterator[Bar]:
    """The attempt that succeeded or runs, or the wait of one that is due and held back."""
    task, at = detail.task, detail.at
    before = failed[-1].ended_at if failed else None
    if task.state is State.SUCCEEDED and task.claimed_at and task.finished_at:
        bar = _bar(span, room, (before, task.claimed_at, task.finished_at), "succeeded", at)
        took = formatting.duration(task.finished_at - task.claimed_at if task.duration is None else task.duration)
        yield _attempt(task.attempt, Shown.SUCCEEDED, "succeeded", _runner_of(detail), took, bar)
    if task.state is State.RUNNING:
        bar = _bar(span, room, (before, task.claimed_at, at), "running", at)
        took = formatting.since(task.claimed_at, at)
        yield _attempt(task.attempt, Shown.RUNNING, "running", _runner_of(detail), took, bar)
    if task.state is State.WAITING and task.run_at is not None and task.run_at < at and _obstacle(detail):
        due, now = (min(max(span.column(each, room), 0), room) for each in (task.run_at, at))
        held_bar: list[Part] = [(" " * due, ""), ("━" * (now - due), "retrying"), ("┊" * (now < room), "accent")]
        yield _attempt(task.attempt + 1, Shown.RETRYING, "held", "", formatting.since(task.run_at, at), held_bar)


def _planned(detail: TaskDetail, planned: Sequence[datetime], span: Span, room: int) -> Iterator[Bar]:
    before = detail.at
    for number, moment in enumerate(planned, detail.task.attempt + 1):
        bar = _bar(span, room, (before, moment, None), "accent", detail.at)
        planned_at = formatting.short_clock(moment, detail.at, span.zone)
        yield _attempt(number, Shown.SCHEDULED, "planned", "", planned_at, bar)
        before = moment


def _attempt(number: int, shown: Shown, word: str, name: str, took: str, bar: Sequence[Part]) -> Bar:
    start: Row = [(f" {number:>3} ", "muted"), (f"{SIGNS[shown]} {word:<10}", str(shown))]
    return start, name, [(f"{took:>8} ", "text"), ("│", "line"), *bar]


def _bar(
    span: Span, width: int, times: tuple[datetime | None, datetime | None, datetime | None], role: str, at: datetime
) -> list[Part]:
    """A wait, then a run; a diamond for a planned one, and a line at the current time."""
    cells: list[Part] = [(" ", "")] * width
    now = span.column(at, width)
    if 0 <= now < width:
        cells[now] = ("┊", "accent")
    before, begin, end = (
        None if moment is None else min(max(span.column(moment, width), 0), width - 1) for moment in times
    )
    if before is not None and begin is not None:
        cells[before + 1 : begin] = _wait(times, begin - before - 1)
    if begin is not None and end is None:
        cells[begin] = ("◆" if draws_ascii() else "◇", role)  # In ASCII, the second one looks like a run.
    elif begin is not None and end is not None:
        for place in range(begin, max(end, begin) + 1):
            cells[place] = ("█", role)
    return cells


def _wait(times: tuple[datetime | None, ...], width: int) -> list[Part]:
    """A dotted line with the length of the wait, if that has room."""
    length = times[1] - times[0] if times[0] and times[1] else timedelta(0)
    text = f" wait {formatting.age(length)} "
    left = (width - len(text)) // 2
    if left < 2:
        return [("┄", "faint")] * max(0, width)
    return [("┄", "faint")] * left + [(sign, "muted") for sign in text] + [("┄", "faint")] * (width - left - len(text))


def error(detail: TaskDetail, width: int, *, reveal: bool, unfold: bool) -> list[Row]:
    """The last error, with its traceback, below its title."""
    rows = trouble(detail, width - 2, reveal=reveal, unfold=unfold)
    if not rows:
        return []
    number = f" OF ATTEMPT {detail.attempts[-1].attempt}" if detail.attempts else ""
    group = opening("4", "its failure group") if detail.attempts else []
    return [rule([heading(f"ERROR{number}")], width, group), *inset(rows)]


def trouble(detail: TaskDetail, width: int, *, reveal: bool, unfold: bool) -> list[Row]:
    """The last error, with its traceback."""
    if detail.attempts:
        last = detail.attempts[-1]
        decision: list[Row] = [[(line(last.rule, width), "muted")]] if last.rule else []
        rows = error_rows(last.error_type, last.message, last.traceback, width, reveal=reveal, unfold=unfold)
        return [*decision, *rows]
    if detail.task.remark and (error := error_of(detail.error)):
        kind, _, message = error.partition(": ")
        return error_rows(kind, message, None, width, reveal=reveal, unfold=unfold)
    return []


def payload(detail: TaskDetail, width: int, *, reveal: bool, unfold: bool) -> list[Row]:
    """The payload, and the result and the headers if there are any."""
    rows: list[Row] = []
    most = None if unfold else FOLDED_ROWS
    for name in ("payload", "result", "headers"):
        stored = getattr(detail, name)
        value = decode(stored, reveal=reveal)
        if value is not None:
            hidden = decode(stored) != decode(stored, reveal=True)
            note = "" if not hidden else "secrets shown, v hides" if reveal else "redacted, v reveals"
            note = "v decrypts with the key" if read_sealed(stored) is not None else note
            rows += [BLANK] if rows else []
            notes: list[Part] = [(note, "faint")] if note else []
            rows += [rule([heading(name.upper())], width, notes), *inset(payload_rows(value, width - 2, most))]
    return rows


def dependencies(detail: TaskDetail, width: int) -> list[Row]:
    """The tasks that the task waits for, and its dependents."""
    tree = detail.dependencies
    rows: list[Row] = []
    for title, lines in tree.sections():
        rows += [BLANK] if rows else []
        rows.append(rule([heading(line(title).upper())], width))
        rows += [fit([("  ", ""), (line(text), "text")], width) for text in lines]
    return rows


def history(detail: TaskDetail, zone: tzinfo, width: int, *, reveal: bool) -> Iterator[Row]:
    """Every event of the task in order."""
    yield rule([heading("TIMELINE")], width)
    for event in timeline(detail, reveal=reveal, zone=zone):
        when = formatting.distance(event.at, detail.at) if event.at else ""
        yield fit([(f"{when:>13}  ", "faint"), (line(event.text), "text")], width)
        role = "dead" if event.kind == "attempt" else "muted"
        for part in event.details:
            yield fit([(" " * 15, ""), (line(part), role)], width)


def progress(detail: TaskDetail, width: int) -> list[Row]:
    """The progress of the attempt as a bar, with the figures that the handler reported."""
    if detail.progress is None:
        return []
    shown = detail.progress.describe(detail.at, running=detail.task.state is State.RUNNING)
    share = detail.progress.done / detail.progress.total if detail.progress.total else 0.0
    bar = gauge([(share, "running")], max(10, min(width // 2, width - len(line(shown)) - 5)))
    return [fit([("  ", ""), *bar, (f"  {line(shown)}", "text")], width)]


def steps(detail: TaskDetail, width: int, *, reveal: bool) -> list[Row]:
    """The steps of a task, and the signals for it that it has not received."""
    if not detail.steps and not detail.signals:
        return []
    failed = sum(step.has_failed for step in detail.steps)
    done = sum(step.done_at is not None and not step.has_failed for step in detail.steps)
    figure: list[Part] = [(f"{done} of {len(detail.steps)} done", "muted")]
    figure += [(f", {failed} failed", "dead")] if failed else []
    rows: list[Row] = [rule([heading("STEPS")], width, figure)]
    names = min(max((len(line(step.name)) for step in detail.steps), default=0), 40)
    for step in detail.steps:
        pending = Shown.RETRYING if step.has_failed else Shown.SCHEDULED
        shown = pending if step.done_at is None else Shown.DEAD if step.has_failed else Shown.SUCCEEDED
        start: list[Part] = [(f" {step.number or '':>3} ", "muted"), (f"{SIGNS[shown]} ", str(shown))]
        text = line(step.text(detail.at, reveal=reveal))
        rows.append(fit([*start, (fitted(line(step.name), names + 2), "text"), (text, "muted")], width))
    unread = [signal for signal in detail.signals if signal.received_at is None]
    rows += [
        fit([("     signal ", "muted"), (text, "text")], width)
        for text in signal_lines(unread, detail.at, reveal=reveal)
    ]
    return rows


def checkpoints(detail: TaskDetail, width: int, *, reveal: bool) -> list[Row]:
    """The checkpoints of a task."""
    if not detail.checkpoints:
        return []
    stored = checkpoint_lines(detail.checkpoints, detail.at, reveal=reveal)
    return [rule([heading("CHECKPOINTS")], width), *(fit([(f"  {text.strip()}", "text")], width) for text in stored)]


def log(detail: TaskDetail, zone: tzinfo, width: int, *, reveal: bool) -> list[Row]:
    """The last log lines of a task."""
    rows: list[Row] = [rule([heading("LOG")], width, [("last lines", "muted")])] if detail.log else []
    times = [formatting.clock(row.at, detail.at, zone, seconds=True) if row.at else "" for row in detail.log]
    room = max(map(len, times), default=0)  # the lines of other days have a date
    for row, when in zip(detail.log, times, strict=True):
        role = {"warning": "retrying", "error": "dead", "critical": "dead"}.get(row.level, "muted")
        text = one_line(mask(row.line, reveal=reveal))
        rows.append(fit([(f"  {when:>{room}}  ", "faint"), (f"{line(row.level, 8):<9}", role), (text, "text")], width))
    return rows
