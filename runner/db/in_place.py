"""in_place: run a short transaction to its end in the task of its caller, without a task of its own."""

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Answer(asyncio.Future[Any]):
    """The answer to a statement, which arrives whether a task waits for it or not."""

    is_kept = False
    """True if a cancellation of the waiting task leaves the statement alone."""

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait, unless it is kept: then the waiting task is cancelled when the answer is there."""
        return False if self.is_kept else super().cancel(msg)


class InPlace(Generic[T]):
    """The result of a coroutine that runs to its end even if its task is cancelled; the cancellation follows.

    `shielded` does the same with a task of its own, which costs a small batch three turns of the event loop for each
    statement. Here a timeout within the coroutine has no effect: it cancels the task of the caller.

    Args:
        work: a coroutine whose awaits wait for an Answer. Others may follow an error.
    """

    __slots__ = ("_work",)

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, T]:
        """Step through the coroutine."""
        work, cancellation = self._work, None
        while True:
            try:
                waits = work.send(None)
            except StopIteration as end:
                if cancellation is not None:
                    raise cancellation from None
                value: T = end.value
                return value
            except Exception:
                if cancellation is not None:
                    raise cancellation from None
                raise
            try:
                yield _kept(waits)
            except asyncio.CancelledError as error:
                cancellation = error
            except Exception:  # noqa: S110 - of the answer, from which the coroutine receives it
                pass


def _kept(waits: Any) -> Any:
    """The future to wait for, so that a cancellation of the task does not reach it."""
    if type(waits) is Answer:
        waits.is_kept = True
        return waits
    if waits is None:  # a turn of the event loop
        return None
    answer = Answer(loop=waits.get_loop())
    answer.is_kept = True
    waits.add_done_callback(partial(_arrived, answer))
    answer._asyncio_future_blocking = True  # noqa: SLF001 - as its `__await__` does
    return answer


def _arrived(answer: Answer, _: object) -> None:
    answer.set_result(None)
