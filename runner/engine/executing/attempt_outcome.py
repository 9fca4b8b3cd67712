"""The outcome of an attempt: from the result of its handler, as JSON text, or from its exception or timeout."""

import inspect
import json
import logging
import os
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic_core import PydanticSerializationError, to_json

from runner.engine.executing.outages import outage_of
from runner.engine.running import Running
from runner.errors import InvalidCheckpoint, StepsChanged, StoreError, TransactionUnavailable
from runner.handlers.outcome_rules import DEFAULT_RULES, OutcomeRules
from runner.handlers.signature import HIDDEN, require_faithful, require_shown
from runner.handlers.steps import Ended, Unawaited, suspension_in
from runner.model.duration import format_duration
from runner.model.outcome import (
    HANDLER_OUTCOMES,
    RESULT_NOT_KEPT,
    Dead,
    Done,
    Failure,
    HandlerOutcome,
    Interrupted,
    Outage,
    Outcome,
    Release,
    Retry,
    Snooze,
    Suspended,
    with_texts,
)
from runner.model.text_limits import ERROR_LIMIT, to_storable
from runner.resource_limits import reached_limit
from runner.settings import Settings
from runner.store.attempts import TRACEBACK_LIMIT
from runner.text.redact import hide
from runner.text.sanitize import error_text

log = logging.getLogger("runner.task")

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of the character NUL in JSON. After an escaped backslash, `u0000` is text."""


_UNKNOWN_TYPE = re.compile(r"Unable to serialize unknown type: <class '([^']+)'>")

UNFINISHED = {
    f"{kind.__module__}.{kind.__qualname__}": f"it contains a call of the Context, not its result: {advice}"
    for kind, advice in ((Ended, "return ctx.call(...).result()"), (Unawaited, "return await ctx.call(...)"))
}
"""The reasons why values with calls of a Context are not stored, by the types of the calls."""

UNAWAITED = "a call of its Context, which did not run: return await ctx.call(...)"

PACKAGE = str(Path(__file__).parents[2]) + os.sep
"""The folder of this package, whose frames precede those of a handler."""

CALLERS = ("runner.engine.executing.executor", "runner.handlers.functions")
"""The modules that call handlers. Frames of middleware precede theirs."""


OWN_CLASSES = "runner.engine."
"""The beginning of the names of the classes of errors without text of a handler; others may repeat a parent's error."""

DONE = Done()
"""The outcome of most attempts: a success without a result."""


