"""Texts of durations and moments.

A duration is a length of time, zero or more. A moment can have a direction: `+15m`, `-5m`.
"""

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from runner.errors import InvalidDuration, InvalidInput, InvalidMoment
from runner.model.duration import _PARTS, _ZERO, UNITS, _excerpt, parse_duration

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""Moments are in [EARLIEST, LATEST), which both databases and all their drivers can represent."""


_DAY = r"today|tomorrow|yesterday|[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_OFFSET = r"Z|UTC|[+-](?:[01][0-9]|2[0-3])(?:[0-5][0-9]|:[0-5][0-9](?::[0-5][0-9])?)"
_MOMENT = re.compile(
    rf"(?:(?P<day>{_DAY})(?:T|\s+|$))?(?:(?P<time>{_TIME})(?:\s*(?:[A-Z]+\s+)?\(?(?P<offset>{_OFFSET})\)?)?)?",
    re.ASCII | re.IGNORECASE,
)
_DAYS_AWAY = {"yesterday": -1, "today": 0, "tomorrow": 1}


def format_age(age: timedelta) -> str:
    """Format an age with its two largest units: `0.4s`, `41s`, `6m02s`, `22m`, `2d04h`."""
    if age < _ZERO:
        text = format_age(-age)
        return text if text == "0s" else f"-{text}"
    for large, small in (("d", "h"), ("h", "m"), ("m", "s")):
        count, rest = divmod(age, UNITS[large])
        if count:
            return f"{count}{large}{rest // UNITS[small]:02}{small}".removesuffix(f"00{small}")
    # Below ten seconds a tenth is informative; above, it only flickers.
    tenths = age // timedelta(milliseconds=100)
    return f"{tenths / 10:g}s" if age < timedelta(seconds=10) else f"{tenths // 10}s"


def parse_moment(text: str | datetime, now: datetime, zone: tzinfo, *, past: bool = False) -> datetime:
    """Parse a point in time as people write it.

    Args:
        text: `now`; `+15m` or `-5m` (a day has 24 hours there); `15m`, in the future, or in the past if `past`;
            `14:30`, the next such time, today or tomorrow; `today 18:00`, `tomorrow 9:00`, `2026-11-20 14:30`,
            `2026-11-20T14:30:05+01:00` and the output of `format_moment`; a date alone is its first moment. Or an aware
            datetime.
        now: the current time, aware.
        zone: the time zone of times without an offset.
        past: read a time without a date as the last such time, and a duration alone as that long ago.

    Returns:
        The moment in UTC, in the years 1970 to 9998.

    Raises:
        InvalidMoment: the text is not a moment, out of range, without a zone, or a local time that the zone skips or
            has twice; the message then names the two alternatives.
    """
    try:
        moment = _aware(text) if isinstance(text, datetime) else _read_moment(text.strip(), _aware(now), zone, past)
        moment = moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidMoment(text=_excerpt(text), why="it is outside the calendar") from error
    if not EARLIEST <= moment < LATEST:
        raise InvalidMoment(text=_excerpt(text), why="the year must be from 1970 to 9998")
    return moment


AHEAD = timedelta(hours=1)
"""How far the end of a period may be in the future."""


def parse_period(begin: str, end: str, now: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """Parse a period in the past, as `parse_moment` does.

    An end whose last occurrence is before the begin is the next one after it, which may be in a minute.

    Args:
        begin: the begin of the period.
        end: the end; `now` if empty.
        now: the current time, aware.
        zone: the time zone of times without an offset.

    Raises:
        InvalidInput: the begin is in the future, the end is not after it, or more than AHEAD in the future.
    """
    since, until = (parse_moment(text or "now", now, zone, past=True) for text in (begin, end))
    if until <= since and re.fullmatch(_TIME, end.strip()):
        until = parse_moment(end, since, zone)
    if since > now:
        raise InvalidInput(why=f"{_excerpt(begin)!r} begins the period in the future, at {format_moment(since, zone)}")
    if until <= since or until > now + AHEAD:
        name = _excerpt(end or "now")
        why = f"the end {name!r} must be after the begin ({format_moment(since, zone)}) and not in the future"
        raise InvalidInput(why=why)
    return since, until


def format_moment(moment: datetime, zone: tzinfo) -> str:
    """Format a moment to the second in a zone, with zone and offset: `2026-11-20 14:17:40 CET (+01:00)`.

    Raises:
        InvalidMoment: the moment is naive.
    """
    local = _aware(moment).astimezone(zone)
    return f"{local.isoformat(' ', 'seconds')[:19]} {format_zone(local, zone)}"


def format_zone(moment: datetime, zone: tzinfo) -> str:
    """The name and offset of a zone at a moment: `CET (+01:00)`.

    Args:
        moment: an aware moment; the offset may differ half a year later.
    """
    local = moment.astimezone(zone)
    offset, name = local.isoformat(" ", "seconds")[19:], local.tzname() or ""
    # Many zones have only an offset as their name.
    return f"{name} ({offset})" if name.isalpha() else offset


def _aware(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise InvalidMoment(text=str(moment), why="it has no time zone; add one, or an offset")
    return moment


def _read_moment(text: str, now: datetime, zone: tzinfo, past: bool) -> datetime:
    if text.lower() == "now":
        return now
    if text.startswith(("+", "-")):
        return _relative(text[0], text[1:], text, now)
    if text and _PARTS.fullmatch(text):  # with its units: 30 alone could be seconds, minutes or an hour of the day
        return _relative("-" if past else "+", text, text, now)
    parts = _MOMENT.fullmatch(text) if text else None
    if not parts:
        raise InvalidMoment(text=_excerpt(text), why="it is not a time of day, a date or an offset from now")
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


def _relative(sign: str, length: str, text: str, now: datetime) -> datetime:
    try:
        distance = parse_duration(length)
    except InvalidDuration as error:
        raise InvalidMoment(text=_excerpt(text), why=error.fields["why"]) from error
    return now.astimezone(UTC) + (distance if sign == "+" else -distance)


def _read_day(text: str, today: date, whole: str) -> date:
    if text in _DAYS_AWAY:
        return today + timedelta(days=_DAYS_AWAY[text])
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidMoment(text=whole, why=f"the date {text} does not exist") from error


def _read_clock(text: str, offset: str) -> time:
    padding = "0" if text[1] == ":" else ""
    return time.fromisoformat(f"{padding}{text}{offset.upper().replace('UTC', 'Z')}")


def _readings(wall: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """The moments, in order, that a local time can mean: equal unless the clocks change then."""
    first, second = sorted(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return first, second


def _instant(wall: datetime, zone: tzinfo, text: str) -> datetime:
    first, second = _readings(wall, zone)
    if first == second:
        return first
    one, other = first.astimezone(zone), second.astimezone(zone)
    # PEP 495: both readings of a repeated time look like it; neither reading of a skipped time does.
    problem = "have that time twice" if one.replace(tzinfo=None) == wall else "skip that time"
    forms = f"{one.isoformat(' ')} or {other.isoformat(' ')}"
    raise InvalidMoment(text=text, why=f"the clocks of {zone} {problem}; write {forms}")
