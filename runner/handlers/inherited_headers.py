"""Inherited headers: the position in a trace that a submit inside a handler takes from its attempt."""

from collections.abc import Mapping, Sequence

from runner.errors import InvalidTask
from runner.model.headers import TRACE_HEADERS, read_headers
from runner.model.task import CURRENT_TASK, NewTask
from runner.model.task_batch import TaskBatch


def may_inherit() -> bool:
    """True inside an attempt whose task has headers."""
    current = CURRENT_TASK.get()
    return current is not None and current.headers is not None


def with_inherited(tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    """Return tasks with the trace headers of the attempt that submits them, unless they have trace headers."""
    current = CURRENT_TASK.get()
    if current is None or current.headers is None:
        return tasks
    headers = {name: value for name, value in read_headers(current.headers).items() if name in TRACE_HEADERS}
    if not headers:
        return tasks
    if isinstance(tasks, TaskBatch):
        return TaskBatch(_with(tasks.like, headers), tasks.payloads)
    return [_with(task, headers) for task in tasks]


def _with(task: NewTask, headers: Mapping[str, str]) -> NewTask:
    own = read_headers(task.headers)
    if any(name in own for name in TRACE_HEADERS):
        return task
    try:
        return task.with_headers(headers)
    except InvalidTask:  # the headers of the application leave no room
        return task
