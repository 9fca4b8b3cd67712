"""audit_words: the changed values of an audit entry in the words of the screens."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, tzinfo

from runner.db.schema.records import LIMIT_COLUMNS
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.queries.audit import AuditRecord
from runner.text import formatting
from runner.text.redact import ARGUMENT, NO_VALUE, ChangedValue, decode_audit, differences, unquoted

MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d) [\w+:-]+")
"""A time in the changed values."""

RECORDED = re.compile(r"(?:paused|limited|breaker)_(?:\w+_)?(?:at|by|why)")
"""Names of values that repeat the time, the operator and the reason of a change."""


COLUMN_WORDS = {
    "blocked_by": "open parents",
    "cancel_requested": "termination",
    "claimed_at": "claimed",
    "declared": "definition in code",
    "expires_at": "expires",
    "finished_at": "finished",
    "last_task_id": "unfinished run",
    "misfire": "missed ticks",
    "other_task_ids": "other unfinished runs",
    "retry": "retry plan",
    "run_requested_at": "run requested",
    "runner_id": "runner",
    "timezone": "time zone",
    "breaker_why": "breaker reason",
    "limited_why": "limit reason",
    "paused_why": "pause reason",
    "silenced_why": "silence reason",
}
"""Words of the screens for the columns whose names have others."""

OF_HANDLER = ("max_attempts", "retry", "timeout")
"""Values of a task without which those of its handler apply."""


def column_words(name: str) -> str:
    """The name of a changed value in the words of the screens; an argument keeps its name."""
    return COLUMN_WORDS.get(name) or (name if name.startswith(ARGUMENT) else name.replace("_", " "))


def changed_values(
    before: str | None, after: str | None, zone: tzinfo, *, reveal: bool = False, most: int | None = None
) -> Iterator[ChangedValue]:
    """The values that an audit entry changed by column, in words if their JSON has none; see `differences`.

    Yields:
        Values whose `before` is empty without one.
    """
    for name, old, new in differences(before, after, reveal=reveal, most=most, zone=zone):
        is_empty = old == NO_VALUE or (old == "null" and name not in OF_HANDLER)
        yield ChangedValue(name, "" if is_empty else _word(name, old), _word(name, new))


def restored_values(entry: AuditRecord, zone: tzinfo) -> Iterator[ChangedValue]:
    """The values that an undo of an entry restores: their names in words, the present values, and those that return."""
    present, limits = map(_limits, (entry.after, entry.before))
    if present != limits:
        yield ChangedValue("limits", str(present), str(limits))
    for name, before, after in changed_values(entry.after, entry.before, zone):
        if name not in LIMIT_COLUMNS:
            yield ChangedValue(column_words(name), before or "none", after)


def _word(name: str, text: str) -> str:
    """A value as text, in words if its JSON has none."""
    if name == "cancel_requested":
        return {"true": "requested", "false": "not requested"}.get(text, text)
    if text == NO_VALUE:
        return "none"
    return "handler's" if text == "null" and name in OF_HANDLER else unquoted(text)


def change_words(entry: AuditRecord, zone: tzinfo, *, reveal: bool = False, most: int | None = None) -> list[str]:
    """The changes of an entry in words, without the time, the operator and the reason of the change.

    Args:
        reveal: show secrets.
        most: maximum number of characters of a value; None for all.
    """
    texts = [
        f"{column_words(name)}: {before} -> {after}" if before else f"{column_words(name)} {after}"
        for name, before, after in changed_values(entry.before, entry.after, zone, reveal=reveal, most=most)
        if name not in LIMIT_COLUMNS and not RECORDED.fullmatch(name)
    ]
    old, new = map(_limits, (entry.before, entry.after))
    return [*([f"{new}{f' (before: {old})' if any(old) else ''}"] if old != new else []), *texts]


def brief_changes(entry: AuditRecord, zone: tzinfo, most: int | None = None) -> list[str]:
    """The changes of an entry in few words: times to the minute, or to the second if only it differs."""
    day = f"{entry.at.astimezone(zone):%Y-%m-%d}" if entry.at else ""
    return [_brief(text, day) for text in change_words(entry, zone, most=most)]


def _brief(text: str, day: str) -> str:
    short = MOMENT.sub(lambda moment: _short(moment, day), text)
    before, arrow, after = short.partition(" -> ")
    if not arrow or not before.endswith(f": {after}"):
        return short
    return MOMENT.sub(lambda moment: _short(moment, day, moment[3]), text)


def _limits(values: str | None) -> SharedLimits:
    decoded = decode_audit(values)
    numbers = {name: decoded.get(name) for name in LIMIT_COLUMNS}
    is_readable = all(value is None or isinstance(value, int | float) for value in numbers.values())
    return SharedLimits.of_row(numbers) if is_readable else UNLIMITED


def _short(moment: re.Match[str], day: str, seconds: str = "") -> str:
    """A time to the minute and its `seconds`, with its date unless it is that day; another text as it is."""
    time = moment[2] + seconds
    with suppress(ValueError):  # a key may look like a time
        return time if moment[1] == day else f"{formatting.day(datetime.fromisoformat(moment[1]))} {time}"
    return moment[0]
