"""The preview of an edit: the meaning of each text, with the runs before and after."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from math import inf
from typing import Any, NamedTuple

from runner.errors import InvalidEdit, RunnerError
from runner.model.task import Shown, State
from runner.operations.edit_values import KEEP, NONE, PAYLOAD_LIMIT, Changes, check_against, check_values
from runner.queries.task.detail import TaskDetail, forecast
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from runner.text.hosts import ANY_HOST
from runner.text.redact import with_secrets
from runner.text.sanitize import count_noun
from runner.text.times import format_zone
from tasktui.actions.edit_form import (
    OWN,
    changes,
    edited_texts,
    entries,
    parse_value,
    payload_differences,
    requeues,
)
from tasktui.render.plot import Span, joined, time_labels
from tasktui.render.render import line
from tasktui.render.rows import Part, Row, ends, handler

MOST_RUNS = 6
"""Maximum number of runs that a preview lists."""

LONGEST_FORECAST = 20
"""A forecast of this length may be cut off."""


class EntryMeaning(NamedTuple):
    """The meaning of a text in the form.

    Args:
        sign: a check mark for a new value, a cross for a wrong one, empty for a value that stays.
        text: the meaning in a few words, or the reason why it is wrong; sanitized.
    """

    sign: str
    text: str
    role: str

    @property
    def wrong(self) -> bool:
        """True if the text cannot be saved."""
        return self.sign == WRONG


WRONG, RIGHT = "✗", "✓"


def meanings(
    typed: Mapping[str, str], detail: TaskDetail, zone: tzinfo, payload_limit: int = PAYLOAD_LIMIT
) -> dict[str, EntryMeaning]:
    """Describe each text of the form, by entry name.

    Args:
        detail: the task as the form showed it.
        payload_limit: maximum number of bytes of a payload.
    """
    texts, meaning_by_name = edited_texts(typed, detail), {}
    for entry in entries(detail):
        if entry.name not in texts:
            meaning_by_name[entry.name] = EntryMeaning(
                "", entry.lock_reason or _unchanged(entry.name, detail, zone), "muted"
            )
            continue
        try:
            value = _checked(entry.name, texts[entry.name], detail, zone, payload_limit)
        except InvalidEdit as error:
            meaning_by_name[entry.name] = EntryMeaning(WRONG, line(error.fields["why"]), "dead")
        except RunnerError as error:
            meaning_by_name[entry.name] = EntryMeaning(WRONG, line(str(error)), "dead")
        else:
            meaning_by_name[entry.name] = EntryMeaning(RIGHT, line(_changed(entry.name, value, detail, zone)), "muted")
    return meaning_by_name


def _checked(name: str, text: str, detail: TaskDetail, zone: tzinfo, payload_limit: int) -> Any:
    """Parse a text and validate its value by the rules of the operation."""
    value = parse_value(name, text, detail.at, zone)
    if name == "payload":
        value = with_secrets(value, detail.payload)
    values = check_values(Changes(**{name: value}), payload_limit)
    if not requeues(detail):
        check_against(values, detail.task)
    return value


def _unchanged(name: str, detail: TaskDetail, zone: tzinfo) -> str:
    task = detail.task
    if name in ("run_at", "expires_at"):
        moment = task.run_at if name == "run_at" else task.expires_at
        if name == "run_at" and requeues(detail):
            return "as soon as you save"
        return "never" if moment is None else _moment(moment, detail.at, zone)
    if name == "payload":
        return "unchanged, ctrl+e opens $EDITOR"
    used = f"; {task.attempt} used" if name == "max_attempts" and not requeues(detail) else ""
    if _value(name, detail) is not None or name == "key":
        return f"unchanged{used}"
    in_force = _of_handler(name, detail)
    return f"{in_force}, from {detail.source(name)}{used}" if in_force else f"the handler's own{used}"


def _of_handler(name: str, detail: TaskDetail) -> str:
    """The handler's value of an entry, as text; empty if it is unknown."""
    if name == "max_attempts":
        return str(detail.handler_max_attempts or "")
    if name == "timeout":
        limit = detail.handler_timeout
        return "" if limit is None else formatting.age(limit) if limit else NONE
    return line(detail.handler_retry) if name == "retry" and detail.handler_retry else ""


