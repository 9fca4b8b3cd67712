"""TaskHandle: the return value of a submit, the task's id and the way to its result."""

from collections.abc import Collection, Iterable
from typing import ClassVar, Generic, TypeVar

from runner.client.results import ended, endings_async, value_of
from runner.model.outcome import Delay

R = TypeVar("R")


class TaskHandle(int, Generic[R]):
    """The id of a submitted task, which can wait for the result; it is a plain int otherwise.

    Example:
        >>> charge.submit(order=1, cents=5).result(timeout="30s")
        'charged 5 for order 1'
    """

    __slots__ = ()  # keeps large lists of handles out of the garbage collector's work

    duplicate: ClassVar[bool] = False
    """True if the task already existed and the submit added nothing."""

    def result(self, timeout: Delay | None = None) -> R:
        """Wait until the task has finished, in a thread without an event loop.

        Args:
            timeout: longest wait: text ("30s"), seconds or timedelta; None for no limit.

        Returns:
            The handler's result, as the type of its return annotation. Plain JSON without an annotation, or if this
            program does not load the handler.

        Raises:
            TaskFailed: the task is dead; has the type, message and traceback of the last exception.
            TaskCancelled: the task was cancelled.
            TimedOut: the task did not finish in time; it continues.
            TaskNotFound: the task does not exist, its transaction has not committed yet, or it was pruned.
            ResultNotKept: the task succeeded, but its result was too large or not JSON.
            InvalidResult: the result does not match the annotation.
            DatabaseUnavailable: the database has been unreachable for some time.
            WouldBlock: called on an event loop: await `wait` there.
        """
        return value_of(ended(self, timeout))  # type: ignore[no-any-return] # validated by the annotation

    async def wait(self, timeout: Delay | None = None) -> R:
        """Same as `result`, on an event loop."""
        return value_of((await endings_async([self], timeout))[self])  # type: ignore[no-any-return] # as above


class DuplicateHandle(TaskHandle[R]):
    """The id of an existing task that already held the unique key of a submitted one."""

    __slots__ = ()

    duplicate = True


def handles(ids: Iterable[int], duplicates: Collection[int] = ()) -> list[TaskHandle[R]]:
    """Make a handle for each id.

    Args:
        ids: task ids.
        duplicates: indexes of the duplicates.
    """
    result: list[TaskHandle[R]] = [*map(TaskHandle, ids)]
    for index in duplicates:
        result[index] = DuplicateHandle(result[index])
    return result
