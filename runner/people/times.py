"""Durations and moments, as people write and read them.

A duration is a length of time: zero or more. Whoever needs a direction writes a moment: `+15m`, `-5m`.
"""

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from fractions import Fraction

from runner.errors import InvalidDuration, InvalidMoment

UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
"""The units of a duration, in the order in which they are written."""

LONGEST = timedelta(days=36_525)
"""Durations are shorter than this: 100 years."""

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""Moments lie from EARLIEST to before LATEST, which both databases and all their drivers can hold."""

_ZERO = timedelta(0)
_MICROSECOND = timedelta.resolution
_LONGEST_TEXT = 64

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SECONDS = re.compile(_NUMBER)
_PARTS = re.compile("".join(rf"(?:({_NUMBER}){unit}\s*)?" for unit in UNITS), re.ASCII)

_DAY = r"today|tomorrow|yesterday|[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_OFFSET = r"Z|UTC|[+-](?:[01][0-9]|2[0-3])(?:[0-5][0-9]|:[0-5][0-9](?::[0-5][0-9])?)"
_MOMENT = re.compile(
    rf"(?:(?P<day>{_DAY})(?:T|\s+|$))?(?:(?P<time>{_TIME})(?:\s*(?:[A-Z]+\s+)?\(?(?P<offset>{_OFFSET})\)?)?)?",
    re.ASCII | re.IGNORECASE,
)
_DAYS_AWAY = {"yesterday": -1, "today": 0, "tomorrow": 1}


def parse_duration(value: str | float | timedelta) -> timedelta:
    """Read a length of time, exact to the microsecond.

    Args:
        value: text such as `30s`, `5m`, `1h30m`, `1.5h`, `250ms`, `2d`, `1w` (largest unit first, each once); seconds
            as text or number; or a timedelta.

    Returns:
        A length from zero to less than 100 years.

    Raises:
        InvalidDuration: it is not a length, negative, not finite, or too long.
    """
    match value:
        case timedelta():
            return _bounded(value, value)
        case str():
            return _bounded(_read_length(value.strip()), value)
        case int() | float() if not isinstance(value, bool):
            # Written so that NaN is refused too: it is smaller than nothing.
            if not abs(value) < LONGEST.total_seconds():
                raise InvalidDuration(text=value, why="it must be a number of seconds below 100 years")
            return _bounded(timedelta(seconds=value), value)
    raise InvalidDuration(text=value, why="it must be text, a number of seconds or a timedelta")


def format_duration(length: timedelta) -> str:
    """Write a duration so that `parse_duration` reads the same length back: `22m`, `1h30m`, `3.1s`, `250ms`.

    A negative timedelta is written with a minus before it, which only a moment or an offset may have.
    """
    if length < _ZERO:
        return f"-{format_duration(-length)}"
    if _ZERO < length < UNITS["s"]:
        return f"{_in_units(length, UNITS['ms'])}ms"
    parts = []
    for unit in ("d", "h", "m"):
        count, length = divmod(length, UNITS[unit])
        parts += [f"{count}{unit}"] if count else []
    if length or not parts:
        parts.append(f"{_in_units(length, UNITS['s'])}s")
    return "".join(parts)


def format_age(age: timedelta) -> str:
    """Write an age for a glance, cut to its two largest units: `0.4s`, `41s`, `6m02s`, `22m`, `2d04h`."""
    if age < _ZERO:
        text = format_age(-age)
        return text if text == "0s" else f"-{text}"
    for large, small in (("d", "h"), ("h", "m"), ("m", "s")):
        count, rest = divmod(age, UNITS[large])
        if count:
            return f"{count}{large}{rest // UNITS[small]:02}{small}".removesuffix(f"00{small}")
    # Below ten seconds a tenth tells more than it costs; above, it only flickers.
    tenths = age // timedelta(milliseconds=100)
    return f"{tenths / 10:g}s" if age < timedelta(seconds=10) else f"{tenths // 10}s"


def parse_moment(text: str | datetime, now: datetime, zone: tzinfo, *, past: bool = False) -> datetime:
    """Read a point in time as a person says it.

    Args:
        text: `now`; `+15m` or `-5m` (a day is 24 hours there); `15m`, which lies as far ahead, or behind if `past`;
            `14:30`, the next such time: today if it is still to come, else tomorrow; `today 18:00`, `tomorrow 9:00`,
            `2026-11-20 14:30`, `2026-11-20T14:30:05+01:00`, what `format_moment` writes; a day alone is its first
            moment. Or an aware datetime.
        now: the present, aware.
        zone: where a time without an offset is meant.
        past: take a time without a day as the last such time, not the next, and a length alone as so long ago.

    Returns:
        The moment in UTC, in the years 1970 to 9998.

    Raises:
        InvalidMoment: not understood, out of range, without a zone, or a local time that the clocks of the zone skip
            or show twice; then it says which two forms to choose from.
    """
    try:
        moment = _aware(text) if isinstance(text, datetime) else _read_moment(text.strip(), _aware(now), zone, past)
        moment = moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidMoment(text=_shown(text), why="it is beyond the calendar") from error
    if not EARLIEST <= moment < LATEST:
        raise InvalidMoment(text=_shown(text), why="the year must be from 1970 to 9998")
    return moment


def format_moment(moment: datetime, zone: tzinfo) -> str:
    """Write a moment to the second in a zone, naming zone and offset: `2026-11-20 14:17:40 CET (+01:00)`.

    Raises:
        InvalidMoment: the moment has no zone.
    """
    local = _aware(moment).astimezone(zone)
    return f"{local.isoformat(' ', 'seconds')[:19]} {format_zone(local, zone)}"


def format_zone(moment: datetime, zone: tzinfo) -> str:
    """Name a zone as it is at a moment, with its offset: `CET (+01:00)`.

    Args:
        moment: aware; the offset may be another one half a year later.
        zone: the zone.
    """
    local = moment.astimezone(zone)
    offset, name = local.isoformat(" ", "seconds")[19:], local.tzname() or ""
    # Many zones are called by their offset only; it is not said twice.
    return f"{name} ({offset})" if name.isalpha() else offset


def _read_length(text: str) -> timedelta:
    if len(text) > _LONGEST_TEXT:
        raise InvalidDuration(text=_shown(text), why="it is too long")
    if _SECONDS.fullmatch(text):
        return _length([(text, UNITS["s"])])
    parts = _PARTS.fullmatch(text)
    if not text or not parts:
        if text.startswith("-"):
            raise InvalidDuration(text=text, why="it must not be negative")
        raise InvalidDuration(text=text, why=f"the units are {', '.join(UNITS)}, the largest first and each once")
    return _length(zip(parts.groups(default="0"), UNITS.values(), strict=True))


def _length(parts: Iterable[tuple[str, timedelta]]) -> timedelta:
    microseconds = sum(Fraction(number) * (unit // _MICROSECOND) for number, unit in parts)
    return timedelta(microseconds=min(round(microseconds), LONGEST // _MICROSECOND))


def _bounded(length: timedelta, value: object) -> timedelta:
    if length < _ZERO:
        raise InvalidDuration(text=str(value), why="it must not be negative")
    if length >= LONGEST:
        raise InvalidDuration(text=str(value), why="it must be shorter than 100 years")
    return length


def _in_units(length: timedelta, unit: timedelta) -> str:
    return f"{length / unit:.6f}".rstrip("0").removesuffix(".")


def _aware(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise InvalidMoment(text=str(moment), why="it has no zone; give it one, or an offset")
    return moment


def _read_moment(text: str, now: datetime, zone: tzinfo, past: bool) -> datetime:
    if text.lower() == "now":
        return now
    if text.startswith(("+", "-")):
        return _distant(text, now)
    if text and _PARTS.fullmatch(text):  # with its units: 30 alone could be seconds, minutes or an hour of the day
        return _distant(f"{'-' if past else '+'}{text}", now)
    parts = _MOMENT.fullmatch(text) if text else None
    if not parts:
        raise InvalidMoment(text=_shown(text), why="it is neither a time of day, nor a day, nor a distance from now")
    clock = _read_clock(parts["time"] or "0:00", parts["offset"] or "")
    zone, clock = clock.tzinfo or zone, clock.replace(tzinfo=None)
    today = now.astimezone(zone).date()
    if parts["day"]:
        return _instant(datetime.combine(_read_day(parts["day"].lower(), today, text), clock), zone, text)
    wall = datetime.combine(today, clock)
    if past and _readings(wall, zone)[0] > now:
        wall -= timedelta(days=1)
    elif not past and _readings(wall, zone)[1] <= now:
        wall += timedelta(days=1)
    return _instant(wall, zone, text)


def _distant(text: str, now: datetime) -> datetime:
    try:
        distance = parse_duration(text[1:])
    except InvalidDuration as error:
        raise InvalidMoment(text=_shown(text), why=error.fields["why"]) from error
    return now.astimezone(UTC) + (distance if text[0] == "+" else -distance)


def _read_day(text: str, today: date, whole: str) -> date:
    if text in _DAYS_AWAY:
        return today + timedelta(days=_DAYS_AWAY[text])
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidMoment(text=whole, why=f"there is no day {text}") from error


def _read_clock(text: str, offset: str) -> time:
    padding = "0" if text[1] == ":" else ""
    return time.fromisoformat(f"{padding}{text}{offset.upper().replace('UTC', 'Z')}")


def _readings(wall: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """The moments, in order, that a local time may stand for: two equal ones unless the clocks change just then."""
    first, second = sorted(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return first, second


def _instant(wall: datetime, zone: tzinfo, text: str) -> datetime:
    first, second = _readings(wall, zone)
    if first == second:
        return first
    one, other = first.astimezone(zone), second.astimezone(zone)
    # PEP 495: both readings of a time that is shown twice look like it, and neither of one that is skipped does.
    what = "show that time twice" if one.replace(tzinfo=None) == wall else "skip that time"
    forms = f"{one.isoformat(' ')} or {other.isoformat(' ')}"
    raise InvalidMoment(text=text, why=f"the clocks of {zone} {what}; write {forms}")


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
