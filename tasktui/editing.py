"""What an edit would set, read from what was typed into a form, and what would follow from it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from runner import cells
from runner.errors import InvalidEdit, RunnerError
from runner.redaction import redacted
from runner.store.intervene import KEEP, Changes
from runner.store.observe import Story, forecast
from runner.times import parse_duration, parse_moment
from tasktui.render import block, line

NONE = "none"
"""Typed to give a value back to the handler's, or to have no key."""

MOST_RUNS = 4
"""Next runs that a preview lists."""


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


def entries(story: Story, zone: tzinfo) -> list[Entry]:
    """The lines of the form for a task as it was read."""
    task = story.task
    payload, closed = _payload(story.payload)
    return [
        Entry("run_at", "Run at", "", f"{cells.exact(task.run_at, story.at, zone)}; now, +15m, 14:30"),
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
    told = [f"{name.replace('_', ' ')}: {_value(value, story.at, zone)}" for name, value in given.items()]
    task = replace(story.task, **{name: given[name] for name in ("run_at", "max_attempts") if name in given})
    plan = story.retry if wanted.retry is KEEP else wanted.retry
    runs = forecast(task, plan, story.at)
    if runs:
        shown = ", ".join(cells.distance(run, story.at) for run in runs[:MOST_RUNS])
        told.append(f"runs, if every attempt fails: {shown}{' ...' if len(runs) > MOST_RUNS else ', then dead'}")
    return told


def _value(value: Any, at: datetime, zone: tzinfo) -> str:
    return cells.exact(value, at, zone) if isinstance(value, datetime) else line(NONE if value is None else value)


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
    return text


def _payload(text: str) -> tuple[str, str]:
    """The payload on one line, and why it cannot be edited."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "", "it cannot be read as JSON"
    masked = redacted(value)
    shown = json.dumps(masked, ensure_ascii=False)
    if masked != value:
        return line(shown), "it holds secrets, which are masked here"
    if block(shown) != shown or "\n" in shown:
        return line(shown), "it holds characters that cannot be shown"
    return shown, ""
