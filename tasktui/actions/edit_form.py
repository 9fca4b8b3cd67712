"""The edit form of a task: its entries, and the changes typed into them."""

import json
from collections.abc import Mapping
from datetime import datetime, tzinfo
from decimal import Decimal
from typing import Any, NamedTuple

from runner.errors import InvalidEdit
from runner.model.sealed import read_sealed, shown
from runner.operations import edit_values
from runner.operations.edit_values import NONE, Changes
from runner.operations.targets import objection
from runner.queries.task.detail import TaskDetail
from runner.text import formatting
from runner.text.hosts import ANY_HOST
from runner.text.redact import decode, redact, with_secrets
from tasktui.actions.question import FormField
from tasktui.render.render import block, line

OWN = "handler's"
"""The value of an entry that the handler decides: "none" would read as no attempt, no retry or no timeout."""


def requeues(detail: TaskDetail) -> bool:
    """True if saving an edit requeues the task: it is dead or cancelled."""
    return objection("requeue", detail.task) is None


def entries(detail: TaskDetail) -> list[FormField]:
    """Build the entries of the form for a task."""
    task = detail.task
    payload, lock_reason = shown_payload(detail.payload)
    return [
        FormField("run_at", "Run at", "", "now, +15m, 14:30"),
        FormField("max_attempts", "Max attempts", str(task.max_attempts or OWN)),
        FormField("retry", "Retry plan", line(detail.retry or OWN)),
        FormField("priority", "Priority", str(task.priority)),
        FormField("timeout", "Timeout", OWN if detail.timeout is None else f"{detail.timeout:g}s"),
        FormField("expires_at", "Expires", "", "none, +1h, 18:00"),
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
    texts = edited_texts(typed, detail)
    parsed = {name: parse_value(name, text, detail.at, zone) for name, text in texts.items()}
    if "payload" in parsed:
        parsed["payload"] = with_secrets(parsed["payload"], detail.payload)
    return Changes(**parsed)


def edited_texts(typed: Mapping[str, str], detail: TaskDetail) -> dict[str, str]:
    """Return the texts that differ from the current values, without read-only and empty entries."""
    return {
        entry.name: typed[entry.name].strip()
        for entry in entries(detail)
        if not entry.lock_reason
        and typed.get(entry.name, entry.value).strip() not in ("", entry.value, NONE if entry.value == OWN else "")
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
    old, new = ({entry.name: entry for entry in entries(detail)} for detail in (before, after))
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
    title, after_them = "Nothing was saved: the task has changed since", "Press ctrl+s again to save your values."
    return EditConflict(
        [f"{title}:", *(differences or ["  no difference in this form"]), after_them],
        {name: new[name].value for name in new},
    )


def payload_differences(before: str, after: str | None) -> list[str]:
    """List the differences of two payloads by name, secrets masked: `n: 1 -> 2`, `+ to: "ana"`, `- old: true`."""
    if after is None:
        return []
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


def parse_value(name: str, text: str, at: datetime, zone: tzinfo) -> Any:
    """Parse the text of an entry.

    Args:
        text: the text, not empty.
        at: the time that durations count from.
        zone: time zone of times without an offset.

    Raises:
        InvalidInput: the text cannot be parsed.
    """
    if name == "payload":
        return _parse_object(text)
    is_own = text == OWN and name in ("max_attempts", "retry", "timeout")
    return edit_values.parse_value(name, NONE if is_own else text, at, zone)


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
    if (sealed := read_sealed(text)) is not None:
        return shown(sealed.codec, sealed.key), "runner edit ID --payload replaces it"
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
