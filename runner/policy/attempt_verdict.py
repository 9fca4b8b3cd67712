"""The verdict on a task after an attempt that did not simply succeed, as data."""

import logging
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
    Outage,
    Outcome,
    Release,
    Retry,
    Snooze,
    Suspended,
)
from runner.model.task import State
from runner.policy.claim_conditions import used_up
from runner.policy.own_retry_plan import FailedRun, OwnPlan, PlanFault, title_of
from runner.policy.retry import parse_plan
from runner.text.sanitize import one_line

log = logging.getLogger("runner.task")

STANDARD = "1m,5m,20m"
"""The plan in place of a plan of the handler that does not decide."""

LONGEST_NAME = 200
"""Characters of a plan in messages."""

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
        task_id, handler, queue: the task, for plans of the user.
    """

    attempt: int
    max_attempts: int | None
    retry: str | None
    default_retry: str
    releases: int
    cancel_requested: bool
    interruptions: int = 0
    task_id: int = 0
    handler: str = ""
    queue: str = ""

    @property
    def used_up(self) -> bool:
        """True if this attempt was the last one."""
        return used_up(self.attempt, self.max_attempts)

    @property
    def may_return(self) -> bool:
        """True if the task has attempts left without this one; an operator may have lowered the maximum."""
        return not used_up(self.attempt - 1, self.max_attempts)

    def wait(self, failure: Failure, random: float) -> tuple[timedelta | None, str]:
        """The delay before the next attempt, and the own plan that decided; "" for another one.

        The plan is that of the row, or that of the handler if the first one is not valid or does not decide.
        """
        fault = ""
        for text in (self.retry or self.default_retry, self.default_retry, STANDARD):
            try:
                plan = parse_plan(text)
                if not isinstance(plan, OwnPlan):
                    return plan.delay(self.attempt, random), fault and f"by {plan}, because {fault}"
                run = FailedRun(
                    attempt=self.attempt,
                    max_attempts=self.max_attempts,
                    error_type=failure.type,
                    error_message=failure.message,
                    task_id=self.task_id,
                    handler=self.handler,
                    queue=self.queue,
                    random=random,
                )
                return plan.decide(run), f"by retry plan {title_of(plan.name)}"
            except (InvalidRetryPlan, PlanFault) as error:
                why = "is not loaded here" if isinstance(error, InvalidRetryPlan) else str(error)
                fault = fault or f"retry plan {title_of(text)[:LONGEST_NAME]} {why}"
        raise AssertionError(STANDARD)

    def decide(self, failure: Failure, random: float) -> tuple[timedelta | None, Failure]:
        """The delay before the next attempt, None without one; and the failure with the rule that decided."""
        delay, rule = self.wait(failure, random)
        if not rule:
            return delay, failure
        if "because" in rule:
            log.warning("task %d (%s): retried %s", self.task_id, one_line(self.handler), one_line(rule))
        decided = f"{State.DEAD if delay is None else 'retried'}, {rule}"
        return delay, replace(failure, rule=f"{failure.rule}; {decided}" if failure.rule else decided)


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
        case Interrupted() | Outage():
            return _interrupt(outcome.most, row) if isinstance(outcome, Interrupted) else _away(outcome, row, random)
        case Snooze(delay=delay, why=why) | Suspended(delay=delay, why=why):
            failure = getattr(outcome, "failure", None)
            pause = Verdict("retry" if failure else "snooze", parse_duration(delay), False, failure, why)
            return pause if row.may_return else _no_attempts_left(row)
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
            f"stops of runners and outages interrupted the task {times} times before it ended, and max_interruptions "
            f"is {most}: save checkpoints, split the task, or raise drain_timeout"
        )
        return _die(replace(INTERRUPTED, message=message))
    return Verdict("interrupt", timedelta(0), counted=False, failure=INTERRUPTED, why=INTERRUPTED.reason)


OUTAGE_PAUSE, MOST_PAUSE = 1.0, 60.0
"""Seconds until a task starts again after the first outage; they double with each one, up to a maximum."""


def _away(outage: Outage, row: AttemptState, random: float) -> Verdict:
    """Return a task to the queue after an outage. After too many of them attempts count, so that the task ends."""
    if not row.may_return:
        return _no_attempts_left(row)
    failure = outage.failure
    if outage.most is not None and row.interruptions >= outage.most:
        return _retry(failure, outage.delay, row, random)
    pause = min(OUTAGE_PAUSE * 2 ** min(row.interruptions, 10), MOST_PAUSE) * (1 + random / 4)
    delay = timedelta(seconds=pause) if outage.delay is None else parse_duration(outage.delay)
    return Verdict("interrupt", delay, counted=False, failure=failure, why=failure.reason)


def _no_attempts_left(row: AttemptState) -> Verdict:
    message = f"max_attempts was lowered to {row.max_attempts} after {row.attempt - 1} attempts"
    return _die(Failure("no attempts left", message))


def _retry(failure: Failure, delay: Delay | None, row: AttemptState, random: float) -> Verdict:
    if row.used_up:
        return _die(failure)
    wait, failure = row.decide(failure, random) if delay is None else (parse_duration(delay), failure)
    return _die(failure) if wait is None else Verdict("retry", wait, failure=failure, why=failure.reason)


def _die(failure: Failure) -> Verdict:
    return Verdict("die", failure=failure, why=failure.reason)


def _failure(outcome: Outcome) -> Failure:
    failure = getattr(outcome, "failure", None)
    return failure or Failure(type(outcome).__name__, getattr(outcome, "why", ""))