def _value(name: str, detail: TaskDetail) -> Any:
    return getattr(detail, name) if name in ("retry", "timeout", "payload") else getattr(detail.task, name)


def _changed(name: str, value: Any, detail: TaskDetail, zone: tzinfo) -> str:
    task, before = detail.task, _value(name, detail)
    if name in ("run_at", "expires_at"):
        is_new = before is None or (name == "run_at" and requeues(detail))
        was = "" if is_new else f"; was {formatting.clock(before, detail.at, zone, seconds=True)}"
        return f"{'never' if value is None else _moment(value, detail.at, zone)}{was}"
    if name == "payload":
        number = len(payload_differences(before, value))
        return count_noun(number, "difference") if number else "reformatted"
    is_own = before is not None or name not in ("max_attempts", "retry", "timeout")
    of_handler = _of_handler(name, detail)
    in_force = f"{of_handler}, from {detail.source(name)}" if of_handler else OWN
    was = f"was {_format(before) if is_own else in_force}"
    if name == "max_attempts":
        used = 0 if requeues(detail) else task.attempt
        return f"{was}; {used} used" + (f", {value - used} left" if value is not None else "")
    return f"{was}; 9 runs first" if name == "priority" else was


def _moment(moment: datetime, at: datetime, zone: tzinfo) -> str:
    """A time with its zone and offset, and its distance: `14:17:40 CET (+01:00), in 15m`."""
    shown_zone = format_zone(moment, zone).removesuffix(" (+00:00)")
    return f"{formatting.clock(moment, at, zone, seconds=True)} {shown_zone}, {formatting.distance(moment, at)}"


DEAD = "then dead"
"""The end of a task without further attempts."""


class Outlook(NamedTuple):
    """The runs of a task if every attempt fails immediately.

    Args:
        before: the times without the edit.
        first_before: number of the first attempt without it.
        first: number of the first attempt with it.
        end: the fate after the last one, such as `then dead`.
    """

    before: tuple[datetime, ...]
    after: tuple[datetime, ...]
    first_before: int
    first: int
    end: str


def outlook(typed: Mapping[str, str], detail: TaskDetail, zone: tzinfo) -> Outlook:
    """Predict the runs before and after an edit.

    Args:
        typed: texts by entry name.
        detail: the task as the form showed it.
        zone: time zone of times without an offset.

    Raises:
        RunnerError: a text cannot be parsed.
    """
    parsed, task = changes(typed, detail, zone), detail.task
    values, running = parsed.edited(), task.state is State.RUNNING
    before, first_before = _forecast(task, detail.retry, detail), task.attempt + 1 + running
    if requeues(detail):
        task = task._replace(shown=Shown.READY, attempt=0, run_at=detail.at)
    task = task._replace(**{name: values[name] for name in ("run_at", "max_attempts") if name in values})
    retry = detail.retry if parsed.retry is KEEP else parsed.retry
    after = _forecast(task, retry, detail)
    if len(after) >= (task.max_attempts or detail.handler_max_attempts or inf) - task.attempt - running:
        end = DEAD
    else:
        end = "and so on" if len(after) >= LONGEST_FORECAST else "then by the handler's retry plan"
    return Outlook(before, after, first_before, task.attempt + 1 + running, end)


def _forecast(task: TaskRow, retry: str | None, detail: TaskDetail) -> tuple[datetime, ...]:
    """The runs of a task; only the next one of a waiting task if its maximum of attempts is unknown."""
    most = task.max_attempts or detail.handler_max_attempts
    if most is None and task.state is State.WAITING:
        return (max(task.run_at or detail.at, detail.at),)
    return forecast(task._replace(max_attempts=most), retry or detail.handler_retry, detail.at)


def preview(typed: Mapping[str, str], detail: TaskDetail, zone: tzinfo) -> list[str]:
    """Describe the result of saving the form, or the first error in it.

    Args:
        typed: texts by entry name.
        detail: the task as the form showed it.
    """
    try:
        values, runs = changes(typed, detail, zone).edited(), outlook(typed, detail, zone)
    except RunnerError as error:
        return [str(error)]
    if not values:
        return ["no changes yet"]
    lines = [line(f"payload: {text}") for text in payload_differences(detail.payload, values.get("payload"))]
    if "run_at" in values and detail.pending is not None:
        step = detail.pending
        lines.append(line(f"it {step.state(detail.at)}, also in an earlier run: I ends the {step.kind}"))
    if requeues(detail):
        lines.append(f"the task is {detail.task.state}: saving requeues it with all its attempts")
    return lines + _runs(runs, detail.at, zone)


