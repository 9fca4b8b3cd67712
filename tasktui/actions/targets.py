"""Targets: the things that are selected on a screen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.filter.parse import Filter
from runner.operations.pause import PauseKind, PauseTarget
from runner.queries.audit import ChangeGroup
from runner.queries.runners import RunnerRow
from runner.queries.schedules import ScheduleRow
from runner.queries.task_list.row import TaskRow


def _nothing() -> None:
    return None


def _no_row() -> str:
    return "Nothing is selected: move the cursor to a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The current selection of a screen. An action reads it at the key press.

    Args:
        tasks: returns the selected tasks as they are on the screen.
        task_filter: returns the filter whose tasks are all selected; None if `tasks` lists them.
        queue: returns the selected queue; None for the queue of the selected task.
        handler: returns the selected handler; None for the handler of the selected task.
        runner: returns the selected runner.
        schedule: returns the selected schedule.
        change: returns the selected operation of the audit.
        missing: returns the message for an action on tasks while no task is selected.
    """

    tasks: Callable[[], Sequence[TaskRow]] = tuple
    task_filter: Callable[[], Filter | None] = _nothing
    queue: Callable[[], str | None] = _nothing
    handler: Callable[[], str | None] = _nothing
    runner: Callable[[], RunnerRow | None] = _nothing
    schedule: Callable[[], ScheduleRow | None] = _nothing
    change: Callable[[], ChangeGroup | None] = _nothing
    missing: Callable[[], str] = _no_row

    def task(self) -> TaskRow | None:
        """Return the selected task; None unless there is exactly one."""
        tasks = self.tasks()
        return tasks[0] if len(tasks) == 1 else None

    def place(self, kind: PauseKind) -> PauseTarget | None:
        """Return the selected queue or handler; None unless there is exactly one."""
        name, task = (self.queue if kind is PauseKind.QUEUE else self.handler)(), self.task()
        if name is None and task is not None:
            name = task.queue if kind is PauseKind.QUEUE else task.handler
        return PauseTarget(kind, name) if name is not None else None
