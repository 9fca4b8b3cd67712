"""Submit middleware: runs the functions of @around_submit around a submit."""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from runner.handlers.life_cycle import LIFE_CYCLE, Callback, InvalidCallback
from runner.model.task import NewTask, SubmitResult

log = logging.getLogger("runner")


class SubmitMiddleware:
    """One submit, inside the functions of @around_submit.

    Args:
        tasks: the tasks of the submit.

    Raises:
        BaseException: a function refused the submit.
    """

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self._generators: list[tuple[Callback, Generator[Sequence[NewTask] | None, SubmitResult, None]]] = []
        self.tasks: Sequence[NewTask] = tasks
        """The tasks to submit."""
        self.result = SubmitResult([])
        """The result of a submit inside `submitting`."""
        try:
            for callback in LIFE_CYCLE.of("around_submit"):
                self._begin(callback)
        except BaseException as error:
            self.fail(error)
            raise

    def _begin(self, callback: Callback) -> None:
        generator = callback.function(list(self.tasks))
        try:
            tasks = next(generator)
        except StopIteration:
            raise InvalidCallback(event=callback.event, name=callback.location, why="it must yield once") from None
        self._generators.append((callback, generator))
        if tasks is not None:
            self.tasks = self._checked(callback, tasks)

    def _checked(self, callback: Callback, tasks: Any) -> list[NewTask]:
        """Refuse a change of the number of tasks: the caller gets one handle per call."""
        rows = list(tasks)
        if len(rows) != len(self.tasks) or not all(isinstance(task, NewTask) for task in rows):
            why = f"it must yield None or a list of {len(self.tasks)} NewTask, as many as it received"
            raise InvalidCallback(event=callback.event, name=callback.location, why=why)
        return rows

    def end(self, result: SubmitResult) -> None:
        """Run the parts after `yield`. An exception is logged: the tasks are submitted."""
        while self._generators:
            callback, generator = self._generators.pop()
            try:
                generator.send(result)
            except StopIteration:
                continue
            except BaseException as error:
                log.error("%s failed after a submit", callback.location, exc_info=error)
            else:
                log.error("%s yields twice: it must yield once", callback.location)

    def fail(self, error: BaseException) -> None:
        """Raise the error of the submit at each `yield`. The caller gets the error in any case."""
        while self._generators:
            callback, generator = self._generators.pop()
            try:
                generator.throw(error)
            except StopIteration:
                continue
            except BaseException as failure:
                if failure is not error:
                    log.error("%s failed after a failed submit", callback.location, exc_info=failure)
            else:
                log.error("%s yields twice: it must yield once", callback.location)


@contextmanager
def submitting(tasks: Sequence[NewTask]) -> Iterator[SubmitMiddleware]:
    """Submit tasks in the block, inside the functions of @around_submit; the block sets the result."""
    around = SubmitMiddleware(tasks)
    try:
        yield around
    except BaseException as error:
        around.fail(error)
        raise
    around.end(around.result)
