"""audit_words: the changed values of an audit entry in few words."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import NamedTuple

from runner.db.schema.records import LIMIT_COLUMNS
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.queries.audit import AuditRecord
from runner.text import formatting
from runner.text.redact import decode_audit, differences, unquoted

MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d):\d\d [\w+:-]+")
"""A time in the changed values."""

RECORDED = re.compile(r"(?:paused|limited|breaker)_(?:\w+_)?(?:at|by|why)")
"""Names of values that repeat the time, the operator and the reason of a change."""


class ChangedValue(NamedTuple):
    """A changed value as text.

    Args:
        before: the value before; empty without one.
    """

    name: str
    before: str
    after: str


def changed_values(entry: AuditRecord, zone: tzinfo, most: int | None = None) -> Iterator[ChangedValue]:
    """The changed values of an entry; see `differences`."""
    for text in differences(entry.before, entry.after, most=most, zone=zone):
        name, _, value = text.partition(": ")
        before, _, after = value.partition(" -> ")
        is_empty = before == "-" or (before == "null" and name not in OF_HANDLER)
        yield ChangedValue(name, "" if is_empty else _word(name, before), _word(name, after))


def restored_values(entry: AuditRecord, zone: tzinfo) -> Iterator[ChangedValue]:
    """The values that an undo of an entry restores: their names in words, the present values, and those that return."""
    undone = replace(entry, before=entry.after, after=entry.before)
    present, limits = map(_limits, (undone.before, undone.after))
    if present != limits:
        yield ChangedValue("limits", str(present), str(limits))
    for name, before, after in changed_values(undone, zone):
        if name not in LIMIT_COLUMNS:
            yield ChangedValue(_label(name), before or "none", "none" if after == "-" else after)


def _label(name: str) -> str:
    """The name of a value in words."""
    return "termination" if name == "cancel_requested" else name.replace("_", " ")


OF_HANDLER = ("max_attempts", "retry", "timeout")
"""Values of a task without which those of its handler apply."""


def _word(name: str, text: str) -> str:
    """A value as text, in words if its JSON has none."""
    if name == "cancel_requested":
        return {"true": "requested", "false": "not requested"}.get(text, text)
    return "handler's" if text == "null" and name in OF_HANDLER else unquoted(text)


def change_words(entry: AuditRecord, values: Iterable[ChangedValue], zone: tzinfo) -> list[str]:
    """Changed values in few words, without the time, the operator and the reason of the change.

    Args:
        values: the changed values of the entry.
    """
    day = f"{entry.at.astimezone(zone):%Y-%m-%d}" if entry.at else ""
    texts = [
        f"{_label(name)}: {before} -> {after}" if before else f"{_label(name)} {after}"
        for name, before, after in values
        if name not in LIMIT_COLUMNS and not RECORDED.fullmatch(name)
    ]
    old, new = map(_limits, (entry.before, entry.after))
    limits = [f"{new}{f' (before: {old})' if any(old) else ''}"] if old != new else []
    return [*limits, *(MOMENT.sub(lambda moment: _short(moment, day), text) for text in texts)]


def _limits(values: str | None) -> SharedLimits:
    decoded = decode_audit(values)
    numbers = {name: decoded.get(name) for name in LIMIT_COLUMNS}
    is_readable = all(value is None or isinstance(value, int | float) for value in numbers.values())
    return SharedLimits.of_row(numbers) if is_readable else UNLIMITED


def _short(moment: re.Match[str], day: str) -> str:
    """A time to the minute, with its date unless it is that day; another text as it is."""
    with suppress(ValueError):  # a key may look like a time
        return moment[2] if moment[1] == day else f"{formatting.day(datetime.fromisoformat(moment[1]))} {moment[2]}"
    return moment[0]
