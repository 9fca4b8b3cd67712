"""Durations: lengths of time as people write them, such as 90s, 5m or 1h30m."""

import re
from collections.abc import Iterable
from datetime import timedelta
from fractions import Fraction

from runner.errors import InvalidDuration

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
"""The upper bound of durations, exclusive: 100 years."""


LONGEST_SECONDS = 1e9
"""The upper bound of a number of seconds in a row, exclusive."""


_ZERO = timedelta(0)


_MICROSECOND = timedelta.resolution


_LONGEST_TEXT = 64


_NUMBER = r"[0-9]+(?:\.[0-9]+)?"


_SECONDS = re.compile(_NUMBER)


_PARTS = re.compile("".join(rf"(?:({_NUMBER}){unit}\s*)?" for unit in UNITS), re.ASCII)


def parse_duration(value: str | float | timedelta) -> timedelta:
    """Parse a duration, exact to the microsecond.

    Args:
        value: text such as `30s`, `5m`, `1h30m`, `1.5h`, `250ms`, `2d`, `1w` (largest unit first, each once); seconds
            as text or number; or a timedelta.

    Returns:
        A duration from zero to less than 100 years.

    Raises:
        InvalidDuration: the value is not a duration, negative, not finite, or too long.
    """
    match value:
        case timedelta():
            return _checked(value, value)
        case str():
            return _checked(_read_length(value.strip()), value)
        case int() | float() if not isinstance(value, bool):
            # In this form the comparison also rejects NaN.
            if not abs(value) < LONGEST.total_seconds():
                raise InvalidDuration(text=value, why="it must be a number of seconds below 100 years")
            return _checked(timedelta(seconds=value), value)
    raise InvalidDuration(text=value, why="it must be text, a number of seconds or a timedelta")


def parse_spread(text: str | None) -> float:
    """Parse the time over which tasks are spread: a duration, also as people write it in times, `+10m`.

    Args:
        text: the duration as typed; empty or None for no spread.

    Returns:
        Its seconds.

    Raises:
        InvalidDuration: the text is not a duration.
    """
    return parse_duration(text.strip().removeprefix("+")).total_seconds() if text else 0.0


def format_duration(length: timedelta) -> str:
    """Format a duration so that `parse_duration` reads it back: `22m`, `1h30m`, `3.1s`, `250ms`.

    A negative timedelta gets a leading minus, which only moments and offsets accept.
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


def _read_length(text: str) -> timedelta:
    if len(text) > _LONGEST_TEXT:
        raise InvalidDuration(text=_excerpt(text), why="it is too long")
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


def _checked(length: timedelta, value: object) -> timedelta:
    if length < _ZERO:
        raise InvalidDuration(text=str(value), why="it must not be negative")
    if length >= LONGEST:
        raise InvalidDuration(text=str(value), why="it must be shorter than 100 years")
    return length


def _in_units(length: timedelta, unit: timedelta) -> str:
    return f"{length / unit:.6f}".rstrip("0").removesuffix(".")


def _excerpt(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
