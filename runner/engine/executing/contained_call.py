"""ContainedCall: the end of a function call in a thread, with its exception as a value."""

from typing import Any


class ContainedCall:
    """The result or the exception of a call. A future rejects StopIteration, and SystemExit would end the event loop.

    Args:
        error: the exception; None after a normal return.
    """

    __slots__ = ("_error", "_result")

    def __init__(self, result: Any, error: BaseException | None = None) -> None:
        self._result, self._error = result, error

    def take(self) -> tuple[Any, BaseException | None]:
        """Return and forget both.

        The frames of the exception lead to the frame of the thread that keeps this object: a reference cycle.
        """
        result, error, self._result, self._error = self._result, self._error, None, None
        return result, error
