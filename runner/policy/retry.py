"""Retry plans: how long to wait after a failed attempt, written as text in the task's row.

30s              always 30 seconds
1m,5m,20m        stages: a minute after the first failure, then 5, then 20, and 20 from there on
exp:10s*2<1h     10 seconds, doubled by each further failure, never more than an hour; `<1h` may be left out
sidekiq          n^4 + 15 + random * 30 * (n + 1) seconds, n = 0, 1, 2, ...
never            no retry
1m,5m,20m~10%    any of them spread, 10 % less to 10 % more, so that what failed together does not return together
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Protocol, Self

from runner.errors import InvalidDuration, InvalidRetryPlan
from runner.people.times import format_duration, parse_duration

LONGEST_DELAY = timedelta(days=3_650)
"""No plan waits longer, whatever the attempt: ten years."""

MOST_STAGES = 50

_LONGEST_TEXT = 2_000
_FACTOR = r"[0-9]{1,3}(?:\.[0-9]{1,3})?"
_EXPONENTIAL = re.compile(rf"exp:(?P<first>[^*<]+)\*\s*(?P<factor>{_FACTOR})\s*(?:<(?P<cap>[^*<]+))?")
_SPREAD = re.compile(r"(?P<plan>[^~]+)~\s*(?P<percent>[1-9][0-9]?|100)\s*%")


class RetryPlan(Protocol):
    """Decides how long to wait. Its text, `str(plan)`, reads back as an equal plan."""

    def delay(self, attempt: int, random: float, /) -> timedelta | None:
        """Return the time from a failure to the next attempt, ten years at most; None stands for no other attempt.

        Args:
            attempt: the number of the attempt that has just failed, from 1.
            random: 0 <= random < 1; plans that do not spread ignore it.
        """


@dataclass(frozen=True, slots=True)
class Never:
    """No retry."""

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read the plan, or tell by None that the text is of another kind."""
        return cls() if text == "never" else None

    def delay(self, _attempt: int, _random: float) -> None:
        """Return None, always."""

    def __str__(self) -> str:
        return "never"


@dataclass(frozen=True, slots=True)
class Sidekiq:
    """Half a minute at first, two hours after ten failures, a week after thirty, with a random part that grows along.

    Source: the default back-off of Sidekiq, in which n is the number of retries so far.
    """

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read the plan, or tell by None that the text is of another kind."""
        return cls() if text == "sidekiq" else None

    def delay(self, attempt: int, random: float) -> timedelta:
        """Return n^4 + 15 + random * 30 * (n + 1) seconds."""
        n = _failures_before(attempt)
        return _bounded(n**4 + 15 + random * 30 * (n + 1))

    def __str__(self) -> str:
        return "sidekiq"


@dataclass(frozen=True, slots=True)
class Exponential:
    """A first delay, multiplied by each further failure, up to a cap.

    Args:
        first: the delay after the first failure, more than zero.
        factor: 1 or more, below 1,000, in thousandths at the finest.
        cap: the longest delay.
    """

    first: timedelta
    factor: float
    cap: timedelta = LONGEST_DELAY

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read the plan, or tell by None that the text is of another kind."""
        if not text.startswith("exp:"):
            return None
        parts = _EXPONENTIAL.fullmatch(text)
        if not parts:
            raise InvalidRetryPlan(
                plan=text, why="after exp: come a delay, * with a factor below 1000, and maybe < with a cap"
            )
        first, factor = _delay(parts["first"], text), float(parts["factor"])
        cap = _delay(parts["cap"], text) if parts["cap"] else LONGEST_DELAY
        if not first:
            raise InvalidRetryPlan(plan=text, why="zero stays zero however often it is multiplied; begin with more")
        if factor < 1:
            raise InvalidRetryPlan(plan=text, why="the factor after * must be 1 or more")
        if cap < first:
            raise InvalidRetryPlan(plan=text, why="the cap after < must not be below the first delay")
        return cls(first, factor, cap)

    def delay(self, attempt: int, _random: float) -> timedelta:
        """Return first * factor^(failures before this one), or the cap."""
        try:
            seconds = self.first.total_seconds() * self.factor ** _failures_before(attempt)
        except OverflowError:
            return self.cap
        return min(_bounded(seconds), self.cap)

    def __str__(self) -> str:
        cap = f"<{format_duration(self.cap)}" if self.cap < LONGEST_DELAY else ""
        return f"exp:{format_duration(self.first)}*{self.factor:g}{cap}"


