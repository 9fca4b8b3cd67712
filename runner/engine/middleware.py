"""Middleware: runs the functions of @around_execute around the body of an attempt."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from runner.handlers.context import Context
from runner.handlers.life_cycle import Callback, InvalidCallback
from runner.model.outcome import HandlerOutcome

log = logging.getLogger("runner")

Body = Callable[[], Awaitable[Any]]


class Middleware:
    """The functions of @around_execute, in the order of registration.

    Args:
        callbacks: the functions; the first is the outermost.
        values: the open resources by name.
    """

    def __init__(self, callbacks: Sequence[Callback] = (), values: Mapping[str, Any] | None = None) -> None:
        self._callbacks = callbacks
        self._values = {} if values is None else values

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    async def run(self, context: Context, body: Body) -> Any:
        """Run the body of an attempt inside all functions.

        Args:
            context: the Context of the attempt.
            body: runs the handler.

        Returns:
            The result of the handler.

        Raises:
            BaseException: the exception of the handler, of a function before its `yield`, or the outcome that a
                function raised after it.
        """
        return await self._run(self._callbacks, context, body)

    async def _run(self, callbacks: Sequence[Callback], context: Context, body: Body) -> Any:
        if not callbacks:
            return await body()
        callback, *others = callbacks
        generator = callback.function(**callback.arguments(self._values, context))
        try:
            await _next(generator)
        except (StopIteration, StopAsyncIteration):
            raise _yields_wrong(callback) from None
        try:
            result = await self._run(others, context, body)
        except BaseException as error:
            await _end(callback, generator, context, error=error)
            raise
        await _end(callback, generator, context, result=result)
        return result


async def _next(generator: Any) -> None:
    if inspect.isasyncgen(generator):
        await anext(generator)
    else:
        next(generator)


async def _end(
    callback: Callback, generator: Any, context: Context, *, result: Any = None, error: BaseException | None = None
) -> None:
    """Run the part after `yield`, which receives the result or the exception."""
    try:
        if inspect.isasyncgen(generator):
            await (generator.asend(result) if error is None else generator.athrow(error))
        elif error is None:
            generator.send(result)
        else:
            generator.throw(error)
    except (StopIteration, StopAsyncIteration):
        return
    except HandlerOutcome as outcome:
        if outcome is not error and error is not None:
            raise outcome from error
    except BaseException as failure:
        if failure is error or _wraps(failure, error):
            return
        log.error("%s failed after task %d (%s)", callback.location, context.id, context.handler, exc_info=failure)
        return
    else:
        log.error("%s", _yields_wrong(callback))


def _wraps(failure: BaseException, error: BaseException | None) -> bool:
    """True for a StopIteration of the handler, which Python wraps when a generator raises it."""
    return isinstance(failure, RuntimeError) and failure.__cause__ is error and error is not None


def _yields_wrong(callback: Callback) -> InvalidCallback:
    return InvalidCallback(event=callback.event, name=callback.location, why="it must yield once")
