"""The verdict on a task after an attempt that did not simply succeed, as data."""

from dataclasses import dataclass, replace
from datetime import timedelta

from runner.errors import InvalidRetryPlan
from runner.model.duration import parse_duration
from runner.model.outcome import (
    INTERRUPTED,
    Cancelled,
    Dead,
    Delay,
    Failure,
    Interrupted,
    Outcome,
    Release,
    Retry,
    Snooze,
)
from runner.policy.claim_conditions import used_up
from runner.policy.retry import RetryPlan, parse_plan

FREE_RELEASES = 100
"""Releases that do not use up an attempt. A task released more often has a problem of its own."""


@dataclass(frozen=True, slots=True)
class AttemptState:
    """The columns of the task's row that a verdict depends on, as they are now.

    Args:
        attempt: number of the finished attempt, from 1.
        max_attempts: current maximum; None if the column was set to NULL, which means no limit.
        retry: retry plan of the task as text, if it has one.
        default_retry: retry plan of the handler as text.
        releases: number of releases so far.
        cancel_requested: True if an operator requested termination.
        interruptions: number of interruptions since the last checkpoint.
    """

    attempt: int
    max_attempts: int | None
    retry: str | None
    default_retry: str
    releases: int
    cancel_requested: bool
    interruptions: int = 0

    @property
    def used_up(self) -> bool:
        """True if this attempt was the last one."""
        return used_up(self.attempt, self.max_attempts)

    @property
    def may_return(self) -> bool:
        """True if the task has attempts left without this one; an operator may have lowered the maximum."""
        return not used_up(self.attempt - 1, self.max_attempts)

    @property
    def plan(self) -> RetryPlan:
        """The effective retry plan: the handler's, if the one in the row is not valid."""
        try:
            return parse_plan(self.retry or self.default_retry)
        except InvalidRetryPlan:
            return parse_plan(self.default_retry)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The change to the task's row.

    Args:
        verb: key of MOVES.
        delay: time until the next attempt; None without one.
        counted: False if the attempt does not count.
        failure: cause, if the attempt failed.
        why: reason to show; "" keeps the last one.
    """

    verb: str
    delay: timedelta | None = None
    counted: bool = True
    failure: Failure | None = None
    why: str = ""


def judge(outcome: Outcome, row: AttemptState, random: float) -> Verdict:
    """Decide the effect of an outcome on a task.

    Args:
        outcome: outcome of the attempt; not Done.
        row: the task as it is now, so that an edit during the attempt counts.
        random: in [0, 1); spreads the delays.
    """
    match outcome:
        case _ if row.cancel_requested:
            return _terminate(outcome)
        case Cancelled() | Release():
            return _release(WITHDRAWN if isinstance(outcome, Cancelled) else outcome.why, row)
        case Interrupted(most=most):
            return _interrupt(most, row)
        case Snooze(delay=delay, why=why):
            return (
                Verdict("snooze", parse_duration(delay), counted=False, why=why)
                if row.may_return
                else _no_attempts_left(row)
            )
        case Dead():
            return _die(_failure(outcome))
        case Retry(delay=delay):
            return _retry(_failure(outcome), delay, row, random)
    raise AssertionError(outcome)


WITHDRAWN = "an operator requested its termination and withdrew the request while it was running"


def _terminate(outcome: Outcome) -> Verdict:
    if isinstance(outcome, Cancelled):
        return Verdict("cancel", why=outcome.why)
    failed = isinstance(outcome, (Retry, Dead))
    return Verdict("cancel", why="terminated by an operator", failure=_failure(outcome) if failed else None)


def _release(why: str, row: AttemptState) -> Verdict:
    if not row.may_return:
        return _no_attempts_left(row)
    counted = row.releases >= FREE_RELEASES
    if counted and row.used_up:
        return _die(Failure("released too often", why or f"{row.releases + 1} times"))
    return Verdict("release", timedelta(0), counted=counted, why=why)


def _interrupt(most: int | None, row: AttemptState) -> Verdict:
    if not row.may_return:
        return _no_attempts_left(row)
    times = row.interruptions + 1
    if most is not None and times > most:
        message = (
            f"runners stopped {times} times before the task ended, and max_interruptions is {most}: save checkpoints, "
            "split the task, or raise drain_timeout"
        )
        return _die(replace(INTERRUPTED, message=message))
    return Verdict("interrupt", timedelta(0), counted=False, failure=INTERRUPTED, why=INTERRUPTED.reason)


def _no_attempts_left(row: AttemptState) -> Verdict:
    message = f"max_attempts was lowered to {row.max_attempts} after {row.attempt - 1} attempts"
    return _die(Failure("no attempts left", message))


def _retry(failure: Failure, delay: Delay | None, row: AttemptState, random: float) -> Verdict:
    if row.used_up:
        return _die(failure)
    wait = row.plan.delay(row.attempt, random) if delay is None else parse_duration(delay)
    return _die(failure) if wait is None else Verdict("retry", wait, failure=failure, why=failure.reason)


def _die(failure: Failure) -> Verdict:
    return Verdict("die", failure=failure, why=failure.reason)


def _failure(outcome: Outcome) -> Failure:
    failure = getattr(outcome, "failure", None)
    return failure or Failure(type(outcome).__name__, getattr(outcome, "why", ""))
