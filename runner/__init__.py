"""Tasks whose queue is a database table: the names for applications, with nothing heavy behind them."""

from runner.door import connect, disconnect
from runner.handlers import Context
from runner.outcome import Dead, Retry, Snooze
from runner.producer import TaskHandler, handler
from runner.submission import Submission
from runner.task import After
from runner.ticket import Ticket

__all__ = [
    "After",
    "Context",
    "Dead",
    "Retry",
    "Snooze",
    "Submission",
    "TaskHandler",
    "Ticket",
    "connect",
    "disconnect",
    "handler",
]
