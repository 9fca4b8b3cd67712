"""What an edit would set, read from what was typed into a form, and what would follow from it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from decimal import Decimal
from math import inf
from typing import Any, NamedTuple

from runner.errors import InvalidEdit, RunnerError
from runner.people import cells
from runner.people.redaction import decoded, redacted
from runner.people.times import format_zone, parse_duration, parse_moment
from runner.store.intervene import KEEP, Changes, objection
from runner.store.observe import Story, TaskRow, forecast
from runner.task import Shown, State
from tasktui.draw.render import block, line

NONE = "none"
"""Typed to give a value back to the handler's, or to have no key."""

MOST_RUNS = 6
"""Next runs that a preview lists one by one."""

LONGEST_FORECAST = 20
"""A forecast that is as long as this may have been cut off."""


class Entry(NamedTuple):
    """A line of the form.

    Args:
        name: of the column.
        label: beside it.
        value: as it stands, as text.
        hint: shown when it is empty.
        closed: why it cannot be edited; empty when it can.
    """

    name: str
    label: str
    value: str
    hint: str = ""
    closed: str = ""


def runs_again(story: Story) -> bool:
    """Tell whether an edit of the task runs it again: it is dead or cancelled."""
    return objection("requeue", story.task) is None


def entries(story: Story, zone: tzinfo) -> list[Entry]:
    """The lines of the form for a task as it was read."""
    task = story.task
    due = "as soon as it is saved" if runs_again(story) else cells.exact(task.run_at, story.at, zone)
    payload, closed = _payload(story.payload)
    return [
        Entry("run_at", "Run at", "", f"{due}; now, +15m, 14:30"),
        Entry("max_attempts", "Max attempts", str(task.max_attempts or NONE)),
        Entry("retry", "Retry plan", line(story.retry or NONE)),
        Entry("priority", "Priority", str(task.priority)),
        Entry("timeout", "Timeout", NONE if story.timeout is None else f"{story.timeout:g}s"),
        Entry("key", "Key", line(task.key or NONE)),
        Entry("payload", "Payload", payload, closed=closed),
    ]


def changes(typed: Mapping[str, str], story: Story, zone: tzinfo) -> Changes:
    """Read what was typed; what was not touched stays.

    Args:
        typed: texts by the names of entries.
        story: of the task as the form showed it.
        zone: in which times without an offset are meant.

    Raises:
        InvalidInput: a text is not understood.
    """
    given = touched(typed, story, zone)
    return Changes(**{name: _read(name, text, story.at, zone) for name, text in given.items()})


def touched(typed: Mapping[str, str], story: Story, zone: tzinfo) -> dict[str, str]:
    """What was typed into lines of the form that can be edited, where it is not what stood there before."""
    return {
        entry.name: typed[entry.name].strip()
        for entry in entries(story, zone)
        if not entry.closed and typed.get(entry.name, entry.value).strip() not in ("", entry.value)
    }


class Moved(NamedTuple):
    """What became of a task while somebody typed.

    Args:
        lines: what differs, safe to show.
        now: the values of the form by the names of entries, as they stand now.
    """

    lines: list[str]
    now: dict[str, str]


def moved_on(before: Story, after: Story, zone: tzinfo) -> Moved:
    """Tell what differs between a task as it was seen and as it is; what is typed now is compared with that."""
    old, new = ({entry.name: entry for entry in entries(story, zone)} for story in (before, after))
    shown = {"State": (before.task.shown, after.task.shown), "Attempts": (before.task.attempt, after.task.attempt)}
    shown["Run at"] = (cells.exact(before.task.run_at, after.at, zone), cells.exact(after.task.run_at, after.at, zone))
    shown |= {entry.label: (entry.value, new[name].value) for name, entry in old.items() if entry.value}
    differs = [f"  {label}: {line(was)} -> {line(is_now)}" for label, (was, is_now) in shown.items() if was != is_now]
    title = "Nothing was saved: it has changed meanwhile. Once more, ctrl+s sets what you typed:"
    return Moved([title, *(differs or ["  nothing that this form shows"])], {name: new[name].value for name in new})


def preview(typed: Mapping[str, str], story: Story, zone: tzinfo) -> list[str]:
    """Say what would follow from what was typed, or what is wrong with it.

    Args:
        typed: texts by the names of entries.
        story: of the task as the form showed it.
        zone: in which times are shown.
    """
    try:
        wanted = changes(typed, story, zone)
    except RunnerError as error:
        return [str(error)]
    given = wanted.given()
    if not given:
        return ["nothing is changed yet"]
    told = [line(text) for name, value in given.items() for text in _difference(name, value, story, zone)]
    task = story.task
    if runs_again(story):
        told.append(f"it is {task.state}: saving runs it again, with all its attempts")
        task = replace(task, shown=Shown.READY, attempt=0, run_at=story.at)
    task = replace(task, **{name: given[name] for name in ("run_at", "max_attempts") if name in given})
    plan = story.retry if wanted.retry is KEEP else wanted.retry
    return told + _runs(forecast(task, plan, story.at), task, story.at, zone)


