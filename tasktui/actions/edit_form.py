"""The edit form of a task: its entries, the changes typed into them, and a preview of the result."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from decimal import Decimal
from math import inf
from typing import Any, NamedTuple

from runner.errors import InvalidEdit, RunnerError
from runner.model.duration import parse_duration
from runner.model.task import Shown, State
from runner.operations.edit_values import KEEP, Changes
from runner.operations.targets import objection
from runner.queries.task.detail import TaskDetail, forecast
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from runner.text.operator import ANY_HOST, host_list
from runner.text.redact import decode, redact, with_secrets
from runner.text.times import format_zone, parse_moment
from tasktui.actions.question import FormField
from tasktui.render.render import block, line

NONE = "none"
"""Typed to use the handler's default, or to remove the key."""

MOST_RUNS = 6
"""Maximum number of runs that a preview lists."""

LONGEST_FORECAST = 20
"""A forecast of this length may be cut off."""


def requeues(detail: TaskDetail) -> bool:
    """True if saving an edit requeues the task: it is dead or cancelled."""
    return objection("requeue", detail.task) is None


def entries(detail: TaskDetail, zone: tzinfo) -> list[FormField]:
    """Build the entries of the form for a task."""
    task = detail.task
    run_at = "as soon as you save" if requeues(detail) else formatting.exact(task.run_at, detail.at, zone)
    payload, lock_reason = shown_payload(detail.payload)
    return [
        FormField("run_at", "Run at", "", f"{run_at}; now, +15m, 14:30"),
        FormField("max_attempts", "Max attempts", str(task.max_attempts or NONE)),
        FormField("retry", "Retry plan", line(detail.retry or NONE)),
        FormField("priority", "Priority", str(task.priority)),
        FormField("timeout", "Timeout", NONE if detail.timeout is None else f"{detail.timeout:g}s"),
        FormField("expires_at", "Expires", "", f"{_expiry(detail, zone)}; none, +1h, 18:00"),
        FormField("hosts", "Hosts", line(task.hosts or ANY_HOST)),
        FormField("key", "Key", line(task.key or NONE)),
        FormField("payload", "Payload", payload, lock_reason=lock_reason),
    ]


def _expiry(detail: TaskDetail, zone: tzinfo) -> str:
    expires_at = detail.task.expires_at
    return "never" if expires_at is None else formatting.exact(expires_at, detail.at, zone)


def changes(typed: Mapping[str, str], detail: TaskDetail, zone: tzinfo) -> Changes:
    """Parse the changed entries.

    Args:
        typed: texts by entry name.
        detail: the task as the form showed it.
        zone: time zone of times without an offset.

    Raises:
        InvalidInput: a text cannot be parsed.
    """
    texts = edited_texts(typed, detail, zone)
    parsed = {name: parse_value(name, text, detail.at, zone) for name, text in texts.items()}
    if "payload" in parsed:
        parsed["payload"] = with_secrets(parsed["payload"], detail.payload)
    return Changes(**parsed)


def edited_texts(typed: Mapping[str, str], detail: TaskDetail, zone: tzinfo) -> dict[str, str]:
    """Return the texts that differ from the current values, without read-only and empty entries."""
    return {
        entry.name: typed[entry.name].strip()
        for entry in entries(detail, zone)
        if not entry.lock_reason and typed.get(entry.name, entry.value).strip() not in ("", entry.value)
    }


class EditConflict(NamedTuple):
    """The changes that others made to a task while the form was open.

    Args:
        lines: a title and the differences, sanitized.
        values: current values by entry name.
    """

    lines: list[str]
    values: dict[str, str]


def edit_conflict(before: TaskDetail, after: TaskDetail, zone: tzinfo) -> EditConflict:
    """Compare a task as the form showed it with the task now."""
    old, new = ({entry.name: entry for entry in entries(detail, zone)} for detail in (before, after))
    values = {"State": (before.task.shown, after.task.shown), "Attempts": (before.task.attempt, after.task.attempt)}
    values["Run at"] = (
        formatting.exact(before.task.run_at, after.at, zone),
        formatting.exact(after.task.run_at, after.at, zone),
    )
    values["Expires"] = (_expiry(before, zone), _expiry(after, zone))
    values |= {entry.label: (entry.value, new[name].value) for name, entry in old.items() if entry.value}
    differences = [
        f"  {label}: {line(was)} -> {line(is_now)}" for label, (was, is_now) in values.items() if was != is_now
    ]
    title = "Nothing was saved: the task has changed. Press ctrl+s again to save your values:"
    return EditConflict(
        [title, *(differences or ["  no difference in this form"])], {name: new[name].value for name in new}
    )


def preview(typed: Mapping[str, str], detail: TaskDetail, zone: tzinfo) -> list[str]:
    """Describe the result of saving the form, or the first error in it.

    Args:
        typed: texts by entry name.
        detail: the task as the form showed it.
        zone: time zone for display.
    """
    try:
        parsed = changes(typed, detail, zone)
    except RunnerError as error:
        return [str(error)]
    values = parsed.given()
    if not values:
        return ["no changes yet"]
    lines = [line(text) for name, value in values.items() for text in _difference(name, value, detail, zone)]
    task = detail.task
    if requeues(detail):
        lines.append(f"the task is {task.state}: saving requeues it with all its attempts")
        task = replace(task, shown=Shown.READY, attempt=0, run_at=detail.at)
    task = replace(task, **{name: values[name] for name in ("run_at", "max_attempts") if name in values})
    plan = detail.retry if parsed.retry is KEEP else parsed.retry
    return lines + _runs(forecast(task, plan, detail.at), task, detail.at, zone)