def handler_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback from the handler's own frame on; None if the runner itself raised the error.

    An error of a middleware begins with the frame of the middleware.
    """
    first = frames = error.__traceback__
    while frames is not None:
        is_caller = frames.tb_frame.f_globals.get("__name__") in CALLERS
        frames = frames.tb_next
        first = frames if is_caller else first
    while first is not None and first.tb_frame.f_code.co_filename.startswith(PACKAGE):
        first = first.tb_next
    return first


def done(result: Any, limit: int) -> Done:
    """Return the outcome of a handler that returned normally.

    Args:
        limit: maximum size of the JSON text in bytes.

    Returns:
        An outcome with the result as JSON text, or with the reason why the result is not stored.
    """
    if result is None:
        return DONE
    try:
        return Done(json_text(result, limit, "result_limit"))
    except ValueError as error:
        return not_kept(str(error))


def json_text(value: Any, limit: int, setting: str) -> str:
    """Write a value as JSON text that both databases accept.

    Args:
        limit: maximum size of the text in bytes.

    Raises:
        ValueError: the value cannot be stored; the message is the reason, without the value.
    """
    try:
        text = to_json(value, inf_nan_mode="constants").decode()
        if "NaN" in text or "Infinity" in text:
            json.loads(text, parse_constant=_reject_constant)
        hidden = HIDDEN in text and _hides(value)
    except BaseException as error:  # methods of the value may raise anything, even SystemExit
        raise ValueError(_not_json(error)) from None
    if hidden:
        raise ValueError("it contains a secret, of which JSON would hold asterisks")
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("it contains the character NUL, which PostgreSQL cannot store")
    if len(text) * 4 > limit and (size := len(text.encode())) > limit:
        raise ValueError(f"{size:,} bytes exceed the {setting} of {limit:,}")
    return text


def checkpoint_text(state: Any, limit: int, task_id: int) -> str:
    """Write the state of a checkpoint as JSON text.

    Args:
        limit: maximum size of the text in bytes.

    Raises:
        InvalidCheckpoint: the state is not JSON or too large.
    """
    try:
        return json_text(state, limit, "checkpoint_limit")
    except ValueError as error:
        raise InvalidCheckpoint(id=task_id, type=type(state).__qualname__, why=str(error)) from None


def _hides(result: Any) -> bool:
    try:
        require_faithful(result, require_shown)
    except ValueError:
        return True
    return False


def not_kept(why: str) -> Done:
    """Return the outcome of a handler whose result is not stored."""
    return Done(why=f"{RESULT_NOT_KEPT}: {why}")


def _not_json(error: BaseException) -> str:
    """The reason why a value is not JSON, without the value."""
    match error:
        case NotFinite():
            return f"it contains {error}, which is not JSON"
        case PydanticSerializationError() if unknown := _UNKNOWN_TYPE.search(str(error)):
            return UNFINISHED.get(
                unknown[1], f"it contains an object of type {unknown[1]}, which cannot be serialized as JSON"
            )
    return "it cannot be serialized as JSON"


class NotFinite(ValueError):
    """A constant that `json` reads although JSON has no such number."""


def _reject_constant(constant: str) -> None:
    raise NotFinite(constant)


def redact_outcome(outcome: Outcome, secrets: Callable[[], Sequence[str]]) -> Outcome:
    """Mask secret values in the reason and the failure of an outcome.

    Args:
        outcome: the outcome of an attempt.
        secrets: returns the values of the secret payload fields and headers of its task.
    """
    if not isinstance(outcome, (Retry, Dead, Snooze, Suspended, Outage)) or not (values := secrets()):
        return outcome
    return with_texts(outcome, lambda why: hide(why, values), lambda failure: _redact_failure(failure, values))


def cut_outcome(outcome: Outcome) -> Outcome:
    """Cut the texts of an outcome to the sizes that are stored: it may wait for the database for a long time."""
    return with_texts(outcome, lambda why: to_storable(why, ERROR_LIMIT), _cut_failure)


def _cut_failure(failure: Failure) -> Failure:
    message, traceback = to_storable(failure.message, ERROR_LIMIT), to_storable(failure.traceback, TRACEBACK_LIMIT)
    return replace(failure, message=message, traceback=traceback)


def redact_error(error: BaseException, redacted: Outcome) -> BaseException:
    """Return an exception for logs and error trackers in the place of one whose text contains a secret.

    Args:
        redacted: its outcome, with masked values.

    Returns:
        An exception of a class with the same name, with the masked message and the traceback of `error`.
    """
    failure = getattr(redacted, "failure", None)
    return substitute_of(error, failure.message if failure else "")


def substitute_of(error: BaseException, text: str) -> BaseException:
    """Return an exception of a class with the same name, with this text and the traceback of an exception."""
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    substitute: type[Exception] = type(kind.__name__, (Exception,), names)
    return substitute(text).with_traceback(error.__traceback__)


def is_readable(error: BaseException) -> bool:
    """True unless reading the text of an exception raises, which may end the code of a log handler or of a hook."""
    if type(error).__str__ in _PLAIN:
        return True
    try:
        str(error)
    except BaseException:
        return False
    return True


_PLAIN = (BaseException.__str__, OSError.__str__, KeyError.__str__)
"""The methods that most exceptions inherit."""


def _redact_failure(failure: Failure, values: Sequence[str]) -> Failure:
    return replace(failure, message=hide(failure.message, values), traceback=hide(failure.traceback, values))


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
        limit: the timeout in seconds.
    """
    if running.waits_for:
        return Release(f"timed out while waiting for a transaction: {running.waits_for}")
    message = f"the task took longer than {format_duration(timedelta(seconds=limit or 0))}"
    return _by_rule(running, TimeoutError(message), Failure("Timeout", message, is_plain=True), rules)


def interrupted(running: Running, most: int | None) -> Interrupted | Release:
    """Return the outcome of an attempt that its runner interrupted.

    Args:
        most: maximum number of interruptions without a new checkpoint; None for no limit.
    """
    if running.waits_for:
        return Release("the runner stopped while the task waited for a transaction")
    return Interrupted(most)


def failed(running: Running, error: BaseException, limits: AttemptLimits) -> Outcome:
    """Return the outcome of an exception, and keep the exception for logs."""
    if (suspension := suspension_in(error)) is not None:
        return suspension.outcome
    outage = outage_of(running, error)
    if outage is not None and not isinstance(error, (Dead, Snooze)):
        return handed_back(running, error, outage, limits.interruptions)
    if isinstance(error, HandlerOutcome):
        running.error = error.__cause__
        return _raised(error)
    failure = failure_of(error)
    running.error = error if is_readable(error) else substitute_of(error, failure.message)
    if isinstance(error, StepsChanged):  # the same code fails again
        return Dead(failure=failure)
    return _by_rule(running, error, failure, limits.rules) if isinstance(error, Exception) else Retry(failure=failure)


