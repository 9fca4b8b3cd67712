"""Middleware around a handler outside of its runner."""

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable
from typing import Any

from runner.engine.executing.attempt_outcome import AttemptLimits, failed, result_outcome
from runner.engine.hosting.hooks import Middleware
from runner.engine.running import Running
from runner.handlers.context import Context
from runner.model.outcome import Done, Outcome


async def run_in_middleware(
    middleware: Middleware,
    running: Running,
    context: Callable[[], Context],
    run: Callable[[], Awaitable[Outcome]],
    limits: AttemptLimits,
) -> Outcome:
    """Run a handler inside the middleware, which sees its result as plain JSON, and its exception as a copy.

    Args:
        context: makes the Context of the middleware.
        run: runs the handler and returns its outcome.
    """
    if not running.around:
        return await run()
    outcome: Outcome | None = None
    value: Any = None
    error: BaseException | None = None

    async def body() -> Any:
        nonlocal outcome, value, error
        running.context = contextvars.copy_context()  # inside the middleware
        outcome = await run()
        if isinstance(outcome, Done):
            value = None if outcome.result is None else json.loads(outcome.result)
            return value
        error = running.error or (outcome if isinstance(outcome, BaseException) else asyncio.CancelledError())
        raise error

    try:
        result = await middleware.run(context(), body, running.around)
    except BaseException as raised:
        return outcome if outcome is not None and raised is error else failed(running, raised, limits)
    if isinstance(outcome, Done) and result is value:
        return outcome
    return result_outcome(running, result, limits)
