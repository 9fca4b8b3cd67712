"""Rules of schedules: the ticks of a cron line, of a fixed rate, and of a fixed delay.

A cron line follows the clocks of its time zone as Debian's cron does. If its minute or its hour begins with `*`, it
follows real time: when the clocks go back, it runs in both of the repeated hours. Any other line names times of the
day: one that the clocks skip runs at the end of the gap, and one that they repeat runs once, the first time.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from runner.errors import InvalidDuration, InvalidSchedule
from runner.model.duration import format_duration, parse_duration
from runner.policy.cron_line import ALIASES, fault, plain_line

try:
    from cronsim import CronSim, CronSimError
except ModuleNotFoundError:
    CHECKS_CRON_LINES = False
else:
    CHECKS_CRON_LINES = True
"""False in an installation for submits, which lacks cronsim; then runners check the cron lines of its schedules."""

EVERY, AFTER_END = "every ", "after_end "
"""The words with which rules begin that are not cron lines."""

AT_EVERY = "@every "
"""The word for `every` in the cron lines of other systems."""

SHORTEST = timedelta(seconds=1)
"""The shortest interval between two ticks."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FIRST_MONDAY, WEEK = datetime(1970, 1, 5, tzinfo=UTC), timedelta(weeks=1)

SEARCHED = timedelta(days=2)
"""A time in which the clocks of a zone change once at most. It is longer than a change: Samoa skipped a day."""

LONGEST_LINE = 200
"""Characters of a rule."""


class Rule(Protocol):
    """A rule that gives the ticks of a schedule."""

    @property
    def delay(self) -> timedelta | None:
        """The delay from the end of one run to the next tick; None if the ticks do not depend on runs."""

    def next(self, after: datetime) -> datetime | None:
        """Return the first tick after a time, in UTC; None if there is none.

        Args:
            after: an aware time. For a rule with a delay it is the end of the last run.
        """


@dataclass(frozen=True)
class CronRule:
    """The ticks of a cron line in a time zone.

    Args:
        line: five fields, or six that begin with seconds.
    """

    line: str
    zone: ZoneInfo
    delay = None

    # cronsim reads local times as if they were in UTC: with a zone, it never returns in some repeated hours, and lets
    # lines with seconds pass the skipped ones.

    def next(self, after: datetime) -> datetime | None:
        """Return the first tick after a time."""
        if any(field.startswith("*") for field in self.line.split()[-5:-3]):  # the minute and the hour
            return self._next_by_real_time(after)
        for face in CronSim(self.line, after.astimezone(self.zone).replace(tzinfo=UTC)):
            if (moment := self._moment(face)) > after:
                return moment
        return None

    def _next_by_real_time(self, after: datetime) -> datetime | None:
        """Return the first tick after a time, searched from one change of the clocks to the next."""
        while True:
            start = after + datetime.resolution
            end, offset = start + SEARCHED, self._offset(start)
            face = next(CronSim(self.line, after + offset), None)
            if face is None:
                return None
            tick, change = face - offset, self._change(start, end)
            if tick < (change or end):
                return tick
            after = tick - SEARCHED if change is None else change - datetime.resolution

    def _moment(self, face: datetime) -> datetime:
        """The first time at which the clocks show this one; the end of the gap if they skip it."""
        local = face.replace(tzinfo=self.zone)
        moment = local.astimezone(UTC)
        if moment.astimezone(self.zone).replace(tzinfo=UTC) == face:
            return moment
        return self._change(local.replace(fold=1).astimezone(UTC), moment) or moment

    def _change(self, start: datetime, end: datetime) -> datetime | None:
        """The time between two others at which the offset to UTC changes; None if both have the same."""
        offset = self._offset(start)
        if self._offset(end) == offset:
            return None
        while end - start > datetime.resolution:
            middle = start + (end - start) // 2
            start, end = (middle, end) if self._offset(middle) == offset else (start, middle)
        return end

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self.zone).utcoffset() or timedelta()


