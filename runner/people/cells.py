"""What stands in the cells of tables, on the command line and in the console: short enough for eighty columns."""

from datetime import datetime, timedelta, tzinfo

from runner.people.redaction import masked
from runner.people.terminal import one_line, state_text
from runner.people.times import format_age, format_moment
from runner.task import Shown

NOTHING = "-"
"""Stands where there is no value."""

TEN_MILLISECONDS = 0.01
"""Seconds below which tenths of a millisecond tell something."""


LONGEST_REASON = 4_000
"""Characters of an error in which its first line is looked for."""

STEP = 1024
"""From one unit of bytes to the next."""


def text(value: object) -> str:
    """A value as text; NOTHING where there is none."""
    return NOTHING if value is None or value == "" else str(value)


def age(length: timedelta | float | None) -> str:
    """A length of time for a glance.

    Args:
        length: seconds or timedelta; None for nothing.
    """
    if length is None:
        return NOTHING
    try:
        return format_age(length if isinstance(length, timedelta) else timedelta(seconds=length))
    except (OverflowError, ValueError):  # whoever wrote the row by hand may have written anything
        return "?"


def duration(length: timedelta | float | None) -> str:
    """How long something took: an age, but telling apart what takes less than a second."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds is None or not 0 <= seconds < 1:
        return age(seconds)
    return f"{seconds * 1000:.{0 if seconds >= TEN_MILLISECONDS else 1}f}ms"


def size(number: int | None) -> str:
    """A number of bytes: `412 B`, `1.2 GiB`."""
    if number is None:
        return NOTHING
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < STEP or unit == "TiB":
            break
        value /= STEP
    return f"{value:,.1f} {unit}" if unit != "B" else f"{number:,} B"


def share(part: float | None) -> str:
    """A share in per cent; what is not all is never shown as all, nor anything as nothing."""
    if part is None:
        return NOTHING
    shown = f"{part:.1%}"
    if shown == "100.0%":
        return "100%" if part >= 1 else ">99.9%"
    if shown == "0.0%":
        return "0%" if part <= 0 else "<0.1%"
    return shown


def verb(stored: str) -> str:
    """An intervention as people call it, and as it is typed: `retry` for `retry_now`."""
    return stored.removesuffix("_now")


def since(moment: datetime | None, at: datetime) -> str:
    """How long ago something was, at the time `at`."""
    return NOTHING if moment is None else age(at - moment)


def distance(moment: datetime | None, at: datetime) -> str:
    """How far away a time is: `in 3m10s`, `now`, `2m ago`."""
    if moment is None:
        return NOTHING
    if abs(moment - at) < timedelta(seconds=1):
        return "now"
    return f"in {age(moment - at)}" if moment > at else f"{age(at - moment)} ago"


def clock(moment: datetime | None, at: datetime, zone: tzinfo) -> str:
    """A time in the reader's zone, with its day unless that is today: `14:17`, `11-20 14:17`."""
    if moment is None:
        return NOTHING
    local = moment.astimezone(zone)
    return f"{local:%H:%M}" if local.date() == at.astimezone(zone).date() else f"{local:%m-%d %H:%M}"


def exact(moment: datetime | None, at: datetime, zone: tzinfo) -> str:
    """A time to the second in the reader's zone, and how far away it is."""
    return NOTHING if moment is None else f"{format_moment(moment, zone)}  {distance(moment, at)}"


def tries(attempt: int, most: int | None) -> str:
    """Attempts used and allowed: `2/4`."""
    return f"{attempt}/{most}" if most else str(attempt)


def state(shown: Shown) -> str:
    """A state: sign and word."""
    return state_text(shown)


def reason(error: str | None) -> str:
    """The first line of an error, safe to show, secrets masked."""
    return one_line(masked(error[:LONGEST_REASON])) if error else ""


def progress(done: int, total: int | None, took: float) -> str:
    """How far something has come: `1,200 of 4,120 (29 %), 350 a second, 8s left`.

    Args:
        done: so many.
        total: of so many; None when that is not known.
        took: seconds until now.
    """
    rate = done / took if took > 0 else 0.0
    parts = [f"{done:,} of {total:,} ({done / total:.0%})" if total else f"{done:,}"]
    if rate:
        parts.append(f"{rate:,.0f} a second")
        if total:
            parts.append(f"{age(max(total - done, 0) / rate)} left")
    return ", ".join(parts)