@dataclass(frozen=True, slots=True)
class Stages:
    """A delay for each failure; the last one stays.

    Args:
        delays: one or more. A single one is a fixed delay.
    """

    delays: tuple[timedelta, ...]

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read the plan, or tell by None that the text is of another kind."""
        if not text[:1].isdigit():
            return None
        stages = text.split(",")
        if len(stages) > MOST_STAGES:
            raise InvalidRetryPlan(
                plan=text, why=f"it has {len(stages)} stages, {MOST_STAGES} at most; the last one stays"
            )
        return cls(tuple(_delay(stage, text) for stage in stages))

    def delay(self, attempt: int, _random: float) -> timedelta:
        """Return the stage of this failure."""
        return self.delays[min(_failures_before(attempt), len(self.delays) - 1)]

    def __str__(self) -> str:
        return ",".join(format_duration(delay) for delay in self.delays)


PLANS = (Never, Sidekiq, Exponential, Stages)
"""Every kind of plan; each knows its own text. A new one is a class above and its name here."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Another plan's delays, each made evenly shorter or longer by up to a share of itself.

    Args:
        plan: the plan to spread.
        percent: the share, 1 to 100.
    """

    plan: RetryPlan
    percent: int

    def delay(self, attempt: int, random: float) -> timedelta | None:
        """Return delay * (1 - share) to delay * (1 + share)."""
        delay = self.plan.delay(attempt, random)
        if delay is None:
            return None
        return _bounded(delay.total_seconds() * (1 + self.percent / 100 * (2 * random - 1)))

    def __str__(self) -> str:
        return f"{self.plan}~{self.percent}%"


@lru_cache(maxsize=1024)
def parse_plan(text: str) -> RetryPlan:
    """Read a retry plan.

    Args:
        text: as the top of this module shows.

    Returns:
        The plan; the same object for the same text, for most tasks share a few.

    Raises:
        InvalidRetryPlan: not understood, or a part is out of range.
    """
    text = text.strip()
    if len(text) > _LONGEST_TEXT:
        raise InvalidRetryPlan(plan=f"{text[:40]}...", why=f"it is longer than {_LONGEST_TEXT} characters")
    spread = _SPREAD.fullmatch(text)
    if "~" in text and not spread:
        raise InvalidRetryPlan(plan=text, why="after ~ comes a whole percentage, 1% to 100%, and nothing else")
    plan = _read(spread["plan"].rstrip() if spread else text, text)
    if not spread:
        return plan
    if isinstance(plan, Never):
        raise InvalidRetryPlan(plan=text, why="never has no delays to spread")
    return Spread(plan, int(spread["percent"]))


def next_runs(plan: RetryPlan, attempt: int, max_attempts: int, start: datetime, limit: int = 20) -> list[datetime]:
    """Preview when a task would run again if every attempt failed at once.

    Args:
        plan: its retry plan.
        attempt: the number of the attempt that runs, and fails, at `start`: one more than are used up while it waits.
        max_attempts: the attempts it has in all.
        start: when that attempt runs, aware.
        limit: the most runs to list.

    Returns:
        The expected times of the attempts after that one, in order, with the random part at its mean.
    """
    runs: list[datetime] = []
    for failed in range(attempt, min(max_attempts, attempt + limit)):
        delay = plan.delay(failed, 0.5)
        if delay is None or delay > datetime.max.replace(tzinfo=start.tzinfo) - start:
            break
        start += delay
        runs.append(start)
    return runs


def _read(text: str, whole: str) -> RetryPlan:
    for kind in PLANS:
        plan: RetryPlan | None = kind.read(text)
        if plan is not None:
            return plan
    raise InvalidRetryPlan(plan=whole, why="no plan is written like this")


def _delay(text: str, whole: str) -> timedelta:
    try:
        delay = parse_duration(text)
    except InvalidDuration as error:
        raise InvalidRetryPlan(plan=whole, why=f"{text.strip()!r} is not a delay: {error.fields['why']}") from error
    if delay > LONGEST_DELAY:
        raise InvalidRetryPlan(plan=whole, why=f"{text.strip()!r} is longer than ten years")
    return delay


def _failures_before(attempt: int) -> int:
    # A row edited by hand may hold any number; settling its task must not fail because of it.
    return max(attempt, 1) - 1


def _bounded(seconds: float) -> timedelta:
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST_DELAY.total_seconds()))