@dataclass(frozen=True)
class EveryRule:
    """Ticks at a fixed rate: the multiples of an interval since 1970, so that every runner computes the same ones.

    Weeks begin on Mondays.
    """

    interval: timedelta
    delay = None

    def next(self, after: datetime) -> datetime | None:
        """Return the first tick after a time; None beyond the last year of Python."""
        origin = EPOCH if self.interval % WEEK else FIRST_MONDAY
        try:
            return origin + ((after - origin) // self.interval + 1) * self.interval
        except OverflowError:  # It is after the year 9999.
            return None


@dataclass(frozen=True)
class AfterEndRule:
    """Ticks with a fixed delay after the end of the last run."""

    delay: timedelta

    def next(self, after: datetime) -> datetime | None:
        """Return the tick after a run that ended at this time."""
        return after + self.delay


@lru_cache(maxsize=4_096)
def parse_rule(text: str, timezone: str = "UTC") -> Rule:
    """Parse the rule of a schedule.

    Args:
        text: a cron line such as "0 9 * * mon-fri", a name such as "@daily", "every 5m", or "after_end 30s".
        timezone: time zone of a cron line; its name in the IANA database.

    Raises:
        InvalidSchedule: the rule or the time zone is not valid, or the rule has no ticks.
    """
    zone = parse_zone(timezone)
    if not isinstance(text, str) or len(text) > LONGEST_LINE:
        raise InvalidSchedule(field="rule", value=str(text)[:80], why=f"expected up to {LONGEST_LINE} characters")
    for word, kind in ((EVERY, EveryRule), (AT_EVERY, EveryRule), (AFTER_END, AfterEndRule)):
        if text.startswith(word):
            return kind(_interval(text, text.removeprefix(word)))
    rule = CronRule(plain_line(text), zone)
    if not CHECKS_CRON_LINES:
        return rule
    try:
        first = rule.next(EPOCH)
    except CronSimError as error:
        raise InvalidSchedule(field="rule", value=text, why=fault(text, error)) from None
    if first is None:
        raise InvalidSchedule(field="rule", value=text, why="this date never comes")
    return rule


def parse_zone(name: str) -> ZoneInfo:
    """Return a time zone by its name in the IANA database.

    Raises:
        InvalidSchedule: no zone has this name.
    """
    _require_text("timezone", name, "its name as text")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # TypeError, ValueError: a name such as "" or "../x"
        why = "there is no such time zone; names are like Europe/Berlin and UTC"
        raise InvalidSchedule(field="timezone", value=str(name)[:80], why=why) from None


def _require_text(field: str, value: object, expected: str) -> None:
    if not isinstance(value, str):
        raise InvalidSchedule(
            field=field, value=str(value)[:80], why=f"expected {expected}, got {type(value).__name__}"
        )


def _interval(text: str, length: str) -> timedelta:
    try:
        interval = parse_duration(length.strip())
    except InvalidDuration as error:
        raise InvalidSchedule(field="rule", value=text, why=error.fields["why"]) from None
    if interval < SHORTEST:
        raise InvalidSchedule(field="rule", value=text, why="the interval must be at least 1s")
    return interval


def write_rule(cron: str | None, every: timedelta | None, after_end: timedelta | None) -> str:
    """Write a rule as text, from exactly one of its forms.

    Raises:
        InvalidSchedule: none of them is given, or more than one.
    """
    if cron is not None:
        _require_text("rule", cron, "text")
    rules = [cron] if cron is not None else []
    rules += [f"{EVERY}{format_duration(every)}"] if every is not None else []
    rules += [f"{AFTER_END}{format_duration(after_end)}"] if after_end is not None else []
    if len(rules) != 1:
        why = "give one of a cron line, a fixed rate (every) and a fixed delay (after_end)"
        raise InvalidSchedule(field="rule", value=" and ".join(rules), why=why)
    return " ".join(rules[0].split())


def upcoming(rule: Rule, after: datetime, count: int) -> list[datetime]:
    """Return the next ticks after a time, at most `count`.

    A rule with a delay has only one, because its next runs depend on how long the runs take.
    """
    ticks: list[datetime] = []
    while len(ticks) < count and (tick := rule.next(ticks[-1] if ticks else after)) is not None:
        ticks.append(tick)
        if rule.delay is not None:
            break
    return ticks


_WEEKDAYS = {"0": "Sun", "1": "Mon", "2": "Tue", "3": "Wed", "4": "Thu", "5": "Fri", "6": "Sat", "7": "Sun"}

_SHAPES: tuple[tuple[re.Pattern[str], Callable[..., str]], ...] = (
    (re.compile(r"\*/([0-9]+) \* \* \* \*"), lambda minute: f"every {minute} min"),
    (re.compile(r"\* \* \* \* \*"), lambda: "every 1 min"),
    (re.compile(r"([0-9]+) \* \* \* \*"), lambda minute: f"hourly at :{int(minute):02}"),
    (re.compile(r"([0-9]+) ([0-9]+) \* \* \*"), lambda minute, hour: f"daily at {_time(hour, minute)}"),
    (
        re.compile(r"([0-9]+) ([0-9]+) ([0-9]+) \* \*"),
        lambda minute, hour, day: f"day {day} at {_time(hour, minute)}",
    ),
    (
        re.compile(r"([0-9]+) ([0-9]+) \* \* ([0-7]|[a-z-]+)"),
        lambda minute, hour, day: f"{_WEEKDAYS.get(day, day.title())} at {_time(hour, minute)}",
    ),
)
"""The shapes of cron lines that a few words describe."""


def describe(text: str, timezone: str = "UTC") -> str:
    """Describe a rule in a few words: "every 5 min", "daily at 03:15", "hourly at :30"; other cron lines as they are.

    Args:
        text: the rule, valid or not.
        timezone: its time zone, which follows the rule unless it is UTC.
    """
    if timezone != "UTC":
        return f"{describe(text)} {timezone}"
    if text.startswith((EVERY, AT_EVERY)):
        return f"every {_spaced(text.removeprefix('@').removeprefix(EVERY))}"
    if text.startswith(AFTER_END):
        return f"{_spaced(text.removeprefix(AFTER_END))} after end"
    line = ALIASES.get(text.lower(), text).lower()
    shapes = ((pattern.fullmatch(line), words) for pattern, words in _SHAPES)
    return next((words(*match.groups()) for match, words in shapes if match), text)


def _time(hour: str, minute: str) -> str:
    return f"{int(hour):02}:{int(minute):02}"


def _spaced(length: str) -> str:
    """Write a duration in words if it has one unit: "5 min" for "5m"."""
    units = {"d": "d", "h": "h", "m": "min", "s": "s"}
    try:
        plain = format_duration(parse_duration(length.strip()))
    except InvalidDuration:
        return length
    number, unit = plain[:-1], plain[-1]
    return f"{number} {units[unit]}" if number.isdecimal() and unit in units else plain
