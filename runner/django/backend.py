"""TaskBackend: runs the tasks of `django.tasks` (Django 6). Each is a handler, named by the path of its function."""

import builtins
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.core import checks
from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

from runner.client.handler import TaskHandler, handler
from runner.django.connection import DjangoClient, close_unused
from runner.errors import RunnerError
from runner.handlers.context import Context
from runner.handlers.discovery import discover
from runner.handlers.hooks import AttemptEnd, on_dead
from runner.handlers.registry import REGISTRY
from runner.model.outcome import HandlerOutcome
from runner.model.task import State
from runner.settings import load


def task_body(sender: type, task: Task, alias: str) -> Callable[..., Any]:
    """Return the handler of a task, with its positional and named arguments as two parameters.

    Args:
        sender: class of the backend, the sender of the signals.
        alias: alias of the backend.
    """
    body: Any = _on_loop(sender, task, alias) if iscoroutinefunction(task.func) else _in_thread(sender, task, alias)
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(body, name, getattr(task.func, name))
    return body


def _on_loop(sender: type, task: Task, alias: str) -> Callable[..., Any]:
    async def on_loop(
        ctx: Context, args: list[Any], kwargs: dict[str, Any], using: dict[str, Any] | None = None
    ) -> Any:
        result = _started(task, alias, ctx, args, kwargs, using)
        await task_started.asend(sender, task_result=result)
        value = await task.func(*_context(result), *args, **kwargs)
        if not isinstance(value, HandlerOutcome):
            _succeed(result, value)
            await task_finished.asend(sender, task_result=result)
        return value

    return on_loop


def _in_thread(sender: type, task: Task, alias: str) -> Callable[..., Any]:
    def in_thread(ctx: Context, args: list[Any], kwargs: dict[str, Any], using: dict[str, Any] | None = None) -> Any:
        result = _started(task, alias, ctx, args, kwargs, using)
        task_started.send(sender, task_result=result)
        value = task.func(*_context(result), *args, **kwargs)
        if not isinstance(value, HandlerOutcome):
            _succeed(result, value)
            task_finished.send(sender, task_result=result)
        return value

    return in_thread


