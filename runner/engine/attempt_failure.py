"""Attempt failures: turn the exception that ended an attempt into its outcome."""

import logging
import traceback
from dataclasses import replace
from datetime import timedelta

from runner.engine.handler_result import handler_frames
from runner.engine.slots import Running
from runner.errors import TransactionUnavailable
from runner.handlers.registry import Handler
from runner.model.duration import format_duration
from runner.model.outcome import Dead, Failure, HandlerOutcome, Interrupted, Outcome, Release, Retry, Snooze

log = logging.getLogger("runner.task")


def timed_out(running: Running, limit: float | None) -> Retry | Release:
    """Return the outcome of an attempt that exceeded its timeout, in seconds."""
    if running.waits_for:
        return Release(f"timed out while waiting for a transaction: {running.waits_for}")
    allowed = format_duration(timedelta(seconds=limit or 0))
    return Retry(failure=Failure("Timeout", f"the task took longer than {allowed}"))


def interrupted(running: Running, most: int | None) -> Interrupted | Release:
    """Return the outcome of an attempt that its runner interrupted.

    Args:
        running: the task.
        most: maximum number of interruptions without a new checkpoint; None for no limit.
    """
    if running.waits_for:
        return Release("the runner stopped while the task waited for a transaction")
    return Interrupted(most)


def failed(running: Running, error: BaseException) -> Outcome:
    """Return the outcome of an exception, and keep the exception for logs."""
    if isinstance(error, HandlerOutcome):
        running.error = error.__cause__
        return _raised(error)
    running.error = error
    return _classify(running.handler, error)


def _raised(outcome: HandlerOutcome) -> Outcome:
    """Return an outcome that a handler raised, with the failure that it was raised from."""
    cause = outcome.__cause__
    match outcome:
        case Retry() | Dead():
            return replace(outcome, failure=None if cause is None else _with_reason(failure_of(cause), outcome.why))
        case Snooze():
            return replace(outcome)  # without its traceback
    raise outcome


def _classify(handler: Handler, error: BaseException) -> Outcome:
    if isinstance(error, TransactionUnavailable):
        return Release(str(error))
    failure = failure_of(error)
    if not isinstance(error, Exception):
        return Retry(failure=failure)
    try:
        outcome = handler.judge(error)
    except BaseException as second:  # on_error may raise or exit
        name, message = _describe(second)
        log.warning("on_error of %s failed: %s: %s", handler.name, name, message)
        return Retry(failure=replace(failure, message=f"{failure.message}; on_error raised {name}: {message}"))
    return (
        replace(outcome, failure=_with_reason(failure, outcome.why)) if isinstance(outcome, (Retry, Dead)) else outcome
    )


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
