"""What becomes of a task after an attempt that did not simply succeed: a decision, as data."""

from dataclasses import dataclass
from datetime import timedelta

from runner.outcome import Cancelled, Dead, Failure, Outcome, Release, Retry, Snooze
from runner.policy.retry import parse_plan
from runner.times import parse_duration

FREE_RELEASES = 100
"""So many times a task may be handed back without using up an attempt; beyond, something is wrong with it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a decision needs to know of the row, as it is now.

    Args:
        attempt: the number of the attempt that has ended, from 1.
        max_attempts: in force now.
        retry: the retry plan in force, as text.
        releases: how often it has been handed back.
        cancel_requested: True when an operator asked for its end.
    """

    attempt: int
    max_attempts: int
    retry: str
    releases: int
    cancel_requested: bool


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
        case Cancelled(why=why):
            return Verdict("cancel", why=why)
        case Release(why=why):
            return Verdict("release", timedelta(0), counted=row.releases >= FREE_RELEASES, why=why)
        case _ if row.cancel_requested:
            return Verdict("cancel", why="terminated by an operator", failure=_failure(outcome))
        case Snooze(delay=delay, why=why):
            return Verdict("snooze", parse_duration(delay), counted=False, why=why)
        case Dead():
            failure = _failure(outcome)
            return Verdict("bury", failure=failure, why=failure.reason)
        case Retry(delay=delay):
            return _again(_failure(outcome), delay, row, random)
    raise AssertionError(outcome)


def _again(failure: Failure, delay: object, row: Standing, random: float) -> Verdict:
    if row.attempt >= row.max_attempts:
        return Verdict("bury", failure=failure, why=failure.reason)
    wait = parse_duration(delay) if delay is not None else parse_plan(row.retry).delay(row.attempt, random)  # type: ignore[arg-type]
    if wait is None:
        return Verdict("bury", failure=failure, why=failure.reason)
    return Verdict("retry", wait, failure=failure, why=failure.reason)


def _failure(outcome: Outcome) -> Failure:
    failure = getattr(outcome, "failure", None)
    return failure or Failure(type(outcome).__name__, getattr(outcome, "why", ""))
