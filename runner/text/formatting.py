"""Texts of values for table cells, short enough for eighty columns."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from types import MappingProxyType

from runner.model.shard import CURRENT_SHARD
from runner.model.task import Shown, State
from runner.text.redact import mask
from runner.text.sanitize import one_line
from runner.text.times import format_age, format_moment

SIGNS: Mapping[Shown, str] = MappingProxyType(
    {
        Shown.READY: "○",
        Shown.SCHEDULED: "◔",
        Shown.RETRYING: "↻",
        Shown.BLOCKED: "◇",
        Shown.RUNNING: "►",
        Shown.LOST: "◌",
        Shown.SUCCEEDED: "✓",
        Shown.DEAD: "✗",
        Shown.CANCELLED: "⊘",
    }
)
"""One narrow sign per state, always shown with its word: never the sign or a colour alone."""


def state(shown: Shown) -> str:
    """A displayed state: sign and word."""
    return f"{SIGNS[shown]} {shown}"


def stored_state_text(state: State) -> str:
    """A stored state, as of a workflow: sign and word."""
    return f"{SIGNS[Shown.READY if state is State.WAITING else Shown(state)]} {state}"


NOTHING = "-"
"""The text of a missing value."""

TEN_MILLISECONDS = 0.01

MILLION = 1_000_000
"""Seconds below which durations show tenths of a millisecond."""


LONGEST_REASON = 4_000
"""Maximum number of characters of an error to search for its first line."""

_MODULE = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Z]\w*(?:: |$))")

STEP, TENS = 1024, 99.95
"""The factor between units of bytes, and the number from which a size has no decimal."""


def text(value: object) -> str:
    """A value as text; NOTHING if it is missing."""
    return NOTHING if value is None or value == "" else str(value)


def row_id(id: int) -> str:
    """The id of a task or a runner, with its shard if a command reads several."""
    shard = CURRENT_SHARD.get()
    return str(id) if shard is None else f"{shard}:{id}"


def age(length: timedelta | float | None) -> str:
    """A duration for a glance.

    Args:
        length: seconds or a timedelta; None for no value.
    """
    if length is None:
        return NOTHING
    try:
        return format_age(length if isinstance(length, timedelta) else timedelta(seconds=length))
    except (OverflowError, ValueError):  # a hand-written row may contain any value
        return "?"


def duration(length: timedelta | float | None) -> str:
    """The duration of work: like `age`, but with milliseconds below one second."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds is None or not 0 < seconds < 1:
        return age(seconds)
    return f"{seconds * 1000:.{0 if seconds >= TEN_MILLISECONDS else 1}f}ms"


def size(number: int | None) -> str:
    """A number of bytes: `412 B`, `28.4 MiB`, `413 MiB`, `1 GiB`."""
    if number is None:
        return NOTHING
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < STEP or unit == "TiB":
            break
        value /= STEP
    return f"{f'{value:,.1f}'.removesuffix('.0') if value < TENS else f'{value:,.0f}'} {unit}"


HIGH_SHARE, LOW_SHARE = 0.99, 0.0005
"""Above the first, a share has two decimals; below the second, it would be rounded to nothing."""


def share(part: float | None) -> str:
    """A share as a percentage, with two decimals above 99; only exact shares are shown as 0 % and 100 %."""
    if part is None:
        return NOTHING
    if part <= 0 or part >= 1:
        return f"{round(part * 100)} %"
    if part > HIGH_SHARE:
        return f"{min(part * 100, 99.99):.2f} %"
    return f"{part * 100:.1f} %" if part >= LOW_SHARE else "<0.1 %"


def rate(number: float | None) -> str:
    """A number per minute: `320`, `7.5`."""
    if number is None:
        return NOTHING
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"  # noqa: PLR2004 - two digits


def volume(number: float | None) -> str:
    """A number of tasks: `288,000`, `1.2 M`."""
    if number is None:
        return NOTHING
    return f"{number / MILLION:,.1f} M" if number >= MILLION else f"{number:,.0f}"


def verb(stored: str) -> str:
    """The displayed name of an operation: `retry` for `retry_now`."""
    return stored.removesuffix("_now")


_ENDS = {
    "succeed": State.SUCCEEDED,
    "retry": "failed, retrying",
    "die": "failed, task dead",
    "snooze": "snoozed",
    "release": "released",
    "interrupt": "interrupted",
    "rescue": "lost its runner, retrying",
    "cancel": State.CANCELLED,
}

_COUNTED = {"retry": "retried", "die": State.DEAD, "rescue": "rescued", "fenced": "fenced out"}


