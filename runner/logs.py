"""Logs: one line per record, plain on a terminal and JSON otherwise, with likely secrets masked."""

import contextvars
import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from runner.model.task import Claimed
from runner.text.redact import mask, redact
from runner.text.sanitize import clean

STANDARD = frozenset(vars(logging.makeLogRecord({})))
"""Attributes of every record; all others are extras of the log call."""


CURRENT_TASK: contextvars.ContextVar[Claimed | None] = contextvars.ContextVar("runner_task", default=None)
"""The task that the current context executes; threads of a runner and asyncio.to_thread inherit it."""


class TaskFilter(logging.Filter):
    """Adds `task`, `handler` and `attempt` to every record that is written inside a handler; rejects none.

    `runner work` adds it to the handlers of the root logger. Add it to other handlers in your own configuration:
    `"filters": {"task": {"()": "runner.logs.TaskFilter"}}`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes that the record does not have."""
        if (current := CURRENT_TASK.get()) is not None:
            fields = {"task": current.id, "handler": current.handler, "attempt": current.attempt}
            vars(record).update({**fields, **vars(record)})
        return True


class JsonLines(logging.Formatter):
    """A JSON object per record: at, level, logger, message, extras, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in STANDARD | {"message", "asctime"}}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(redact(line), default=str)


class HumanLines(logging.Formatter):
    """Time of day, level unless it is info, and message, made safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line, with its task, and the type and message of an exception."""
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        message = record.getMessage()
        line = f"{at}.{int(record.msecs):03d} {level}{clean(mask(message))}"
        if record.exc_info and record.exc_info[1] is not None and str(record.exc_info[1]) not in message:
            line += f" ({type(record.exc_info[1]).__name__}: {clean(mask(str(record.exc_info[1])))})"
        return line + _task_suffix(vars(record), message)


def _task_suffix(fields: dict[str, Any], message: str) -> str:
    """The task of a record whose message does not begin with it."""
    if "task" not in fields or message.startswith("task "):
        return ""
    attempt = f", attempt {fields['attempt']}" if "attempt" in fields else ""
    return clean(f" [task {fields['task']} {fields.get('handler', '')}{attempt}]")


def set_up(
    form: Literal["auto", "human", "json"] = "auto", level: str | None = None, stream: TextIO | None = None
) -> None:
    """Configure the logging of this process, or keep the configuration of the application.

    If the root logger or the logger `runner` has handlers, the application has configured logging: its handlers and
    levels stay, and only `level` is applied, to the logger `runner`. The task filter is added in any case.

    Args:
        form: "auto" means "human" on a terminal and "json" otherwise.
        level: the lowest level of log lines; None for "info", or for the application's.
        stream: output; None for standard error.
    """
    root, ours = logging.getLogger(), logging.getLogger("runner")
    if root.handlers or ours.handlers:
        if level is not None:
            ours.setLevel(level.upper())
    else:
        _install(root, form, (level or "info").upper(), stream or sys.stderr)
    for output in (*root.handlers, *ours.handlers):
        if not any(isinstance(one, TaskFilter) for one in output.filters):
            output.addFilter(TaskFilter())


def _install(root: logging.Logger, form: str, level: str, stream: TextIO) -> None:
    human = form == "human" or (form == "auto" and stream.isatty())
    lines = logging.StreamHandler(stream)
    lines.setFormatter(HumanLines() if human else JsonLines())
    root.addHandler(lines)
    root.setLevel(level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # A connection that the server has closed cannot be reset; the operation that needed it reports the outage.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