def _difference(name: str, value: Any, detail: TaskDetail, zone: tzinfo) -> list[str]:
    label = name.replace("_", " ")
    if name == "payload":
        return [f"{label}: {text}" for text in payload_differences(detail.payload, value)] or [f"{label}: reformatted"]
    if name == "expires_at" and value is None:
        return ["expires at: never"]
    if isinstance(value, datetime):
        return [f"{label}: {formatting.exact(value, detail.at, zone)}"]
    before = getattr(detail, name) if name in ("retry", "timeout") else getattr(detail.task, name)
    used = f"; {detail.task.attempt} used" if name == "max_attempts" else ""
    return [f"{label}: {_format(before)} -> {_format(value)}{used}"]


def payload_differences(before: str, after: str) -> list[str]:
    """List the differences of two payloads by name, secrets masked: `n: 1 -> 2`, `+ to: "ana"`, `- old: true`."""
    old, new = (value if isinstance(value := decode(text), dict) else {} for text in (before, after))
    lines = []
    for name in {**old, **new}:
        was, is_now = (json.dumps(values.get(name), ensure_ascii=False) for values in (old, new))
        if name not in new:
            lines.append(f"- {name}: {was}")
        elif name not in old:
            lines.append(f"+ {name}: {is_now}")
        elif was != is_now:
            lines.append(f"{name}: {was} -> {is_now}")
    return lines


def _runs(runs: Sequence[datetime], task: TaskRow, at: datetime, zone: tzinfo) -> list[str]:
    """Describe when the task runs if every attempt fails immediately, in the operator's zone."""
    if not runs:
        return []
    times = [_clock(run, at, zone) for run in runs[:MOST_RUNS]]
    if len(runs) > MOST_RUNS:
        times.append(f"{len(runs) - MOST_RUNS} more until {_clock(runs[-1], at, zone)}")
    remaining = (task.max_attempts or inf) - task.attempt - (task.state is State.RUNNING)
    if len(runs) >= remaining:
        end = ", then dead"
    else:
        end = ", and so on" if len(runs) >= LONGEST_FORECAST else ", then by the handler's retry plan"
    zones = dict.fromkeys(format_zone(run, zone) for run in runs)  # The offset may change between two runs.
    return [f"runs if every attempt fails immediately: {', '.join(times)}{end}", f"times in {', then '.join(zones)}"]


def _clock(moment: datetime, at: datetime, zone: tzinfo) -> str:
    local = moment.astimezone(zone)
    same_day = local.date() == at.astimezone(zone).date()
    return local.strftime("%H:%M:%S" if same_day else "%b %d %H:%M")


def _format(value: Any) -> Any:
    if value == "":
        return ANY_HOST
    return NONE if value is None else f"{value:g}s" if isinstance(value, float) else value


def parse_value(name: str, text: str, at: datetime, zone: tzinfo) -> Any:
    """Parse the text of an entry.

    Args:
        name: the column.
        text: the text, not empty.
        at: the time that durations count from.
        zone: time zone of times without an offset.

    Raises:
        InvalidInput: the text cannot be parsed.
    """
    match name:
        case "max_attempts" | "retry" | "timeout" | "key" | "expires_at" if text == NONE:
            return None
        case "run_at" | "expires_at":
            return parse_moment(text, at, zone)
        case "max_attempts" | "priority":
            if not text.isdecimal() or len(text) > 9:
                raise InvalidEdit(field=name, value=text, why="it must be a whole number")
            return int(text)
        case "timeout":
            return parse_duration(text).total_seconds()
        case "payload":
            return _parse_object(text)
    return host_list(text) if name == "hosts" else text


def _parse_object(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEdit(field="payload", value=text[:80], why=f"invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidEdit(field="payload", value=text[:80], why="it must be a JSON object")
    return text


def shown_payload(text: str) -> tuple[str, str]:
    """Return the payload on one line with its secrets masked, and the reason why it cannot be edited."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_names, parse_float=_exact_float)
    except _LossyPayload:
        return (
            "",
            "it has a duplicate name, or a number that would lose digits; replace it with runner edit ID --payload",
        )
    except (ValueError, RecursionError):
        return "", "it is not valid JSON"
    redacted_value = redact(value)
    text = json.dumps(redacted_value, ensure_ascii=False)
    if block(text) != text or "\n" in text:
        return line(text), "it contains characters that the terminal cannot show"
    return text, ""


def indented(text: str) -> str:
    """A payload for an editor, on several lines; a text that is not JSON stays as it is."""
    try:
        return f"{json.dumps(json.loads(text, object_pairs_hook=_unique_names), ensure_ascii=False, indent=2)}\n"
    except (_LossyPayload, ValueError, RecursionError):
        return text


def on_one_line(text: str) -> str:
    """The payload from an editor on one line. Strings of JSON have no line breaks, so the value is the same."""
    return " ".join(part.strip() for part in text.splitlines()).strip()


class _LossyPayload(Exception):
    """Parsing and saving this payload would change it."""


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members := dict(pairs)) < len(pairs):
        raise _LossyPayload
    return members


def _exact_float(text: str) -> float:
    try:
        same = Decimal(repr(value := float(text))) == Decimal(text)
    except ArithmeticError:  # The exponent is out of range.
        same = False
    if not same:
        raise _LossyPayload
    return value