def ended_as(verb: str) -> str:
    """The end of an attempt by the verb of its move: `failed, retrying` for `retry`."""
    return _ENDS.get(verb, verb)


def outcome_counts(verbs: Mapping[str, int]) -> str:
    """Numbers of outcomes by the verbs of their moves: `12 succeeded, 3 retried`."""
    counts = (f"{count:,} {_COUNTED.get(verb) or _ENDS.get(verb, verb)}" for verb, count in verbs.items())
    return ", ".join(counts) or "no tasks"


def since(moment: datetime | None, at: datetime) -> str:
    """The age of a moment at the time `at`."""
    return NOTHING if moment is None else age(at - moment)


def slots(running: int, capacity: int) -> str:
    """The used slots of runners. They may have claimed more tasks than that: `10 of 10 slots, 3 prefetched`."""
    more = f", {running - capacity:,} prefetched" if running > capacity else ""
    return f"{min(running, capacity):,} of {capacity:,} slots{more}"


def distance(moment: datetime | None, at: datetime) -> str:
    """The distance of a moment from `at`: `in 3m10s`, `now`, `2m ago`."""
    if moment is None:
        return NOTHING
    if abs(moment - at) < timedelta(seconds=1):
        return "now"
    return f"in {age(moment - at)}" if moment > at else f"{age(at - moment)} ago"


def clock(moment: datetime | None, at: datetime, zone: tzinfo, *, seconds: bool = False) -> str:
    """A time in the reader's zone, with the date unless it is today: `14:17`, `20 Nov 14:17`, `20 Nov 14:17:40`."""
    if moment is None:
        return NOTHING
    local = moment.astimezone(zone)
    date = "" if local.date() == at.astimezone(zone).date() else f"{day(local)} "
    return f"{date}{local:%H:%M:%S}" if seconds else f"{date}{local:%H:%M}"


def day(local: datetime) -> str:
    """A date, in the zone of the time: `4 Nov`. All short texts with a date use it."""
    return f"{local.day} {local:%b}"


def weekday_clock(moment: datetime, at: datetime, zone: tzinfo) -> str:
    """The time of a regular run, with its seconds if it has any; on other days the weekday or the date: `Sun 02:00`."""
    local, today = moment.astimezone(zone), at.astimezone(zone)
    if local.date() == today.date():
        return f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    return f"{local:%a %H:%M}" if local - today < timedelta(days=6) else day(local)


def short_clock(moment: datetime, at: datetime, zone: tzinfo) -> str:
    """A coming time in at most six cells: the time of day within 24 hours, otherwise the date: `06:00`, `24 Nov`."""
    local = moment.astimezone(zone)
    return f"{local:%H:%M}" if moment - at < timedelta(days=1) else day(local)


def exact(moment: datetime | None, at: datetime, zone: tzinfo) -> str:
    """A time to the second in the reader's zone, with its distance from `at`."""
    return NOTHING if moment is None else f"{format_moment(moment, zone)}  {distance(moment, at)}"


def attempts(attempt: int, most: int | None) -> str:
    """Attempts used and allowed: `2/4`."""
    return f"{attempt}/{most}" if most else str(attempt)


def reason(error: str | None) -> str:
    """The first line of an error, safe to print, with secrets masked."""
    return one_line(mask(error[:LONGEST_REASON])) if error else ""


def brief(error: str | None) -> str:
    """The first line of an error for a narrow cell, without the module of its type."""
    return _MODULE.sub("", reason(error), count=1)


def when(moment: datetime | None, at: datetime, zone: tzinfo) -> str:
    """A time and its distance from now."""
    if moment is None:
        return "at an unreadable time"
    return f"{distance(moment, at)} ({format_moment(moment, zone)})"


def sentence_of(text: str | None) -> str:
    """A text with a full stop."""
    sentence = reason(text) or "no reason given"
    return sentence if sentence.endswith((".", "!", "?", "…")) else f"{sentence}."


def progress(done: int, total: int | None, took: float) -> str:
    """The progress of a bulk operation: `1,200 of 4,120 (29 %), 350 a second, 8s left`.

    Args:
        total: all items; None if unknown.
        took: seconds so far.
    """
    rate = done / took if took > 0 else 0.0
    parts = [f"{done:,} of {total:,} ({100 * done / total:.0f} %)" if total else f"{done:,}"]
    if rate:
        parts.append(f"{rate:,.0f} a second")
        if total:
            parts.append(f"{age(max(total - done, 0) / rate)} left")
    return ", ".join(parts)
