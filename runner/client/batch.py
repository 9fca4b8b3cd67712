"""batch: submits a batch of calls in one transaction, with tasks to run when the batch has finished."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runner.client.client import get_client, refuse_event_loop
from runner.client.results import TaskHandle, handles
from runner.errors import InvalidTask
from runner.model.task import BatchMember, DependsOn, NewTask, OnFailure, SubmitResult


@dataclass(frozen=True, slots=True)
class Batch:
    """A submitted batch.

    Args:
        members: task handles of the calls, in order.
        callback: task handle of the task that runs when all members have finished.
        on_success: task handle of the task that runs when all members have succeeded.
    """

    members: list[TaskHandle[Any]]
    callback: TaskHandle[Any] | None = None
    on_success: TaskHandle[Any] | None = None


def batch(
    calls: Iterable[NewTask], *, callback: NewTask | None = None, on_success: NewTask | None = None, tx: object = None
) -> Batch:
    """Submit a batch of calls in one transaction, with tasks to run when the batch has finished.

    Args:
        calls: tasks made with `new`, for any handlers.
        callback: task that runs when all have finished, in any final state; its Context has the counts.
        on_success: task that runs when all have succeeded; it is cancelled as soon as one is dead or cancelled.
        tx: your connection or session; the tasks join its open transaction. See docs/transactions.md.

    Raises:
        InvalidTask: the list is empty, or a call is not valid; see also Submission.submit.
        WouldBlock: called on an event loop without `tx`.

    Examples:
        >>> batch([charge.new(order=n) for n in orders], callback=report.options(queue="reports").new(day="today"))
    """
    tasks, positions = _tasks(list(calls), callback, on_success)
    if tx is not None:
        return _to_batch(get_client().submit_within(tx, tasks), positions)
    refuse_event_loop("batch")
    return _to_batch(get_client().submit(tasks), positions)


async def batch_async(
    calls: Iterable[NewTask], *, callback: NewTask | None = None, on_success: NewTask | None = None, tx: object = None
) -> Batch:
    """Same as `batch`, without blocking the event loop."""
    tasks, positions = _tasks(list(calls), callback, on_success)
    submitted = get_client().submit_async(tasks) if tx is None else get_client().submit_within_async(tx, tasks)
    return _to_batch(await submitted, positions)


def _tasks(
    members: list[NewTask], callback: NewTask | None, on_success: NewTask | None
) -> tuple[list[NewTask], dict[str, int]]:
    """All tasks in the order of submission, and the indexes of `callback` and `on_success`."""
    if not members:
        raise InvalidTask(field="calls", value=[], why="pass at least one call")
    for task in (*members, callback, on_success):
        _require_call(task)
    tasks, positions = list(members), dict[str, int]()
    rules: dict[str, tuple[NewTask | None, OnFailure]] = {
        "callback": (callback, "run"),
        "on_success": (on_success, "cancel"),
    }
    for name, (task, rule) in rules.items():
        if task is not None:
            positions[name] = len(tasks)
            dependencies = tuple(DependsOn(BatchMember(position), rule) for position in range(len(members)))
            tasks.append(task._replace(after=(*dependencies, *(task.after or ()))))
    return tasks, positions


def _require_call(task: Any) -> None:
    """Reject anything but a NewTask, such as a task handle, a handler, or the fields of one call."""
    if task is not None and not isinstance(task, NewTask):
        why = "pass a list of calls, each made with handler.new(...)"
        raise InvalidTask(field="call", value=task, why=why)


def _to_batch(result: SubmitResult, positions: dict[str, int]) -> Batch:
    all_handles: list[TaskHandle[Any]] = handles(result.ids, result.duplicates)
    first = min(positions.values(), default=len(all_handles))
    return Batch(all_handles[:first], **{name: all_handles[position] for name, position in positions.items()})