def _difference(name: str, value: Any, story: Story, zone: tzinfo) -> list[str]:
    """A value as it is and as it will be; of a payload only what differs."""
    label = name.replace("_", " ")
    if name == "payload":
        return [f"{label}: {text}" for text in payload_differences(story.payload, value)] or [f"{label}: written anew"]
    if isinstance(value, datetime):
        return [f"{label}: {cells.exact(value, story.at, zone)}"]
    before = getattr(story, name) if name in ("retry", "timeout") else getattr(story.task, name)
    used = f"; {story.task.attempt} used" if name == "max_attempts" else ""
    return [f"{label}: {_named(before)} -> {_named(value)}{used}"]


def payload_differences(before: str, after: str) -> list[str]:
    """What differs between two payloads, by name, secrets masked: `n: 1 -> 2`, `+ to: "ana"`, `- old: true`."""
    old, new = (found if isinstance(found := decoded(text), dict) else {} for text in (before, after))
    told = []
    for name in {**old, **new}:
        was, is_now = (json.dumps(values.get(name), ensure_ascii=False) for values in (old, new))
        if name not in new:
            told.append(f"- {name}: {was}")
        elif name not in old:
            told.append(f"+ {name}: {is_now}")
        elif was != is_now:
            told.append(f"{name}: {was} -> {is_now}")
    return told


def _runs(runs: Sequence[datetime], task: TaskRow, at: datetime, zone: tzinfo) -> list[str]:
    """When it will run if every attempt fails at once, to the end of its plan, in the operator's zone."""
    if not runs:
        return []
    shown = [_clock(run, at, zone) for run in runs[:MOST_RUNS]]
    if len(runs) > MOST_RUNS:
        shown.append(f"{len(runs) - MOST_RUNS} more until {_clock(runs[-1], at, zone)}")
    left = (task.max_attempts or inf) - task.attempt - (task.state is State.RUNNING)
    if len(runs) >= left:
        end = ", then dead"
    else:
        end = ", and so on" if len(runs) >= LONGEST_FORECAST else ", further ones as its handler's plan says"
    zones = dict.fromkeys(format_zone(run, zone) for run in runs)  # the clocks may change meanwhile
    return [f"runs, if every attempt fails at once: {', '.join(shown)}{end}", f"times are {', then '.join(zones)}"]


def _clock(moment: datetime, at: datetime, zone: tzinfo) -> str:
    local = moment.astimezone(zone)
    same_day = local.date() == at.astimezone(zone).date()
    return local.strftime("%H:%M:%S" if same_day else "%b %d %H:%M")


def _named(value: Any) -> Any:
    return NONE if value is None else f"{value:g}s" if isinstance(value, float) else value


def _read(name: str, text: str, at: datetime, zone: tzinfo) -> Any:
    match name:
        case "run_at":
            return parse_moment(text, at, zone)
        case "max_attempts" | "retry" | "timeout" | "key" if text == NONE:
            return None
        case "max_attempts" | "priority":
            if not text.isdecimal() or len(text) > 9:
                raise InvalidEdit(field=name, value=text, why="it must be a whole number")
            return int(text)
        case "timeout":
            return parse_duration(text).total_seconds()
        case "payload":
            return _object(text)
    return text


def _object(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEdit(field="payload", value=text[:80], why=f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidEdit(field="payload", value=text[:80], why="it must be a JSON object")
    return text


def _payload(text: str) -> tuple[str, str]:
    """The payload on one line, and why it cannot be edited."""
    try:
        value = json.loads(text, object_pairs_hook=_each_once, parse_float=_exact)
    except _Altered:
        return (
            "",
            "it holds a name twice, or a number that would not stay as it is; runner edit ID --payload sets another",
        )
    except (ValueError, RecursionError):
        return "", "it cannot be read as JSON"
    masked = redacted(value)
    shown = json.dumps(masked, ensure_ascii=False)
    if masked != value:
        return line(shown), "it holds secrets, which are masked here; runner edit ID --payload sets another one"
    if block(shown) != shown or "\n" in shown:
        return line(shown), "it holds characters that cannot be shown"
    return shown, ""


class _Altered(Exception):
    """Whoever saved this payload again would save another one."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise _Altered
    return found


def _exact(number: str) -> float:
    try:
        same = Decimal(repr(value := float(number))) == Decimal(number)
    except ArithmeticError:  # its exponent is beyond all bounds
        same = False
    if not same:
        raise _Altered
    return value
