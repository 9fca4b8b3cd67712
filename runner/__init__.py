"""Tasks whose queue is a database table: the names for applications, with nothing heavy behind them."""

from runner.door import connect, disconnect
from runner.handlers import Context
from runner.outcome import Dead, Retry, Snooze
from runner.producer import TaskHandler, handler
from runner.submission import Submission
from runner.task import After
from runner.ticket import Ticket
from runner.together import Together, together, together_async

__all__ = [
    "After",
    "Context",
    "Dead",
    "Retry",
    "Snooze",
    "Submission",
    "TaskHandler",
    "Ticket",
    "Together",
    "connect",
    "disconnect",
    "handler",
    "together",
    "together_async",
]
