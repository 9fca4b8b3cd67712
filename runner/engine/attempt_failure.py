"""Attempt ends: turn the exception, the timeout or the result that ended an attempt into its outcome."""

import traceback
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

from runner.engine.handler_result import handler_frames, outcome_of
from runner.engine.slots import Running
from runner.errors import TransactionUnavailable
from runner.handlers.unexpected import DEFAULT_RULES, OutcomeRules
from runner.model.duration import format_duration
from runner.model.outcome import Dead, Failure, HandlerOutcome, Interrupted, Outcome, Release, Retry, Snooze
from runner.settings import Settings


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits of an attempt, and the rules for its unexpected results.

    Args:
        timeout: seconds for handlers and tasks without their own timeout; None for no limit.
        result: maximum size of a result in bytes.
        interruptions: maximum number of interruptions of a task without a new checkpoint; None for no limit.
        rules: the rules of the settings, for handlers without their own.
        spare_threads: maximum number of threads that replace abandoned ones.
    """

    timeout: float | None
    result: int
    interruptions: int | None = None
    rules: OutcomeRules = DEFAULT_RULES
    spare_threads: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that the settings contain.

        Raises:
            InvalidSettings: a rule is not valid.
        """
        timeout = settings.timeout.total_seconds() if settings.timeout else None
        rules, interruptions = OutcomeRules.of(settings), settings.max_interruptions
        return cls(timeout, int(settings.result_limit), interruptions, rules, settings.spare_threads)


def timed_out(running: Running, limit: float | None, rules: OutcomeRules) -> Outcome:
    """Return the outcome of an attempt that exceeded its timeout.

    Args:
        running: the task.
        limit: the timeout in seconds.
        rules: the rules of the settings.
    """
    if running.waits_for:
        return Release(f"timed out while waiting for a transaction: {running.waits_for}")
    message = f"the task took longer than {format_duration(timedelta(seconds=limit or 0))}"
    return _by_rule(running, TimeoutError(message), Failure("Timeout", message), rules)


def interrupted(running: Running, most: int | None) -> Interrupted | Release:
    """Return the outcome of an attempt that its runner interrupted.

    Args:
        running: the task.
        most: maximum number of interruptions without a new checkpoint; None for no limit.
    """
    if running.waits_for:
        return Release("the runner stopped while the task waited for a transaction")
    return Interrupted(most)


def failed(running: Running, error: BaseException, rules: OutcomeRules) -> Outcome:
    """Return the outcome of an exception, and keep the exception for logs.

    Args:
        running: the task.
        error: the exception.
        rules: the rules of the settings.
    """
    if isinstance(error, HandlerOutcome):
        running.error = error.__cause__
        return _raised(error)
    running.error = error
    if isinstance(error, TransactionUnavailable):
        return Release(str(error))
    failure = failure_of(error)
    return _by_rule(running, error, failure, rules) if isinstance(error, Exception) else Retry(failure=failure)


def returned(running: Running, result: Any, limits: AttemptLimits) -> Outcome:
    """Return the outcome of a handler that returned, which may have returned an outcome.

    Args:
        running: the task.
        result: the return value of the handler.
        limits: the limits of the attempt.
    """
    handler = running.handler
    if result is None and not running.done_in_tx and handler.result_type.excludes_none:
        message = f"None where a result of type {handler.result_type.name} is declared"
        return _by_rule(running, None, Failure("NoResult", message), limits.rules)
    return outcome_of(running, result, limits.result)


def _raised(outcome: HandlerOutcome) -> Outcome:
    """Return an outcome that a handler raised, with the failure that it was raised from."""
    cause = outcome.__cause__
    match outcome:
        case Retry() | Dead():
            return replace(outcome, failure=None if cause is None else _with_reason(failure_of(cause), outcome.why))
        case Snooze():
            return replace(outcome)  # without its traceback
    raise outcome


def _by_rule(running: Running, result: Exception | None, failure: Failure, rules: OutcomeRules) -> Outcome:
    """Let the rules decide about an exception, a timeout, or None."""
    handler = running.handler
    own = handler.on_none if result is None else handler.on_error
    decision = rules.decide(own, handler.name, result, running.make_context)
    if decision.fault:
        failure = replace(failure, message=f"{failure.message}; {decision.fault}")
    outcome = decision.outcome
    if not isinstance(outcome, (Retry, Dead)):
        return outcome
    return replace(outcome, failure=replace(_with_reason(failure, outcome.why), rule=decision.rule))


def _with_reason(failure: Failure, why: str) -> Failure:
    """Combine the reason from on_error with the message of the exception."""
    text = f" ({failure.message})" if failure.message else ""
    return replace(failure, message=f"{why}{text}") if why else failure


def failure_of(error: BaseException) -> Failure:
    """Return the failure for an exception that ended an attempt."""
    name, message = _describe(error)
    return Failure(name, message, _traceback(error))


def _describe(error: BaseException) -> tuple[str, str]:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        return name, str(error)
    except BaseException:  # __str__ of an exception may raise
        return name, "(message not readable)"


def _traceback(error: BaseException) -> str:
    """Format the traceback without the frames of the runner."""
    try:
        return "".join(traceback.format_exception(type(error), error, handler_frames(error), limit=-50))
    except BaseException:
        return ""
