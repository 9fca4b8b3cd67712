"""Action: the description of a change that an operator can make, its targets, and the answers that confirm it.

The actions themselves are in tasktui.actions.actions.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.errors import InvalidInput
from runner.filter.parse import Filter
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor, Result

if TYPE_CHECKING:
    from runner.operations.bulk import Operation
    from runner.queries.audit import ChangeGroup
    from runner.queries.runners import RunnerRow
    from runner.queries.schedules import ScheduleRow
    from runner.queries.task_list.row import TaskRow
    from tasktui.data.values import Copyable


def _nothing() -> None:
    return None


def _keep(_result: Result) -> None:
    return None


def _no_row() -> str:
    return "Nothing is selected: move the cursor to a row"


class TaskScope(NamedTuple):
    """The part of a cause that a screen shows, and all of it as a second choice.

    Args:
        words: the part, after a number of tasks: "that failed in the last hour".
        whole: a filter for all tasks of the cause.
        whole_words: the cause, after a number of tasks: "of this cause".
    """

    words: str
    whole: Filter
    whole_words: str


class Targets(NamedTuple):
    """The current selection of a screen. An action reads it at the key press.

    Args:
        tasks: returns the selected tasks as they are on the screen.
        task_filter: returns the filter whose tasks are all selected; None if `tasks` lists them.
        scope: returns the scope of that filter; None if it has no wider choice.
        queue: returns the selected queue; None for the queue of the selected task.
        handler: returns the selected handler; None for the handler of the selected task.
        runner: returns the selected runner.
        runner_id: the runner that a remedy names; None for the selected one.
        schedule: returns the selected schedule.
        alert: returns the name of the first alert that is not silenced, or else of the first one.
        change: returns the selected operation of the audit.
        remarks: returns sentences about the selection that a confirmation shows.
        copyable: returns the texts under the cursor to copy, or a read of them; None if there is nothing to copy.
        missing: returns the message for an action on tasks while no task is selected.
        answer: the answer that a remedy suggests; empty for none.
        by_shard: returns the selection in each shard, on a screen with several; its tasks have the ids of their shard.
        unmark: removes the marks of changed tasks.
    """

    tasks: "Callable[[], Sequence[TaskRow]]" = tuple
    task_filter: Callable[[], Filter | None] = _nothing
    scope: Callable[[], TaskScope | None] = _nothing
    queue: Callable[[], str | None] = _nothing
    handler: Callable[[], str | None] = _nothing
    runner: "Callable[[], RunnerRow | None]" = _nothing
    schedule: Callable[[], "ScheduleRow | None"] = _nothing
    alert: Callable[[], str | None] = _nothing
    change: "Callable[[], ChangeGroup | None]" = _nothing
    remarks: Callable[[], tuple[str, ...]] = tuple
    copyable: "Callable[[], Copyable | Coroutine[Any, Any, Copyable] | None]" = _nothing
    missing: Callable[[], str] = _no_row
    runner_id: int | None = None
    answer: str = ""
    by_shard: "Callable[[], Mapping[str, Targets]]" = dict
    unmark: Callable[[Result], None] = _keep

    def task(self) -> "TaskRow | None":
        """Return the selected task; None unless there is exactly one."""
        tasks = self.tasks()
        return tasks[0] if len(tasks) == 1 else None

    def pause_target(self, kind: PauseKind) -> PauseTarget | None:
        """Return the selected queue or handler, or that of all selected tasks; None unless there is exactly one."""
        name = (self.queue if kind is PauseKind.QUEUE else self.handler)()
        of_tasks = {task.queue if kind is PauseKind.QUEUE else task.handler for task in self.tasks()}
        if name is None and len(of_tasks) == 1:
            (name,) = of_tasks
        return PauseTarget(kind, name) if name is not None else None


ALL = "all"
CANARY = "canary"
"""Limits in words: all tasks, or stages of 1, 10, 100 and the rest."""


class ActionTarget(Enum):
    """The kind of thing that an action applies to."""

    TASKS = "tasks"
    TASK = "task"
    QUEUE = "queue"
    HANDLER = "handler"
    RUNNER = "runner"
    SCHEDULE = "schedule"
    ALERT = "alert"
    ENTRY = "change of a task"

    @property
    def word(self) -> str:
        """The target in words."""
        return self.value


def no_operation(_by: Actor, _answer: str) -> "Operation":
    """The operation of an action that does not apply to tasks."""
    raise InvalidInput(why="this action does not apply to several tasks")


def no_options(_answer: str) -> Sequence[object]:
    """The command-line options of an action without any."""
    return ()


class Action(NamedTuple):
    """A change that an operator can make.

    Args:
        name: the command on the command line.
        key: an upper-case letter.
        label: name in the footer and in dialogs.
        target: the kind of thing that it applies to.
        prompt: label of its own input in the dialog; empty for none.
        default: initial value of that input.
        required: True if the default is only an example, so that the dialog starts at this input.
        in_footer: False to list the key in the help only.
        verb: a key of targets.ACCEPTED_STATES; empty for actions that do not depend on the state of a task.
        operation: builds the operation on tasks from its author and the answer to the prompt.
        options: the command-line options for the answer to the prompt.
    """

    name: str
    key: str
    label: str
    target: ActionTarget
    prompt: str = ""
    default: str = ""
    required: bool = False
    in_footer: bool = True
    verb: str = ""
    operation: "Callable[[Actor, str], Operation]" = no_operation
    options: Callable[[str], Sequence[object]] = no_options

    def without_prompt(self) -> "Action":
        """Return the action without an input of its own."""
        return self._replace(prompt="", default="", required=False)


class Confirmation(NamedTuple):
    """The answers of an operator who confirmed an action.

    Args:
        answer: answer to the prompt of the action; empty if it has none.
        reason: reason for the audit; None if omitted.
        limit: maximum number of tasks to change; None for all.
        canary: apply the action in stages, and stop at the first failure.
        change_group: that of a change in several shards; None for a new one.
    """

    answer: str = ""
    reason: str | None = None
    limit: int | None = None
    canary: bool = False
    change_group: str | None = None


def parse_limit(typed: str) -> int | None:
    """Parse the maximum number of tasks to change; None for all.

    Raises:
        InvalidInput: the text is neither a positive integer nor `all`.
    """
    text = typed.replace(",", "").strip().lower()
    if text in ("", ALL):
        return None
    if not text.isdecimal() or not 1 <= int(text[:12]) < 10**9:
        raise InvalidInput(why=f"{typed[:20]!r} is not a number of tasks; enter {ALL}, or 1 to try one task first")
    return int(text)
