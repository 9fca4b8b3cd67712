"""Handler results as JSON text that both databases accept."""

import inspect
import json
import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from runner.handlers.notes import InvalidCheckpoint
from runner.handlers.signature import HIDDEN, require_faithful, require_shown
from runner.model.outcome import RESULT_NOT_KEPT, Dead, Done, Failure, Outcome, Retry, Snooze
from runner.text.redact import MASK, secrets

if TYPE_CHECKING:
    from runner.engine.slots import Running

log = logging.getLogger("runner.task")

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of the character NUL in JSON. After an escaped backslash, `u0000` is text."""


PACKAGE = str(Path(__file__).parent.parent) + os.sep
"""The folder of this package, whose frames precede those of a handler."""


def handler_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback from the handler's own frame on; None if no handler raised the error."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(PACKAGE):
        frames = frames.tb_next
    return frames


def done(result: Any, limit: int) -> Done:
    """Return the outcome of a handler that returned normally.

    Args:
        result: the return value of the handler.
        limit: maximum size of the JSON text in bytes.

    Returns:
        An outcome with the result as JSON text, or with the reason why the result is not stored.
    """
    if result is None:
        return Done()
    try:
        return Done(json_text(result, limit, "result_limit"))
    except ValueError as error:
        return _not_kept(str(error))


def outcome_of(running: "Running", result: Any, limit: int) -> Outcome:
    """Return the outcome of a handler that returned, which may have returned an outcome.

    Args:
        running: the task.
        result: the return value of the handler.
        limit: maximum size of a result in bytes.
    """
    if isinstance(result, (Retry, Dead, Snooze)):
        return result
    if inspect.iscoroutine(result):
        result.close()
        return Dead("the handler returned a coroutine: define the handler with async def")
    outcome = done(result, limit)
    if outcome.why:
        log.warning("task %d (%s): %s", running.task.id, running.handler.name, outcome.why)
    return outcome


def json_text(value: Any, limit: int, setting: str) -> str:
    """Write a value as JSON text that both databases accept.

    Args:
        value: the value.
        limit: maximum size of the text in bytes.
        setting: the setting with this limit.

    Raises:
        ValueError: the value cannot be stored; the message is the reason, without the value.
    """
    try:
        text = to_json(value, inf_nan_mode="constants").decode()
        if "NaN" in text or "Infinity" in text:
            json.loads(text, parse_constant=_reject_constant)
        hidden = HIDDEN in text and _hides(value)
    except BaseException:  # methods of the value may raise anything, even SystemExit
        raise ValueError("it cannot be serialized as JSON") from None
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
        state: the state.
        limit: maximum size of the text in bytes.
        task_id: id of the task, for the message.

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


def _not_kept(why: str) -> Done:
    return Done(why=f"{RESULT_NOT_KEPT}: {why}")


def _reject_constant(constant: str) -> None:
    raise ValueError(constant)


def redact_outcome(outcome: Outcome, payload: str) -> Outcome:
    """Mask the values of secret payload fields in the reason and the failure of an outcome.

    Args:
        outcome: the outcome of an attempt.
        payload: the payload of the task as JSON text.
    """
    if not isinstance(outcome, (Retry, Dead)):
        return outcome
    values = secrets(payload)
    if not values:
        return outcome
    redacted = replace(outcome, why=_redact(outcome.why, values))
    return replace(redacted, failure=_redact_failure(outcome.failure, values)) if outcome.failure else redacted


def redact_error(error: BaseException, redacted: Outcome) -> BaseException:
    """Return an exception for logs and error trackers in the place of one whose text contains a secret.

    Args:
        error: the exception that ended the attempt.
        redacted: its outcome, with masked values.

    Returns:
        An exception of a class with the same name, with the masked message and the traceback of `error`.
    """
    failure, kind = getattr(redacted, "failure", None), type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    substitute: type[Exception] = type(kind.__name__, (Exception,), names)
    return substitute(failure.message if failure else "").with_traceback(error.__traceback__)


def _redact_failure(failure: Failure, values: list[str]) -> Failure:
    message, traceback = _redact(failure.message, values), _redact(failure.traceback, values)
    return replace(failure, message=message, traceback=traceback)


def _redact(text: str, values: list[str]) -> str:
    for secret in values:
        text = text.replace(secret, MASK)
    return text
