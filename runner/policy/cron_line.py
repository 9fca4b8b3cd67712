"""A cron line as people write it, in the form that cronsim reads.

Quartz writes `?` for any day. Vixie's cron and Quartz let a range pass the end of its field: `fri-mon`, `22-4`.
"""

import re
from typing import NamedTuple

from runner.text.sanitize import count_noun

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Names of common cron lines."""

FORM = "a cron line is: minute hour day month weekday"


class CronField(NamedTuple):
    """A field of a cron line.

    Args:
        names: the words for its values, from the lowest value on.
    """

    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()

    def value(self, text: str) -> int | None:
        """Return the value of a number or a word; None if it has none."""
        if text.lower() in self.names:
            return self.lowest + self.names.index(text.lower())
        return int(text) if text.isascii() and text.isdigit() and len(text) < 3 else None  # noqa: PLR2004 - two digits


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

FIELDS = (
    CronField("second", 0, 59),
    CronField("minute", 0, 59),
    CronField("hour", 0, 23),
    CronField("day-of-month", 1, 31),
    CronField("month", 1, 12, MONTHS),
    CronField("day-of-week", 0, 6, WEEKDAYS),
)

RANGE = re.compile(r"(\w+)-(\w+)(?:/([1-9][0-9]?))?")

DAYS = re.compile(r"(?:[12]?[0-9]|3[01])(?:,(?:[12]?[0-9]|3[01]))*")
"""Days of which no chosen month has one, if cronsim refuses them."""

ZONE = re.compile(r"(?:CRON_)?TZ=(\S+) +(.+)")


def plain_line(text: str) -> str:
    """Return a cron line without the forms that cronsim does not read; other text stays as it is.

    Args:
        text: a line of five fields, six with seconds, or a name such as "@daily".
    """
    parts = ALIASES.get(text.lower(), text).split()
    if len(parts) not in (5, 6):
        return text
    fields = FIELDS[-len(parts) :]
    return " ".join(_plain(field, part) for field, part in zip(fields, parts, strict=True))


def _plain(field: CronField, part: str) -> str:
    if part == "?" and field.name.startswith("day"):
        return "*"
    return ",".join(_forward(field, item) for item in part.split(","))


def _forward(field: CronField, item: str) -> str:
    """List the values of a range that passes the end of its field."""
    match = RANGE.fullmatch(item)
    if match is None:
        return item
    start, end = field.value(match[1]), field.value(match[2])
    start = 0 if field.names is WEEKDAYS and start == len(WEEKDAYS) else start  # 7 is Sunday too
    if start is None or end is None or not (field.lowest <= end <= field.highest and start <= field.highest):
        return item
    if start == end:  # cronsim takes 5-5/2 for 5/2
        return str(start)
    if start < end:
        return f"{start}-{end}" + (f"/{match[3]}" if match[3] else "")
    values = [*range(start, field.highest + 1), *range(field.lowest, end + 1)]
    return ",".join(map(str, values[:: int(match[3] or 1)]))


def fault(text: str, error: Exception) -> str:
    """Explain why cronsim refuses a line: the field and its value, or the line to write.

    Args:
        text: the line as it was written.
        error: the error of cronsim.
    """
    if zone := ZONE.fullmatch(text):
        return f'the time zone is an option: "{zone[2]}" with tz="{zone[1]}", or --tz {zone[1]}'
    if text.startswith("@"):
        return f"the names are {', '.join(ALIASES)} and @every 5m"
    parts = text.split()
    if len(parts) not in (5, 6):
        return f"it has {count_noun(len(parts), 'field')} ({FORM}, with a second before them if there are six)"
    for field, part in zip(FIELDS[-len(parts) :], parts, strict=True):
        if str(error) == f"Bad {field.name}":
            if field.name == "day-of-month" and part != "0" and DAYS.fullmatch(part):
                return "this date never comes"
            words = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
            highest = field.highest + (field.names is WEEKDAYS)  # 7 is Sunday too
            return f"bad {field.name} {part!r}: expected {field.lowest} to {highest}{words} ({FORM})"
    return f"{str(error)[:1].lower()}{str(error)[1:]} ({FORM})"