def _runs(runs: Outlook, at: datetime, zone: tzinfo) -> list[str]:
    """Describe when the task runs if every attempt fails immediately, in the operator's zone."""
    if not runs.after:
        return []
    times = [formatting.clock(run, at, zone, seconds=True) for run in runs.after]
    if len(times) > MOST_RUNS:
        times[MOST_RUNS:] = [f"{len(times) - MOST_RUNS} more until {times[-1]}"]
    zones = dict.fromkeys(format_zone(run, zone) for run in runs.after)  # The offset may change between two runs.
    text = f"runs if every attempt fails immediately: {', '.join(times)}, {runs.end}"
    return [text, f"times in {', then '.join(zones)}"]


def _format(value: Any) -> Any:
    if value == "":
        return ANY_HOST
    return NONE if value is None else f"{value:g}s" if isinstance(value, float) else value


LABEL = 9
"""Cells of the labels of a ruler."""

ROOM = 14
"""The fewest cells at the right end of a ruler, for a run that it does not reach, and for the end."""

MARGIN = 1.08
"""Length of a ruler, in times of the distance of its last run."""


def ruler(runs: Outlook, at: datetime, zone: tzinfo, width: int) -> list[Row]:
    """Draw the runs before and after an edit on one ruler; nothing without a run.

    Args:
        at: the database's time, at the left end.
        width: cells of a row.
    """
    last = max(runs.after or runs.before, default=None)
    if last is None:
        return []
    span = Span(at, at + max((last - at) * MARGIN, timedelta(minutes=1)), zone)
    outside = [(number, run) for number, run in enumerate(runs.before, runs.first_before) if run > span.end]
    more = f" {outside[0][0]} at {formatting.clock(outside[0][1], at, zone)} >" if outside else ""
    room = max(20, width - LABEL - max(ROOM, len(more), len(runs.end) + 1))
    after = _line(runs.after, runs.first, span, room, ("◆", "bold accent"))
    rows: list[Row] = []
    if runs.before != runs.after:
        before = _line(runs.before, runs.first_before, span, room, ("◇", "muted"))
        rows.append([(f"{'before':{LABEL}}", "muted"), *before, (more, "muted")])
    role = "dead" if runs.end == DEAD else "muted"
    rows.append([(f"{'after' if rows else 'runs':{LABEL}}", "bold strong"), *after, (f" {runs.end}", role)])
    cells: list[Part] = [("─", "line")] * room
    for moment, text in time_labels(span, room):
        begin = span.column(moment, room) - len(text) // 2
        if begin > 0 and begin + len(text) < room:
            cells[begin - 1 : begin + len(text) + 1] = [(sign, "faint") for sign in f" {text} "]
    return [*rows, [(" " * LABEL, ""), *joined(cells)]]


def _line(runs: Sequence[datetime], first: int, span: Span, room: int, sign: Part) -> list[Part]:
    """The runs of one line with their numbers; a number without room is left out."""
    cells: list[Part] = [("─", "line")] * room
    columns = [span.column(run, room) for run in runs]
    for index, column in enumerate(columns):
        if not 0 <= column < room:
            continue
        following = columns[index + 1] if index + 1 < len(columns) else room
        cells[column] = sign
        text = str(first + index)
        if column + len(text) < min(following, room):
            cells[column + 1 : column + 1 + len(text)] = [(digit, "strong") for digit in text]
    return joined(cells)


SHORT = 90
"""Cells below which the title of a form is short."""


def title_row(detail: TaskDetail, width: int) -> Row:
    """The handler, the key, the attempts and the version of a task, above the entries of its form."""
    task = detail.task
    of = f" of {task.max_attempts}" if task.max_attempts else ""  # unknown before the first claim
    used = f"{task.shown}, {task.attempt}{of} attempts used"
    left = [
        *handler(task.handler, min(30, len(task.handler))),
        (f"  {line(task.key, 30) if task.key else ''}", "strong"),
    ]
    prefix = "as you saw it: " if width >= SHORT else ""
    return ends([*left, (f"  {used}", "muted")], [(f" {prefix}version {task.version}", "muted")], width)