def _started(
    task: Task, alias: str, ctx: Context, args: list[Any], kwargs: dict[str, Any], using: Mapping[str, Any] | None
) -> TaskResult:
    """Return the result of a running task as far as the runner knows it; `refresh()` reads the rest."""
    now = timezone.now()
    return TaskResult(
        task=_called(task, task.queue_name, using),
        id=str(ctx.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=["this runner"] * ctx.attempt,
    )


def _context(result: TaskResult) -> list[TaskContext]:
    return [TaskContext(task_result=result)] if result.task.takes_context else []


def _called(task: Task, queue: str, using: Mapping[str, Any] | None) -> Task:
    """Return a task with the options of its call, as `using` returned it then."""
    options = using or {}
    time = options.get("run_after")
    run_after = None if time is None else datetime.fromisoformat(time)
    return task.using(queue_name=queue, priority=options.get("priority", task.priority), run_after=run_after)


def _succeed(result: TaskResult, value: Any) -> None:
    """Complete the result after an attempt that returned.

    Raises:
        TypeError: JSON cannot hold the value; the attempt fails with it.
    """
    object.__setattr__(result, "_return_value", normalize_json(value))
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", timezone.now())


@on_dead
def send_task_finished(end: AttemptEnd) -> None:
    """Send `task_finished` for a task of a backend that is dead, when the database has it."""
    if (backend := BACKENDS.get(end.handler)) is None:
        return
    close_unused()
    try:
        result = backend.get_result(str(end.id))
        try:
            if end.error is not None:
                raise end.error  # Django logs the current exception
        except BaseException:
            task_finished.send(type(backend), task_result=result)
        else:
            task_finished.send(type(backend), task_result=result)
    finally:
        close_unused()


LEVELS = 25
"""Django's priorities from -100 to 100 per priority of a task: 0 is 5, 1 to 25 is 6, -1 to -25 is 4."""

MIDDLE = 5
"""The priority of a task with Django's priority 0."""

STATUSES = {State.SUCCEEDED: TaskResultStatus.SUCCESSFUL, State.RUNNING: TaskResultStatus.RUNNING} | {
    **dict.fromkeys((State.WAITING, State.BLOCKED), TaskResultStatus.READY),
    **dict.fromkeys((State.DEAD, State.CANCELLED), TaskResultStatus.FAILED),
}


BACKENDS: dict[str, "TaskBackend"] = {}
"""The backend of each handler that is a task."""


class TaskBackend(BaseTaskBackend):
    """A backend for the setting TASKS.

    Args:
        alias: key in TASKS.
        params: its values. QUEUES lists the allowed queues; OPTIONS has defaults of the handlers: `max_attempts`,
            `retry`, `timeout`, `on_error` and `on_none`, as for `runner.handler`.

    Examples:
        >>> TASKS = {"default": {"BACKEND": "runner.django.TaskBackend", "OPTIONS": {"max_attempts": 3}}}
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._tasks: dict[str, Task] = {}
        """The tasks by handler, as their modules define them."""

    def validate_task(self, task: Task) -> None:
        """Check a task, and register its function as a handler: `@task` calls this.

        Raises:
            InvalidTask: this backend cannot run it, or OPTIONS are not valid.
        """
        super().validate_task(task)
        name = task.module_path
        if name in self._tasks:
            return
        self._tasks[name] = task
        try:
            handler(name, **self.options)(task_body(type(self), task, self.alias))
            BACKENDS[name] = self
        except (RunnerError, TypeError) as error:
            raise InvalidTask(f"{name} with OPTIONS {self.options}: {error}") from None

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Submit a task, as part of the transaction that is open in this thread.

        Returns:
            Its result, with the id of the task as text.

        Raises:
            InvalidTask: this backend cannot run it.
            TypeError: an argument cannot be stored as JSON.
        """
        self.validate_task(task)
        moments = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            **moments,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        submission = self._handler(task.module_path).options(
            queue=task.queue_name, priority=priority_of(task.priority), run_at=_aware(task.run_after)
        )
        inline = DjangoClient.inline
        with nullcontext() if inline is None else inline.hold():
            id = submission.submit(args=result.args, kwargs=result.kwargs, **self._using(task))
            object.__setattr__(result, "id", str(int(id)))
            object.__setattr__(result, "enqueued_at", getattr(_row(result.id, "submitted_at"), "submitted_at", None))
            task_enqueued.send(type(self), task_result=result)
        if inline is not None:
            result.refresh()
        return result

    def _using(self, task: Task) -> dict[str, Any]:
        """The options of a call that the columns of the task cannot hold, as an argument of its handler."""
        own = self._tasks[task.module_path]
        using: dict[str, Any] = {} if task.priority == own.priority else {"priority": task.priority}
        if task.run_after is not None:
            using["run_after"] = task.run_after.isoformat()
        return {"using": using} if using else {}

    def get_result(self, result_id: str) -> TaskResult:
        """Read a task by its id, through Django's connection.

        Raises:
            TaskResultDoesNotExist: no task has this id, or its handler is not a task of this backend.
        """
        from runner.django.models import TaskAttempt

        row = _row(result_id)
        if row is not None and row.handler not in self._tasks:
            discover(load().handlers)  # this process has not imported its module yet
        if row is None or row.handler not in self._tasks:
            raise TaskResultDoesNotExist(result_id)
        attempts = list(TaskAttempt.objects.filter(task_id=row.pk).order_by("fence"))
        return self._result(row, attempts)

    async def aget_result(self, result_id: str) -> TaskResult:
        """Same as `get_result`, in the thread of asynchronous queries."""
        return await sync_to_async(self.get_result, thread_sensitive=True)(result_id)

    def check(self, **_: Any) -> list[checks.CheckMessage]:
        """Report for `manage.py check` that the app is not installed."""
        if "runner.django" in django_settings.INSTALLED_APPS:
            return []
        why = f"TASKS[{self.alias!r}] uses runner.django.TaskBackend, but INSTALLED_APPS lacks 'runner.django'"
        return [checks.Error(why, id="tasktui.E002")]

    def _handler(self, name: str) -> TaskHandler[Any, Any, Any]:
        registered: Any = REGISTRY[name]
        return registered

    def _result(self, row: Any, attempts: Sequence[Any]) -> TaskResult:
        payload = row.payload
        errors = [
            TaskError(exception_class_path=_class_path(item.error_type), traceback=item.traceback or item.message)
            for item in attempts
        ]
        result = TaskResult(
            task=_called(self._tasks[row.handler], row.queue, payload.get("using")),
            id=str(row.pk),
            status=STATUSES[State(row.state)],
            enqueued_at=row.submitted_at,
            started_at=attempts[0].started_at if attempts else row.claimed_at,
            last_attempted_at=row.claimed_at,
            finished_at=getattr(row, "finished_at", None),
            args=payload.get("args", []),
            kwargs=payload.get("kwargs", {}),
            backend=self.alias,
            errors=errors,
            worker_ids=_workers(row, attempts),
        )
        object.__setattr__(result, "_return_value", getattr(row, "result", None))
        return result


def _row(result_id: str, *columns: str) -> Any:
    """Return the row of a task, live or finished, with some columns or all; None without one."""
    from runner.django.models import LiveTask, TaskHistory

    if not result_id.isdecimal():
        return None
    for model in (LiveTask, TaskHistory, LiveTask):  # again: a retry may return it while this reads
        rows = model.objects.only(*columns) if columns else model.objects
        if (row := rows.filter(pk=result_id).first()) is not None:
            return row
    return None


def priority_of(level: int) -> int:
    """Return the priority of a task for Django's priority."""
    bands = -(-abs(level) // LEVELS)
    return MIDDLE + bands if level > 0 else MIDDLE - bands


def _aware(moment: datetime | None) -> datetime | None:
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment


def _class_path(error_type: str) -> str:
    """Return an importable path for the stored type of an error, which for a failure without an exception is a word."""
    if "." in error_type:
        return error_type
    if error_type == "Timeout":
        return "builtins.TimeoutError"
    return f"builtins.{error_type}" if hasattr(builtins, error_type) else "runner.errors.TaskFailed"


def _worker(host: str | None, runner_id: int | None) -> str:
    return f"{host or 'unknown'}:{runner_id or 0}"


def _workers(row: Any, attempts: Sequence[Any]) -> list[str]:
    """Return the runner of each attempt; failed ones have a row of their own."""
    workers = [_worker(attempt.host, attempt.runner_id) for attempt in attempts]
    return workers + [_worker(row.host, row.runner_id)] * (row.attempt - len(workers))
