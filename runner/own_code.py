"""Own code: calls of functions and classes of an application outside of its handlers."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from runner.text.sanitize import error_text

P = ParamSpec("P")
T = TypeVar("T")


class OwnCodeFault(Exception):
    """Code of an application raised an exception, or returned a value that is not valid. The text describes it."""

    @property
    def error(self) -> str:
        """The exception of the code as text."""
        return str(self).removeprefix(RAISED)


RAISED = "raised "


def call_own(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call code of an application that must not end its caller.

    Returns:
        The result of the function.

    Raises:
        OwnCodeFault: the function raised an exception of any class, also SystemExit or CancelledError, which would end
            a runner or one of its parts. That exception is the cause of this one.
    """
    try:
        return function(*args, **kwargs)
    except OwnCodeFault:
        raise
    except BaseException as error:
        raise OwnCodeFault(RAISED + fault_text(error)) from error


def fault_text(error: BaseException) -> str:
    """The class and the message of an exception, whatever its own methods do."""
    return f"{type(error).__qualname__}: {text}" if (text := error_text(error)) else type(error).__qualname__


def is_cancelled(error: BaseException) -> bool:
    """True if an exception ends the current asyncio task because another one cancelled it.

    Code of an application may raise a CancelledError although no one cancelled the task.
    """
    job = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and job is not None and job.cancelling() > 0
