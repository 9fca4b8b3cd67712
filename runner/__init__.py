"""Tasks whose queue is a database table: the names for applications, with nothing heavy behind them."""

from typing import TYPE_CHECKING

from runner.later import names_of

if TYPE_CHECKING:
    from runner.door.door import connect, disconnect
    from runner.handlers import Context
    from runner.outcome import Dead, Retry, Snooze
    from runner.producer.handler import TaskHandler, handler
    from runner.producer.submission import Submission
    from runner.producer.ticket import Ticket
    from runner.producer.together import Together, together, together_async
    from runner.task import After

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

__getattr__ = names_of(__name__)
