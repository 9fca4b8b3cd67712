"""Inline calls: run a handler now, and store a task only if it fails."""

import logging
from collections.abc import Mapping
from typing import Any

from runner.client.client import get_client
from runner.errors import InvalidInline
from runner.handlers.chunk import Chunk, ChunkTask
from runner.handlers.context import AttemptLogger, Context, MemoryNotes
from runner.handlers.outcome_rules import OutcomeRules
from runner.handlers.registry import Handler
from runner.model.outcome import Dead, Delay, HandlerOutcome, Outcome, Retry, Snooze

log = logging.getLogger("runner.task")


def inline_arguments(handler: Handler, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call as a runner would pass them, validated and with a Context without a runner.

    Raises:
        InvalidPayload: the arguments do not match the handler's signature.
        InvalidInline: the handler needs a resource, which only a runner opens.
    """
    if handler.resources:
        names = ", ".join(sorted(handler.resources))
        raise InvalidInline(handler=handler.name, why=f"only a runner opens its resources: {names}")
    payload = handler.signature.encode(args, kwargs)
    if handler.chunk is not None:
        task: ChunkTask[Any, Any] = ChunkTask(handler.signature.read(payload), lambda: _context(handler, payload))
        return {handler.chunk.parameter: Chunk([task])}
    arguments = handler.signature.decode(payload)
    return arguments | handler.injections(lambda: _context(handler, payload))


def _context(handler: Handler, payload: str = "{}") -> Context:
    notes = MemoryNotes()
    logger = AttemptLogger(log, {"handler": handler.name}, notes, payload)
    return Context(0, None, 1, 1, 0, None, logger, handler=handler.name, notes=notes)


def inline_result(handler: Handler, arguments: Mapping[str, Any], returned: Any) -> Any:
    """Return the result of an inline call. Refuse one that a runner would not accept either.

    Args:
        arguments: the arguments of the call, which contain the outcome of the only task of a chunk.
        returned: the return value of the function.

    Raises:
        HandlerOutcome: the outcome that the handler returned, or that the rule for None decided.
        BaseException: the outcome that a chunk handler has set.
    """
    result = returned
    if handler.chunk is not None and returned is None:
        outcome = arguments[handler.chunk.parameter][0].outcome
        if isinstance(outcome, BaseException):
            raise outcome
        result = None if outcome is None else outcome.result
    _require_result(handler, result)
    return result


def _require_result(handler: Handler, result: Any) -> None:
    if isinstance(result, HandlerOutcome):
        raise result
    if result is None and handler.result_type.excludes_none:
        outcome = _decide(handler, None)
        if isinstance(outcome, HandlerOutcome):
            outcome.why = outcome.why or f"None where a result of type {handler.result_type.name} is declared"
            raise outcome


def _decide(handler: Handler, result: Exception | None) -> Outcome:
    own = handler.on_none if result is None else handler.on_error
    rules = OutcomeRules.of(get_client().settings)
    return rules.decide(own, handler.name, result, lambda: _context(handler)).outcome


def delay_after(handler: Handler, outcome: Exception) -> Delay | None:
    """Decide about the end of an inline call: return the delay of the task to store, or None to store it due now.

    Args:
        outcome: its exception, or the Retry, Dead or Snooze that it returned.

    Raises:
        Exception: the call failed for good: the exception itself, or Dead.
    """
    verdict = outcome if isinstance(outcome, HandlerOutcome) else _decide(handler, outcome)
    if isinstance(verdict, Dead):
        raise outcome
    log.warning("%s failed inline, storing a task: %s: %s", handler.name, type(outcome).__name__, outcome)
    return verdict.delay if isinstance(verdict, (Retry, Snooze)) else None
