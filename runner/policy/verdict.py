"""What becomes of a task after an attempt that did not simply succeed: a decision, as data."""

from dataclasses import dataclass
from datetime import timedelta

from runner.errors import InvalidRetryPlan
from runner.outcome import Cancelled, Dead, Delay, Failure, Outcome, Release, Retry, Snooze
from runner.people.times import parse_duration
from runner.policy.retry import RetryPlan, parse_plan

FREE_RELEASES = 100
"""So many times a task may be handed back without using up an attempt; beyond, something is wrong with it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a decision needs to know of the row, as it is now.

    Args:
        attempt: the number of the attempt that has ended, from 1.
        max_attempts: in force now; None when somebody has deleted it, which limits nothing.
        retry: the task's own retry plan as text, if it has one.
        default_retry: the handler's retry plan as text.
        releases: how often it has been handed back.
        cancel_requested: True when an operator asked for its end.
    """

    attempt: int
    max_attempts: int | None
    retry: str | None
    default_retry: str
    releases: int
    cancel_requested: bool

    @property
    def used_up(self) -> bool:
        """True when this attempt was the last one."""
        return self.max_attempts is not None and self.attempt >= self.max_attempts

    @property
    def may_return(self) -> bool:
        """True when a claim would take the task again if this attempt did not count: its maximum may have been cut."""
        return self.max_attempts is None or self.attempt - 1 < self.max_attempts

    @property
    def plan(self) -> RetryPlan:
        """The retry plan in force: the handler's, when what somebody wrote into the row is none."""
        try:
            return parse_plan(self.retry or self.default_retry)
        except InvalidRetryPlan:
            return parse_plan(self.default_retry)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with the row.

    Args:
        verb: a key of MOVES.
        delay: time until the next attempt; None when there will be none.
        counted: False when this attempt does not count.
        failure: why, when it failed.
        why: the reason to show; empty keeps the last one.
    """

    verb: str
    delay: timedelta | None = None
    counted: bool = True
    failure: Failure | None = None
    why: str = ""


def judge(outcome: Outcome, row: Standing, random: float) -> Verdict:
    """Decide what an outcome means for a task.

    Args:
        outcome: of the attempt; not Done.
        row: the task as it is now, so that an edit made while it ran counts.
        random: in [0, 1), spreads the delays.
    """
    match outcome:
        case _ if row.cancel_requested:
            return _terminate(outcome)
        case Cancelled():
            return _hand_back(WITHDRAWN, row)
        case Release(why=why):
            return _hand_back(why, row)
        case Snooze(delay=delay, why=why):
            return Verdict("snooze", parse_duration(delay), counted=False, why=why) if row.may_return else _spent(row)
        case Dead():
            return _bury(_failure(outcome))
        case Retry(delay=delay):
            return _again(_failure(outcome), delay, row, random)
    raise AssertionError(outcome)


WITHDRAWN = "its end was asked for, and that was taken back while it was carried out"


def _terminate(outcome: Outcome) -> Verdict:
    if isinstance(outcome, Cancelled):
        return Verdict("cancel", why=outcome.why)
    failed = isinstance(outcome, (Retry, Dead))
    return Verdict("cancel", why="terminated by an operator", failure=_failure(outcome) if failed else None)


def _hand_back(why: str, row: Standing) -> Verdict:
    if not row.may_return:
        return _spent(row)
    counted = row.releases >= FREE_RELEASES
    if counted and row.used_up:
        return _bury(Failure("handed back too often", why or f"{row.releases + 1} times"))
    return Verdict("release", timedelta(0), counted=counted, why=why)


def _spent(row: Standing) -> Verdict:
    used = f"{row.attempt - 1} attempts were used when the maximum was set to {row.max_attempts}"
    return _bury(Failure("no attempts left", used))


def _again(failure: Failure, delay: Delay | None, row: Standing, random: float) -> Verdict:
    if row.used_up:
        return _bury(failure)
    wait = row.plan.delay(row.attempt, random) if delay is None else parse_duration(delay)
    return _bury(failure) if wait is None else Verdict("retry", wait, failure=failure, why=failure.reason)


def _bury(failure: Failure) -> Verdict:
    return Verdict("bury", failure=failure, why=failure.reason)


def _failure(outcome: Outcome) -> Failure:
    failure = getattr(outcome, "failure", None)
    return failure or Failure(type(outcome).__name__, getattr(outcome, "why", ""))
