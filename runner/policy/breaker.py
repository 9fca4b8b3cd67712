"""breaker: a handler stops while the service that it calls fails, and starts again by itself.

A breaker is closed at first. It opens after a number of failures within a window, or at one exception of some classes.
While it is open, the tasks of the handler wait, and spend no attempts. After a wait a few tasks probe the service: the
first one that ends without such a failure closes the breaker, and a failure begins the next wait. All runners share the
state, which is in the registry row of the handler; see runner.store.breaker.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from runner.errors import InvalidEdit, InvalidHandler, InvalidRetryPlan
from runner.model.duration import LONGEST_SECONDS, format_duration
from runner.model.outcome import Dead, Outcome, Retry
from runner.policy.rate import Rate
from runner.text.sanitize import count_noun

ErrorClasses: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]

Effect: TypeAlias = Literal["", "counts", "opens"]
"""The effect of the end of an attempt on a closed breaker."""

MOST_FAILURES, MOST_PROBES = 10_000, 1_000
SHORTEST_WAIT = timedelta(seconds=1)

TIMEOUT = "Timeout"
"""The type of the failure of an attempt that exceeded its timeout."""

EXAMPLES = "such as 10/min, 5/30s or 100/5min"


class Breaker(NamedTuple):
    """When a handler stops, and how it starts again.

    Args:
        failures: number of failures within a window that opens it: 10/min, 5/30s, 100/5min; None for only `opens_on`.
        errors: exception classes that count; TimeoutError includes the timeout of a task. None for every failure that
            leads to a retry.
        opens_on: exception classes of which one exception opens it.
        probe: wait until the next probe, as a retry plan: 30s, "10s,1m,5m", exp:10s*2<10m.
        probes: number of tasks that probe together.
    """

    failures: str | None = None
    errors: ErrorClasses | None = None
    opens_on: ErrorClasses = ()
    probe: str = "30s"
    probes: int = 1

    @property
    def columns(self) -> dict[str, Any]:
        """The definition, as the registry of handlers stores it.

        Raises:
            InvalidEdit: a value is not valid.
        """
        rate = None if self.failures is None else _failures(self.failures)
        opens_on = _names("breaker.opens_on", self.opens_on)
        if rate is None and not opens_on:
            raise InvalidEdit(field="breaker", value="", why=f"name a number of failures, {EXAMPLES}, or opens_on")
        return {
            "failures": rate and rate.tokens,
            "window": rate and rate.period,
            "errors": None if self.errors is None else _names("breaker.errors", self.errors),
            "opens_on": opens_on,
            "probe": _probe(self.probe),
            "probes": _number("breaker.probes", self.probes, MOST_PROBES),
        }

    def effect(self, outcome: Outcome, error: BaseException | None) -> Effect:
        """Decide the effect of the end of an attempt.

        An outcome Dead judges the task and not the service, so it counts only if `errors` names its exception.

        Args:
            outcome: the outcome.
            error: the exception that led to it; None without one.
        """
        if not isinstance(outcome, (Retry, Dead)):
            return ""
        if error is None and outcome.failure is not None and outcome.failure.type == TIMEOUT:
            error = TimeoutError()
        if isinstance(error, self.opens_on):
            return "opens"
        counts = isinstance(outcome, Retry) if self.errors is None else isinstance(error, self.errors)
        return "counts" if counts else ""


def read_breaker(name: str, value: str | Breaker | None) -> Breaker | None:
    """Read the option `breaker` of a handler.

    Args:
        name: name of the handler.
        value: the option.

    Raises:
        InvalidHandler: it is not valid.
    """
    if value is None:
        return None
    breaker = value if isinstance(value, Breaker) else Breaker(value)
    try:
        _ = breaker.columns
    except InvalidEdit as error:
        raise InvalidHandler(name=name, why=str(error)) from None
    return breaker


def _failures(text: str) -> Rate:
    try:
        rate = Rate.parse(str(text))
    except InvalidEdit:
        raise InvalidEdit(field="breaker", value=str(text), why=f"expected failures per time, {EXAMPLES}") from None
    _number("breaker", rate.tokens, MOST_FAILURES)
    return rate


def _probe(text: str) -> str:
    from runner.policy.retry import parse_plan  # the start of the console and of the CLI does not need it

    try:
        plan = parse_plan(str(text))
    except InvalidRetryPlan as error:
        raise InvalidEdit(field="breaker.probe", value=str(text), why=str(error.fields["why"])) from None
    first = plan.delay(1, 0.0)
    if first is None or first < SHORTEST_WAIT:
        raise InvalidEdit(field="breaker.probe", value=str(text), why="the wait must be at least 1s, such as 30s")
    return str(plan)


def _number(field: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidEdit(field=field, value=str(value), why=f"it must be a whole number from 1 to {most:,}")
    return value


def _names(field: str, classes: Any) -> list[str]:
    each = classes if isinstance(classes, tuple) else (classes,)
    for one in each:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidEdit(field=field, value=str(one), why="expected an exception class, or a tuple of them")
    return [one.__qualname__ for one in each]


class BreakerDefinition(NamedTuple):
    """The definition of a breaker, as a registry row has it.

    Args:
        failures: number of failures that opens it; None if only an exception class does.
        window: seconds.
        probe: wait until the next probe, as a retry plan.
        probes: number of tasks that probe together.
        errors: names of the classes that count; None for every failure that leads to a retry.
        opens_on: names of the classes of which one exception opens it.
    """

    failures: int | None
    window: float | None
    probe: str
    probes: int
    errors: tuple[str, ...] | None = None
    opens_on: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Read the JSON of a registry row; None without a breaker, or if it is not readable."""
        try:
            row = json.loads(value) if isinstance(value, str) else value
            if not isinstance(row, Mapping):
                return None
            names = None if row["errors"] is None else tuple(str(name) for name in row["errors"])
            opens_on = tuple(str(name) for name in row["opens_on"])
            failures = None if row["failures"] is None else _number("failures", row["failures"], MOST_FAILURES)
            window = None if failures is None else float(row["window"])
            if window is not None and not (isfinite(window) and 0 < window < LONGEST_SECONDS):
                return None
            return cls(failures, window, _probe(row["probe"]), _number("", row["probes"], MOST_PROBES), names, opens_on)
        except (TypeError, ValueError, KeyError, InvalidEdit):
            return None

    def wait(self, number: int, random: float) -> float:
        """Seconds until the next probes.

        Args:
            number: number of the wait since the breaker opened, from 1.
            random: in [0, 1); spreads the waits of a plan with a random part.
        """
        from runner.policy.retry import parse_plan

        delay = parse_plan(self.probe).delay(max(1, number), random) or SHORTEST_WAIT
        return max(delay, SHORTEST_WAIT).total_seconds()

    @property
    def span(self) -> str:
        """The window in words."""
        return format_duration(timedelta(seconds=self.window or 0))

    def __str__(self) -> str:
        kinds = "" if self.errors is None else f" of {', '.join(self.errors)}"
        parts = [] if self.failures is None else [f"{count_noun(self.failures, 'failure')}{kinds} in {self.span}"]
        parts += [f"one {name}" for name in self.opens_on]
        return f"{' or '.join(parts)}; {count_noun(self.probes, 'probe')} after {self.probe}"


