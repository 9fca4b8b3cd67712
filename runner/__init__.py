"""Tasks whose queue is a database table: the public names for applications.

Importing this package loads neither SQLAlchemy nor APScheduler. Each name loads its module on first use.
"""

from typing import TYPE_CHECKING

from runner.lazy_imports import lazy_names

if TYPE_CHECKING:
    from runner.client.batch import Batch, batch, batch_async
    from runner.client.client import connect, disconnect
    from runner.client.handle import TaskHandle
    from runner.client.handler import TaskHandler, handler
    from runner.client.results import results, results_async
    from runner.client.submission import Submission
    from runner.handlers.context import Context
    from runner.model.outcome import Dead, Retry, Snooze
    from runner.model.task import DependsOn

__all__ = [
    "Batch",
    "Context",
    "Dead",
    "DependsOn",
    "Retry",
    "Snooze",
    "Submission",
    "TaskHandle",
    "TaskHandler",
    "batch",
    "batch_async",
    "connect",
    "disconnect",
    "handler",
    "results",
    "results_async",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Batch": "runner.client.batch",
        "Context": "runner.handlers.context",
        "Dead": "runner.model.outcome",
        "DependsOn": "runner.model.task",
        "Retry": "runner.model.outcome",
        "Snooze": "runner.model.outcome",
        "Submission": "runner.client.submission",
        "TaskHandle": "runner.client.handle",
        "TaskHandler": "runner.client.handler",
        "batch": "runner.client.batch",
        "batch_async": "runner.client.batch",
        "connect": "runner.client.client",
        "disconnect": "runner.client.client",
        "handler": "runner.client.handler",
        "results": "runner.client.results",
        "results_async": "runner.client.results",
    },
)