def handed_back(running: Running, error: BaseException, outage: StoreError, most: int | None) -> Outcome:
    """Return the outcome of an attempt that an outage ended: it does not count."""
    failure = failure_of(error)
    running.error = error if is_readable(error) else substitute_of(error, failure.message)
    if isinstance(outage, TransactionUnavailable):
        return Release(str(outage))
    message = f"{outage} The attempt does not count: the connection of its runner failed, not the handler."
    delay = error.delay if isinstance(error, Retry) else None
    return Outage(replace(failure, type=type(outage).__name__, message=message), most, delay)


def cancelled_from_inside(running: Running, error: BaseException, *, is_job: bool) -> Outcome:
    """Return the outcome of a CancelledError that the runner did not cause.

    Args:
        is_job: True if the asyncio task of the attempt itself was cancelled, and not something that it awaited.
    """
    running.error = error
    failure = failure_of(error)
    why = "the handler's task was cancelled from inside, not by the runner" if is_job else AWAITED
    return Retry(failure=replace(failure, message=f"{failure.message}; {why}" if failure.message else why))


AWAITED = "the handler raised it, or awaited something that was cancelled; the runner did not cancel it"


def result_outcome(running: Running, result: Any, limits: AttemptLimits) -> Outcome:
    """Return the outcome of a handler that returned, which may have returned an outcome."""
    handler = running.handler
    if result is None:
        if running.is_chunk or running.done_in_tx or not handler.result_type.excludes_none:
            return DONE
        message = f"None where a result of type {handler.result_type.name} is declared"
        return _by_rule(running, None, Failure("NoResult", message, is_plain=True), limits.rules)
    if isinstance(result, HANDLER_OUTCOMES):
        return replace(result)  # it has a traceback if the handler has raised and caught it
    if advice := _advice(result):
        return Dead(f"the handler returned {advice}")
    if running.is_chunk:
        log.warning("a chunk of %s: its return value is not kept; use task.succeed(result)", handler.name)
        return DONE
    outcome = done(result, limits.result)
    if outcome.why:
        log.warning("task %d (%s): %s", running.task.id, handler.name, outcome.why)
    return outcome


def _advice(result: Any) -> str:
    """Advice about a result that shows that the work is not done; empty for any other."""
    if inspect.iscoroutine(result) or isinstance(result, Unawaited):
        result.close()
        return "a coroutine: define the handler with async def" if inspect.iscoroutine(result) else UNAWAITED
    if isinstance(result, type) and issubclass(result, HANDLER_OUTCOMES):
        return f"the class {result.__name__}: call it, such as {result.__name__}(...)"
    return ""


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
    if running.is_chunk:  # a rule decides about each task, with its Context
        running.general = lambda member: _by_rule(member, result, failure, rules)
        return Retry(failure=failure)
    own = handler.on_none if result is None else handler.on_error
    decision = rules.decide(own, handler.name, result, partial(running.make_context, running))
    if decision.fault:
        failure = replace(failure, message=f"{failure.message}; {decision.fault}", is_plain=False)
    outcome = decision.outcome
    if not isinstance(outcome, (Retry, Dead)):
        return outcome
    return replace(outcome, failure=replace(_with_reason(failure, outcome.why), rule=decision.rule))


def _with_reason(failure: Failure, why: str) -> Failure:
    """Combine the reason from on_error with the message of the exception."""
    text = f" ({failure.message})" if failure.message else ""
    return replace(failure, message=f"{why}{text}", is_plain=False) if why else failure


def failure_of(error: BaseException) -> Failure:
    """Return the failure for an exception that ended an attempt."""
    name, message = _describe(error)
    if limit := reached_limit(error):
        message = f"{message} ({limit})".strip()
    return Failure(name, message, _traceback(error), is_plain=name.startswith(OWN_CLASSES))


def _describe(error: BaseException) -> tuple[str, str]:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name, error_text(error)


def _traceback(error: BaseException) -> str:
    """Format the traceback without the frames of the runner."""
    try:
        return "".join(traceback.format_exception(type(error), error, handler_frames(error), limit=-50))
    except BaseException:
        return ""