class OpenBreaker(NamedTuple):
    """The state of an open breaker.

    Args:
        probes: number of tasks that probe together.
        next_in: seconds until the next probe; zero or less if it may start now.
        wait: seconds between the probes of this round and the next ones.
        round: number of the round since it opened, from 1.
        opened_at: when it opened; identifies the opening.
        since: how long ago it opened, in words.
        why: the reason.
        by: the operator who opened it; None if it opened by itself.
    """

    probes: int
    next_in: float
    wait: float
    round: int = 1
    opened_at: datetime | None = None
    since: str = ""
    why: str = ""
    by: str | None = None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self | None:
        """Read the columns of a registry row and `probe_in`, the seconds until the next probe; None if it is closed."""
        if row.get("breaker_probes") is None:
            return None
        numbers = row["breaker_probes"], float(row["probe_in"] or 0.0), float(row["breaker_wait"] or 0.0)
        return cls(*numbers, row["breaker_round"] or 1, row["breaker_opened_at"])

    @property
    def room(self) -> int:
        """The number of tasks that may start now."""
        return 0 if self.next_in > 0 else self.probes


class Probe(NamedTuple):
    """The round of probes in which a task was claimed.

    Args:
        opened_at: when the breaker opened.
        round: number of the round since then.
    """

    opened_at: datetime | None
    round: int
