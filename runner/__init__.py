"""Tasks whose queue is a database table: the public names for applications.

Importing this package loads neither SQLAlchemy nor APScheduler. Each name loads its module on first use.
"""

from typing import TYPE_CHECKING

from runner.lazy_imports import lazy_names

if TYPE_CHECKING:
    from runner.client.batch import Batch, batch, batch_async
    from runner.client.client import connect, disconnect
    from runner.client.find import find, find_async, unfinished, unfinished_async
    from runner.client.handler import TaskHandler, handler
    from runner.client.results import TaskHandle, handle, results, results_async
    from runner.client.schedules import schedule, schedules
    from runner.client.status import TaskStatus
    from runner.client.submission import Submission
    from runner.client.submit import submit, submit_async
    from runner.client.task_events import EventStream, TaskEvents
    from runner.client.workflow import Workflow, WorkflowTask, workflow
    from runner.engine.hosting.embedded import Runner
    from runner.handlers.chunk import Chunk, ChunkTask
    from runner.handlers.context import Context
    from runner.handlers.hooks import (
        AttemptEnd,
        around_execute,
        around_process,
        around_submit,
        on_dead,
        on_failure,
        on_retry,
        on_start,
        on_stop,
        on_success,
    )
    from runner.handlers.resources import Resource, injected, resource
    from runner.model.outcome import Dead, Retry, Snooze
    from runner.model.step import Signal
    from runner.model.task import Claimed, DependsOn, NewTask, SubmitResult
    from runner.model.task_event import AttemptFailed, LineLogged, ProgressReported, StateChanged, TaskEvent
    from runner.policy.breaker import Breaker
    from runner.policy.own_retry_plan import FailedRun, retry_plan

__all__ = [
    "AttemptEnd",
    "AttemptFailed",
    "Batch",
    "Breaker",
    "Chunk",
    "ChunkTask",
    "Claimed",
    "Context",
    "Dead",
    "DependsOn",
    "EventStream",
    "FailedRun",
    "LineLogged",
    "NewTask",
    "ProgressReported",
    "Resource",
    "Retry",
    "Runner",
    "Signal",
    "Snooze",
    "StateChanged",
    "Submission",
    "SubmitResult",
    "TaskEvent",
    "TaskEvents",
    "TaskHandle",
    "TaskHandler",
    "TaskStatus",
    "Workflow",
    "WorkflowTask",
    "around_execute",
    "around_process",
    "around_submit",
    "batch",
    "batch_async",
    "connect",
    "disconnect",
    "find",
    "find_async",
    "handle",
    "handler",
    "injected",
    "on_dead",
    "on_failure",
    "on_retry",
    "on_start",
    "on_stop",
    "on_success",
    "resource",
    "results",
    "results_async",
    "retry_plan",
    "schedule",
    "schedules",
    "submit",
    "submit_async",
    "unfinished",
    "unfinished_async",
    "workflow",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AttemptEnd": "runner.handlers.hooks",
        "AttemptFailed": "runner.model.task_event",
        "Batch": "runner.client.batch",
        "Breaker": "runner.policy.breaker",
        "Chunk": "runner.handlers.chunk",
        "ChunkTask": "runner.handlers.chunk",
        "Claimed": "runner.model.task",
        "Context": "runner.handlers.context",
        "Dead": "runner.model.outcome",
        "DependsOn": "runner.model.task",
        "EventStream": "runner.client.task_events",
        "FailedRun": "runner.policy.own_retry_plan",
        "LineLogged": "runner.model.task_event",
        "NewTask": "runner.model.task",
        "ProgressReported": "runner.model.task_event",
        "Resource": "runner.handlers.resources",
        "Retry": "runner.model.outcome",
        "Runner": "runner.engine.hosting.embedded",
        "Signal": "runner.model.step",
        "Snooze": "runner.model.outcome",
        "StateChanged": "runner.model.task_event",
        "Submission": "runner.client.submission",
        "SubmitResult": "runner.model.task",
        "TaskEvent": "runner.model.task_event",
        "TaskEvents": "runner.client.task_events",
        "TaskHandle": "runner.client.results",
        "TaskHandler": "runner.client.handler",
        "TaskStatus": "runner.client.status",
        "Workflow": "runner.client.workflow",
        "WorkflowTask": "runner.client.workflow",
        "around_execute": "runner.handlers.hooks",
        "around_process": "runner.handlers.hooks",
        "around_submit": "runner.handlers.hooks",
        "batch": "runner.client.batch",
        "batch_async": "runner.client.batch",
        "connect": "runner.client.client",
        "disconnect": "runner.client.client",
        "find": "runner.client.find",
        "find_async": "runner.client.find",
        "handle": "runner.client.results",
        "handler": "runner.client.handler",
        "injected": "runner.handlers.resources",
        "on_dead": "runner.handlers.hooks",
        "on_failure": "runner.handlers.hooks",
        "on_retry": "runner.handlers.hooks",
        "on_start": "runner.handlers.hooks",
        "on_stop": "runner.handlers.hooks",
        "on_success": "runner.handlers.hooks",
        "resource": "runner.handlers.resources",
        "results": "runner.client.results",
        "results_async": "runner.client.results",
        "retry_plan": "runner.policy.own_retry_plan",
        "schedule": "runner.client.schedules",
        "schedules": "runner.client.schedules",
        "submit": "runner.client.submit",
        "submit_async": "runner.client.submit",
        "unfinished": "runner.client.find",
        "unfinished_async": "runner.client.find",
        "workflow": "runner.client.workflow",
    },
)
