"""Retry plans: the delay after a failed attempt, stored as text in the task's row.

30s              30 seconds after every failure
1m,5m,20m        stages: 1 minute after the first failure, 5 after the second, 20 after the third and all later ones
exp:10s*2<1h     10 seconds, doubled by each further failure, at most an hour; `<1h` is optional
sidekiq          n^4 + 15 + random * 30 * (n + 1) seconds, n = 0, 1, 2, ...
never            no retry
patient          a plan of your own, registered with @retry_plan("patient") or as an entry point
p.module:Class   a class of your own
1m,5m,20m~10%    any plan of text, spread by up to 10 % either way, so that tasks that failed together retry separately
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, Protocol, Self

from runner.errors import InvalidDuration, InvalidRetryPlan
from runner.model.duration import format_duration, parse_duration
from runner.policy.own_retry_plan import NAME, OwnPlan, load_plan, read_own

LONGEST_DELAY = timedelta(days=3_650)
"""Longest delay of any plan and attempt: ten years."""

MOST_STAGES = 50

_LONGEST_TEXT = 2_000
_FACTOR = r"[0-9]{1,3}(?:\.[0-9]{1,3})?"
_EXPONENTIAL = re.compile(rf"exp:(?P<first>[^*<]+)\*\s*(?P<factor>{_FACTOR})\s*(?:<(?P<cap>[^*<]+))?")
_SPREAD = re.compile(r"(?P<plan>[^~]+)~\s*(?P<percent>[1-9][0-9]?|100)\s*%")


class RetryPlan(Protocol):
    """Decides the delay before the next attempt. `str(plan)` parses back to an equal plan."""

    def delay(self, attempt: int, random: float, /) -> timedelta | None:
        """Return the time from a failure to the next attempt, ten years at most; None for no further attempt.

        Args:
            attempt: number of the failed attempt, from 1.
            random: 0 <= random < 1; ignored by plans without a random part.
        """


@dataclass(frozen=True, slots=True)
class Never:
    """No retry."""

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse the plan; None if the text is another kind of plan."""
        return cls() if text == "never" else None

    def delay(self, _attempt: int, _random: float) -> None:
        """Return None."""

    def __str__(self) -> str:
        return "never"


@dataclass(frozen=True, slots=True)
class Sidekiq:
    """Half a minute at first, two hours after ten failures, a week after thirty, with a growing random part.

    Source: the default back-off of Sidekiq, in which n is the number of retries so far.
    """

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse the plan; None if the text is another kind of plan."""
        return cls() if text == "sidekiq" else None

    def delay(self, attempt: int, random: float) -> timedelta:
        """Return n^4 + 15 + random * 30 * (n + 1) seconds."""
        n = _failures_before(attempt)
        return _clamp(n**4 + 15 + random * 30 * (n + 1))

    def __str__(self) -> str:
        return "sidekiq"


@dataclass(frozen=True, slots=True)
class Exponential:
    """A first delay, multiplied after each further failure, up to a cap.

    Args:
        first: delay after the first failure, more than zero.
        factor: 1 to below 1,000, with up to three decimal places.
        cap: longest delay.
    """

    first: timedelta
    factor: float
    cap: timedelta = LONGEST_DELAY

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse the plan; None if the text is another kind of plan."""
        if not text.startswith("exp:"):
            return None
        parts = _EXPONENTIAL.fullmatch(text)
        if not parts:
            raise InvalidRetryPlan(
                plan=text, why="write exp:, a delay, * and a factor below 1000, and optionally < and a cap"
            )
        first, factor = _delay(parts["first"], text), float(parts["factor"])
        cap = _delay(parts["cap"], text) if parts["cap"] else LONGEST_DELAY
        if not first:
            raise InvalidRetryPlan(plan=text, why="the first delay must be more than zero")
        if factor < 1:
            raise InvalidRetryPlan(plan=text, why="the factor after * must be 1 or more")
        if cap < first:
            raise InvalidRetryPlan(plan=text, why="the cap after < must not be below the first delay")
        return cls(first, factor, cap)

    def delay(self, attempt: int, _random: float) -> timedelta:
        """Return first * factor^(previous failures), or the cap."""
        try:
            seconds = self.first.total_seconds() * self.factor ** _failures_before(attempt)
        except OverflowError:
            return self.cap
        return min(_clamp(seconds), self.cap)

    def __str__(self) -> str:
        cap = f"<{format_duration(self.cap)}" if self.cap < LONGEST_DELAY else ""
        return f"exp:{format_duration(self.first)}*{self.factor:g}{cap}"


