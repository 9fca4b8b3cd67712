"""Poll modes: the times of scans and the number of tasks to claim, as the setting `poll_mode` names them.

fixed-rate                  a scan every period
fixed-delay                 a scan a period after the last one ended
spread                      the runners divide the scans: each waits period x (1/2 + random) x live runners
tiers                       tasks that failed are looked at less often: 0 failures every 3 s, to 5 every 30 s, then 60 s
tiers:0=3s,5=30s,15=60s     the same with other bounds and periods
throttle                    at most one batch per period, so that batch x rate is the capacity of a runner
package.module:Class        a mode of your own
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from runner.errors import InvalidDuration, InvalidSettings
from runner.model.duration import format_duration, parse_duration
from runner.policy.own_class import OwnClass

EVERY = 1.0
"""Seconds between surveys while claims return full. A higher priority is noticed at most this late."""

SHARE = 20
"""The shortest pause after a survey, as a multiple of its duration.

While another client holds an old snapshot, dead index entries accumulate, and every scan from the head of an index
reads them all. This bounds its share of the time to a twentieth. A single slow survey does not count: the time is that
of the process, which also waits for a processor, a connection and the network."""

EARLY, EARLIEST = 4, 0.25
"""The same multiple for a survey that a submit asks for, in place of SHARE; and the shortest pause in seconds."""

QUICK = 0.05
"""Seconds up to which a query from the head of an index is as quick as one without dead entries."""


@dataclass
class Pace:
    """The schedule of a query that is usually cheap but can become slow.

    Args:
        every: seconds from the end of a query to the next one.
        most: longest pause in seconds, however slow the query is.
    """

    every: float = EVERY
    most: float = math.inf
    _next: float = 0.0
    last: float = 0.0
    """Seconds that the last query took."""
    usual: float = 0.0
    """Seconds that the quicker one of the last two queries took."""
    _early: float = 0.0

    def is_due(self, now: float) -> bool:
        """True if a query is due; `now` in monotonic seconds."""
        return now >= self._next

    def is_barred(self, now: float) -> bool:
        """True if the query has become slow, and is not due; `now` in monotonic seconds."""
        return self.usual > QUICK and now < self._next

    def early(self, now: float) -> float:
        """Seconds until a query that a submit asks for; `now` in monotonic seconds."""
        return max(0.0, self._early - now)

    def remaining(self, now: float) -> float:
        """Seconds until the next query; `now` in monotonic seconds."""
        return max(0.0, self._next - now)

    def record(self, start: float, end: float) -> None:
        """Record the start and end of a query, in monotonic seconds; the quicker one of the last two counts."""
        self.usual, self.last = min(self.last, end - start), end - start
        self._next = end + max(self.every, min(self.most, SHARE * self.usual))
        self._early = end + max(min(self.every, EARLIEST), EARLY * self.usual)


@dataclass
class OrderKeyWatch:
    """When to look for the next tasks of order keys after plain inserts: these tasks wait, and nothing blocks them.

    A claim walks over all of them. After a look that finds none, the next one waits four times as long as it took, and
    at most a second.
    """

    _has_heads: bool = False
    """True if the first due task of a lane had an order key at the last survey."""
    _waits: bool = False
    _has_ended: bool = False
    """True if a task with an order key has ended since the last scan began."""
    _next: float = 0.0

    def record_scan(self) -> None:
        """Record that a scan begins."""
        self._has_ended = False

    def record_survey(self, *, has_heads: bool) -> None:
        """Record a survey.

        Args:
            has_heads: True if the first due task of a lane has an order key.
        """
        self._has_heads, self._waits = has_heads, False

    def record_untaken(self, now: float, took: float) -> None:
        """Record that a claim took nothing from the lanes of the survey.

        Args:
            now: monotonic seconds.
            took: seconds that the survey and the claim took.
        """
        self._waits, self._next = self._has_heads, now + min(EVERY, EARLY * took)

    def record_end(self) -> bool:
        """Record the end of a task with an order key; return True if a look for the next one is to be scheduled."""
        is_first, self._has_ended = not self._has_ended, True
        return is_first and self._waits

    def wait(self, now: float) -> float | None:
        """Seconds until the next look; None without one. `now` in monotonic seconds."""
        return max(0.0, self._next - now) if self._waits and self._has_ended else None


@dataclass
class LookAhead:
    """The prefetch: tasks to claim beyond the free slots, because others finish while a claim is running.

    Slow work gets no prefetch, so that no task waits in one runner while another could start it. Many slow tasks that
    end together look quick by the clock, so the time of their pool counts if it is longer. Quick tasks that wait for
    claims look slow by the clock, so the prefetch grows with each full claim for which most slots waited.

    Args:
        span: seconds that a claim and its settle take, estimated high.
        most: upper bound in tasks.
        growth: the prefetch as a multiple of a full claim for which most slots waited.
        few: claims of fewer tasks prove nothing.
    """

    span: float = 0.05
    most: int = 2_000
    growth: int = 10
    few: int = 20
    ends: int = 0
    """Tasks that ended since the last estimate."""
    busy: float = 0.0
    """Seconds for which the attempts since the last estimate would occupy the whole pool, one after another."""
    dry: int = 0
    """Tasks of a full claim for which most slots waited, until as many have ended; 0 without one."""
    _goal: int = 0
    """The number of ends that proves these tasks quick."""
    _rate: float = 0.0
    _since: float = 0.0

    def waited(self, claimed: int) -> None:
        """Record a full claim for which most slots waited."""
        if claimed >= self.few:
            self.dry, self._goal = claimed, self.ends + claimed

    def tasks(self, now: float) -> int:
        """Return the number of tasks to prefetch; `now` in monotonic seconds."""
        elapsed = now - self._since
        all_ended = self.dry > 0 and self.ends >= self._goal
        if all_ended or elapsed >= self.span:
            rate = self.ends / max(elapsed, self.busy, 1e-6)
            least = min(self.growth * self.dry / self.span, self.ends / max(self.busy, 1e-6)) if all_ended else 0.0
            self._rate = max(least, rate if elapsed > 1 or not self._rate else 0.5 * self._rate + 0.5 * rate)
            self.ends, self.busy, self.dry, self._since = 0, 0.0, 0, now
        return min(self.most, int(self._rate * self.span))


Rate = Literal["fixed-rate", "fixed-delay"]


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """A scan starts a period after the last one ended."""

    rate: ClassVar[Rate] = "fixed-delay"
    """Whether the wait counts from the start of the last scan or from its end."""
    is_throttled: ClassVar[bool] = False
    """True if the scans of one period claim one batch together."""
    counts_runners: ClassVar[bool] = False
    """True if the wait depends on the number of live runners, which costs a statement per heartbeat."""

    def __str__(self) -> str:
        return "fixed-delay"

    def period(self, interval: float) -> float:
        """Return the period of scans; `interval` is the setting `poll_interval`, both in seconds."""
        return interval

    def wait(self, period: float, _runners: int, _random: float) -> float:
        """Return the seconds until the next scan.

        Args:
            period: from `period`, in seconds.
            _random: in [0, 1).
        """
        return period

    def most_failures(self, _scan: int) -> int | None:
        """Return the failures above which a scan leaves a task; None for no bound.

        Args:
            _scan: number of periodic scans before this one; a scan after a submit takes the tasks of scan 1.
        """
        return None


@dataclass(frozen=True, slots=True)
class FixedRate(FixedDelay):
    """A scan starts every period, however long the last one took."""

    rate: ClassVar[Rate] = "fixed-rate"

    def __str__(self) -> str:
        return "fixed-rate"


@dataclass(frozen=True, slots=True)
class Throttle(FixedRate):
    """Scans take at most one batch per period, so that a runner starts at most batch x rate tasks."""

    is_throttled: ClassVar[bool] = True

    def __str__(self) -> str:
        return "throttle"


@dataclass(frozen=True, slots=True)
class SpreadScans(FixedDelay):
    """All runners together scan about once per period, each at a time of its own.

    Source: poll_interval_average of Sidekiq, where n processes wait n periods each, varied by half a period.
    """

    counts_runners: ClassVar[bool] = True

    def __str__(self) -> str:
        return "spread"

    def wait(self, period: float, runners: int, random: float) -> float:
        """Return period x (1/2 + random) x runners."""
        return period * (0.5 + random) * max(1, runners)


class Tier(NamedTuple):
    """The tasks with at most this number of failures, and the seconds between scans that take them."""

    failures: int
    period: float


TIERS = (Tier(0, 3.0), Tier(5, 30.0), Tier(15, 60.0))


@dataclass(frozen=True, slots=True)
class Tiers(FixedRate):
    """Tasks that failed often are looked at less often. The last tier also takes tasks with more failures.

    Args:
        tiers: the tiers, by failures; their periods rise.
    """

    tiers: tuple[Tier, ...] = TIERS

    def __str__(self) -> str:
        parts = (f"{failures}={format_duration(timedelta(seconds=period))}" for failures, period in self.tiers)
        return "tiers" if self.tiers == TIERS else f"tiers:{','.join(parts)}"

    def period(self, _interval: float) -> float:
        """Return the period of the first tier."""
        return self.tiers[0].period

    def most_failures(self, scan: int) -> int | None:
        """Return the bound of the last tier whose period has passed; the first scan takes all tasks."""
        now, before = (number * self.tiers[0].period for number in (scan, scan - 1))
        due = [tier for tier in self.tiers if now // tier.period > before // tier.period]
        if not scan or self.tiers[-1] in due:
            return None
        return due[-1].failures if due else self.tiers[0].failures


PollMode = FixedDelay
"""The base class of modes of your own."""

CHOICES = (
    "fixed-rate, fixed-delay, spread, tiers, tiers:0=3s,5=30s,15=60s, throttle, "
    "or a class of your own as package.module:Class"
)
LONGEST = 3_650 * 86_400.0
"""The longest period and wait in seconds: ten years."""


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= LONGEST


CHECKS: dict[str, Callable[[Any], bool]] = {
    "rate": lambda rate: rate in get_args(Rate),
    "period": _is_time,
    "wait": _is_time,
    "most_failures": lambda most: most is None or (isinstance(most, int) and most >= 0),
}
"""The values that a mode of your own may return."""

METHODS = ("period", "wait", "most_failures")
BASE = "runner.policy.polling.FixedDelay or FixedRate"
OWN = OwnClass("poll_mode", METHODS, BASE, CHOICES, FixedDelay(), CHECKS)
MODES = {str(mode): mode for mode in (FixedRate(), FixedDelay(), SpreadScans(), Tiers(), Throttle())}


def parse_poll_mode(text: str) -> PollMode:
    """Parse a poll mode; see the top of this module.

    Args:
        text: the setting `poll_mode`.

    Raises:
        InvalidSettings: the text is not a mode, or the class cannot be loaded; the message names the choices.
    """
    name, colon, argument = text.strip().partition(":")
    if not colon and name in MODES:
        return MODES[name]
    if name == "tiers":
        return Tiers(_tiers(text, argument))
    mode: PollMode = OWN.load(text)
    return mode


def _tiers(text: str, argument: str) -> tuple[Tier, ...]:
    tiers = []
    for part in argument.split(","):
        failures, _, period = part.partition("=")
        try:
            tier = Tier(int(failures), parse_duration(period.strip()).total_seconds())
        except (ValueError, InvalidDuration):
            OWN.refuse(text, f"{part!r} is not a number of failures and a period, such as 5=30s")
        tiers.append(tier)
    if tiers[0].failures or not tiers[0].period:
        OWN.refuse(text, "the first tier is that of 0 failures, with a period above 0")
    if any(a.failures >= b.failures or a.period >= b.period for a, b in pairwise(tiers)):
        OWN.refuse(text, "failures and periods must rise from tier to tier")
    return tuple(tiers)


DEFAULT_POLLING = "fixed-rate 1s"
"""The polling of a runner with the default settings."""


def describe_polling(mode: PollMode, interval: timedelta, scans: Sequence[str]) -> str:
    """Describe the polling of a runner: its mode, its period and its own scans.

    Args:
        interval: the setting `poll_interval`.
        scans: the setting `scans`.
    """
    period = timedelta(seconds=mode.period(interval.total_seconds()))
    once = "" if interval else " once"
    return "; ".join((f"{mode} {format_duration(period)}{once}", *scans))


class OwnScan(NamedTuple):
    """Handlers with scans of their own, as names or patterns such as report.*, and the seconds between these."""

    pattern: str
    period: float

    def __str__(self) -> str:
        return f"{self.pattern}={format_duration(timedelta(seconds=self.period))}"


def parse_scans(parts: Sequence[str], handlers: Sequence[str]) -> dict[OwnScan, frozenset[str]]:
    """Parse the setting `scans`.

    Args:
        parts: such as report.*=1m.

    Returns:
        The handlers of each scan; the first pattern that matches a name counts.

    Raises:
        InvalidSettings: a part is not valid, or no handler matches it.
    """
    result: dict[OwnScan, frozenset[str]] = {}
    rest = sorted(handlers)
    for part in parts:
        pattern, _, period = part.rpartition("=")
        try:
            scan = OwnScan(pattern.strip(), parse_duration(period.strip()).total_seconds())
        except InvalidDuration:
            scan = OwnScan("", 0.0)
        if not scan.pattern or not scan.period:
            raise InvalidSettings(where="scans", why=f"{part!r} is not handlers and a period, such as report.*=1m")
        names = frozenset(name for name in rest if fnmatchcase(name, scan.pattern))
        if not names:
            why = f"{part!r}: no handler matches it that is not in another scan; the handlers are {', '.join(handlers)}"
            raise InvalidSettings(where="scans", why=why)
        result[scan] = names
        rest = [name for name in rest if name not in names]
    return result
