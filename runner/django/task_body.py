"""task_body: executes the function of a `django.tasks` task as a handler, between Django's signals."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone

from runner.handlers.context import Context
from runner.model.outcome import Dead, HandlerOutcome, Retry


def task_body(sender: type, task: Task, alias: str) -> Callable[..., Any]:
    """Return the handler of a task, with its positional and named arguments as two parameters.

    Args:
        sender: class of the backend, the sender of the signals.
        task: the task.
        alias: alias of the backend.
    """
    body: Any = _on_loop(sender, task, alias) if iscoroutinefunction(task.func) else _in_thread(sender, task, alias)
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(body, name, getattr(task.func, name))
    return body


def _on_loop(sender: type, task: Task, alias: str) -> Callable[..., Any]:
    async def on_loop(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _started(task, alias, ctx, args, kwargs)
        await task_started.asend(sender, task_result=result)
        try:
            value = await task.func(*_context(result), *args, **kwargs)
        except BaseException as error:
            frames = error.__traceback__
            if _ended(result, ctx, error):
                await task_finished.asend(sender, task_result=result)
            raise error.with_traceback(frames)  # noqa: B904 - the same error, without the frames of asgiref
        if _ended(result, ctx, value):
            await task_finished.asend(sender, task_result=result)
        return value

    return on_loop


def _in_thread(sender: type, task: Task, alias: str) -> Callable[..., Any]:
    def in_thread(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _started(task, alias, ctx, args, kwargs)
        task_started.send(sender, task_result=result)
        try:
            value = task.func(*_context(result), *args, **kwargs)
        except BaseException as error:
            if _ended(result, ctx, error):
                task_finished.send(sender, task_result=result)
            raise
        if _ended(result, ctx, value):
            task_finished.send(sender, task_result=result)
        return value

    return in_thread


def _started(task: Task, alias: str, ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> TaskResult:
    """Return the result of a running task as far as the runner knows it; `refresh()` reads the rest."""
    now = timezone.now()
    return TaskResult(
        task=task,
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


def _ended(result: TaskResult, ctx: Context, value: Any) -> bool:
    """Complete the result after an attempt that returned or raised `value`; False if another attempt follows."""
    failed = isinstance(value, Dead) or (ctx.attempt >= ctx.max_attempts and isinstance(value, Retry | Exception))
    if not failed and isinstance(value, HandlerOutcome | BaseException):
        return False
    object.__setattr__(result, "status", TaskResultStatus.FAILED if failed else TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "_return_value", None if failed else value)
    return True