@dataclass(frozen=True, slots=True)
class Stages:
    """One delay for each failure; the last one repeats.

    Args:
        delays: one or more; a single one is a fixed delay.
    """

    delays: tuple[timedelta, ...]

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse the plan; None if the text is another kind of plan."""
        if not text[:1].isdigit():
            return None
        stages = text.split(",")
        if len(stages) > MOST_STAGES:
            raise InvalidRetryPlan(
                plan=text, why=f"it has {len(stages)} stages, more than {MOST_STAGES}; the last one repeats"
            )
        return cls(tuple(_delay(stage, text) for stage in stages))

    def delay(self, attempt: int, _random: float) -> timedelta:
        """Return the stage of this failure."""
        return self.delays[min(_failures_before(attempt), len(self.delays) - 1)]

    def __str__(self) -> str:
        return ",".join(format_duration(delay) for delay in self.delays)


PLANS = (Never, Sidekiq, Exponential, Stages)
"""All kinds of plans. To add one, write a class above and list it here."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The delays of another plan, each spread evenly by up to a percentage either way.

    Args:
        percent: 1 to 100.
    """

    plan: RetryPlan
    percent: int

    def delay(self, attempt: int, random: float) -> timedelta | None:
        """Return a delay from delay * (1 - share) to delay * (1 + share)."""
        delay = self.plan.delay(attempt, random)
        if delay is None:
            return None
        return _clamp(delay.total_seconds() * (1 + self.percent / 100 * (2 * random - 1)))

    def __str__(self) -> str:
        return f"{self.plan}~{self.percent}%"


def stages_of(plan: RetryPlan) -> Sequence[timedelta] | None:
    """Return the delays of a list, spread or not; None for another plan."""
    if isinstance(plan, Spread):
        plan = plan.plan
    return plan.delays if isinstance(plan, Stages) else None


def parse_plan(text: str) -> RetryPlan:
    """Parse a retry plan.

    Args:
        text: a plan in the syntax at the top of this module.

    Returns:
        The plan; the same object for the same text, because most tasks share a few plans.

    Raises:
        InvalidRetryPlan: the text is not a plan, or a part is out of range.
    """
    if not isinstance(text, str):
        raise InvalidRetryPlan(plan=text, why="expected text")
    return _parse_text(text)


def load_retry(text: str) -> RetryPlan:
    """Parse a retry plan of code or of a setting, and import the class that it names. Never for text of a row.

    Raises:
        InvalidRetryPlan: the text is not a plan, or the class cannot be loaded.
    """
    load_plan(text)
    return parse_plan(text)


@lru_cache(maxsize=1024)
def _parse_text(text: str) -> RetryPlan:
    text = text.strip()
    if len(text) > _LONGEST_TEXT:
        raise InvalidRetryPlan(plan=f"{text[:40]}...", why=f"it is longer than {_LONGEST_TEXT} characters")
    spread = _SPREAD.fullmatch(text)
    if "~" in text and not spread:
        raise InvalidRetryPlan(plan=text, why="write a whole percentage from 1% to 100% after ~, and nothing else")
    plan = _parse(spread["plan"].rstrip() if spread else text, text)
    if not spread:
        return plan
    if isinstance(plan, Never):
        raise InvalidRetryPlan(plan=text, why="never has no delay to spread")
    if isinstance(plan, OwnPlan):
        raise InvalidRetryPlan(plan=text, why="a plan of your own spreads its delays itself, with run.random")
    return Spread(plan, int(spread["percent"]))


def next_runs(plan: RetryPlan, attempt: int, max_attempts: int, start: datetime, limit: int = 20) -> list[datetime]:
    """Preview the next attempts of a task if every attempt fails immediately.

    Args:
        attempt: number of the attempt that fails at `start`; for a waiting task, one more than it has used.
        max_attempts: maximum number of attempts.
        start: time of that attempt, aware.
        limit: maximum number of attempts to list.

    Returns:
        Expected times of the following attempts, in order, with the random part at its mean.
    """
    runs: list[datetime] = []
    for failed in range(attempt, min(max_attempts, attempt + limit)):
        delay = plan.delay(failed, 0.5)
        if delay is None or delay > datetime.max.replace(tzinfo=start.tzinfo) - start:
            break
        start += delay
        runs.append(start)
    return runs


MOST_ATTEMPTS = 100
"""Attempts of a task to simulate at most: a task without a maximum may fail forever without a delay."""


class Retries(NamedTuple):
    """How the tasks of a handler fail and come back.

    Args:
        share: the share of attempts that fail, 0 to 1; the same for each attempt of a task.
        max_attempts: maximum number of attempts.
    """

    share: float
    plan: RetryPlan
    max_attempts: int = MOST_ATTEMPTS

    @classmethod
    def of(cls, total: int, retried: int, plan: RetryPlan, max_attempts: int) -> Self:
        """Return the retries with which tasks need as many attempts on average as they did.

        Args:
            total: number of attempts that ended, 1 or more.
            retried: number of those with another attempt after them.
            max_attempts: maximum number of attempts.
        """
        most = min(max(max_attempts, 1), MOST_ATTEMPTS)
        low, high = 0.0, 1.0
        # With the share f, a task needs 1 + f + f^2 + ... attempts: the mean number grows with f.
        for _ in range(30):
            middle = (low + high) / 2
            attempts = sum(middle**number for number in range(most))
            low, high = (middle, high) if attempts * (total - retried) < total else (low, middle)
        return cls(high, plan, most)

    def delay(self, attempt: int, random: float) -> float | None:
        """Return the seconds from a failure to the next attempt; None if the task is dead.

        Args:
            attempt: number of the failed attempt, from 1.
            random: 0 <= random < 1.
        """
        delay = self.plan.delay(attempt, random) if attempt < self.max_attempts else None
        return None if delay is None else delay.total_seconds()


def _parse(text: str, whole: str) -> RetryPlan:
    for kind in PLANS:
        plan: RetryPlan | None = kind.read(text)
        if plan is not None:
            return plan
    own = read_own(text)
    if own is None:
        hint = "; an own plan must be loaded here, be an entry point, or be named as package.module:Class"
        raise InvalidRetryPlan(plan=whole, why=f"unknown plan{hint if NAME.fullmatch(text) else ''}")
    return own


def _delay(text: str, whole: str) -> timedelta:
    try:
        delay = parse_duration(text)
    except InvalidDuration as error:
        raise InvalidRetryPlan(plan=whole, why=f"{text.strip()!r} is not a delay: {error.fields['why']}") from None
    if delay > LONGEST_DELAY:
        raise InvalidRetryPlan(plan=whole, why=f"{text.strip()!r} is longer than ten years")
    return delay


def _failures_before(attempt: int) -> int:
    # A row edited by hand may hold any number; settling its task must not fail because of it.
    return max(attempt, 1) - 1


def _clamp(seconds: float) -> timedelta:
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST_DELAY.total_seconds()))


@dataclass
class BackOff:
    """The delay before the next attempt to reach a database that is down: doubling, bounded and spread.

    Args:
        first: seconds after the first failure.
        most: longest delay in seconds.
    """

    first: float = 0.25
    most: float = 10.0
    failures: int = 0

    def record_failure(self, random: float) -> float:
        """Record a failure.

        Args:
            random: in [0, 1); spreads the retries of several runners.

        Returns:
            Seconds to wait.
        """
        self.failures += 1
        wait: float = min(self.most, self.first * 2 ** min(self.failures - 1, 20))
        return wait * (0.75 + 0.5 * random)

    def reset(self) -> None:
        """Reset the delay."""
        self.failures = 0
