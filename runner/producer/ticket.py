"""Ticket: what a submit returns, the task's id and the way to its result."""

import asyncio
import contextlib
import json
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from runner.door.door import door
from runner.errors import InvalidResult, ResultNotKept, TaskCancelled, TaskFailed, TimedOut, WouldBlock
from runner.handlers import REGISTRY
from runner.outcome import RESULT_NOT_KEPT, Delay
from runner.people.times import format_duration, parse_duration
from runner.task import State

if TYPE_CHECKING:
    from concurrent.futures import Future

    from runner.store.observe.endings import Ending

R = TypeVar("R")

LAST_LOOK = 1.0
"""Seconds that a look may take when the time-out has come: looks are seldom, and the task may have ended since the last
one, or even before the first, where the time-out is 0."""


class Ticket(int, Generic[R]):
    """The id of a task that was submitted; a plain number to whoever wants no more.

    Example:
        >>> charge.submit(order=1, cents=5).result(timeout="30s")
        'charged 5 for order 1'
    """

    __slots__ = ()  # so that the garbage collector has nothing to do with a hundred thousand of them

    duplicate: ClassVar[bool] = False
    """True when the task was there already, and nothing was added."""

    def result(self, timeout: Delay | None = None) -> R:
        """Wait until the task has ended, in any thread without an event loop.

        Args:
            timeout: how long at most: text ("30s"), seconds or timedelta; None waits for ever.

        Returns:
            What the handler returned, as the type that its annotation promises; without an annotation, or where the
            handler is not known in this program, as JSON has it.

        Raises:
            TaskFailed: it is dead; with the type, the message and the traceback of the last exception.
            TaskCancelled: it was terminated.
            TimedOut: it has not ended in time; it goes on.
            TaskNotFound: there is no such task: never, not yet (its transaction is open), or no more (pruned).
            ResultNotKept: it succeeded, and what it returned was too large, or no JSON.
            InvalidResult: what it returned does not fit the annotation.
            DatabaseAway: the database cannot be reached, and has not been for a while.
            WouldBlock: when called on an event loop: await `wait` there.
        """
        return _result(ended(self, timeout))  # type: ignore[no-any-return] # it was checked against the annotation

    async def wait(self, timeout: Delay | None = None) -> R:
        """Do what `result` does on an event loop."""
        waiting, ending = door().waiting, None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_seconds(timeout)):
                ending = await asyncio.wrap_future(waiting.wait(self))
        if ending is None and waiting.trouble is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LOOK):
                    ending = await asyncio.wrap_future(waiting.ask(self))
        if ending is None:
            raise waiting.trouble or _timed_out(self, timeout)
        return _result(ending)  # type: ignore[no-any-return] # as above


class DuplicateTicket(Ticket[R]):
    """The id of a task that stood in the way of another with the same unique key."""

    __slots__ = ()

    duplicate = True


def tickets(ids: Iterable[int], duplicates: Collection[int] = ()) -> list[Ticket[R]]:
    """Make a ticket of each id.

    Args:
        ids: the tasks'.
        duplicates: the places, from 0, of those that were there already.
    """
    made: list[Ticket[R]] = [*map(Ticket, ids)]
    for place in duplicates:
        made[place] = DuplicateTicket(made[place])
    return made


def ended(id: int, timeout: Delay | None) -> "Ending":
    """Wait in a thread without an event loop until a task has ended, however it does.

    Raises:
        TimedOut: it has not ended in time; see Ticket.result for the rest.
    """
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise WouldBlock(call="result", instead="wait")
    waiting = door().waiting
    ending = _known(waiting.wait(id), _seconds(timeout))
    if ending is None and waiting.trouble is None:
        ending = _known(waiting.ask(id), LAST_LOOK)
    if ending is None:
        raise waiting.trouble or _timed_out(id, timeout)
    return ending


def _known(told: "Future[Ending] | Future[Ending | None]", seconds: float | None) -> "Ending | None":
    try:
        return told.result(seconds)
    except TimeoutError:
        told.cancel()
        return None


def kept(ending: "Ending") -> str | None:
    """The result of a task that has ended, as JSON text; None when its handler returned nothing.

    Raises:
        TaskFailed: it is dead.
        TaskCancelled: it was terminated.
        ResultNotKept: there was a result, and it is lost.
    """
    task = {"id": ending.id, "handler": ending.handler}
    if ending.state is State.DEAD:
        told = {"error_type": ending.error_type, "message": ending.message, "traceback": ending.traceback}
        raise TaskFailed(**task, attempts=ending.attempt, reason=ending.error or ending.error_type, **told)
    if ending.state is State.CANCELLED:
        raise TaskCancelled(**task, reason=ending.error or "nobody said why")
    if ending.result is None and (ending.error or "").startswith(RESULT_NOT_KEPT):
        raise ResultNotKept(**task, reason=ending.error)
    return ending.result


def _result(ending: "Ending") -> Any:
    """The result as the type that the handler promises, where that is known here."""
    result, handler = kept(ending), REGISTRY.get(ending.handler)
    try:
        return handler.returned.read(result) if handler else json.loads(result or "null")
    except ValueError as error:
        raise InvalidResult(id=ending.id, handler=ending.handler, why=str(error)) from None


def _timed_out(id: int, timeout: Delay | None) -> TimedOut:
    return TimedOut(id=int(id), waited=format_duration(timedelta(seconds=_seconds(timeout) or 0)))


def _seconds(timeout: Delay | None) -> float | None:
    return None if timeout is None else parse_duration(timeout).total_seconds()
