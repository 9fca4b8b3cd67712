"""Logs: one line per record, plain on a terminal and JSON otherwise, with likely secrets masked."""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated, Any, Literal, Required, TextIO, TypedDict

from runner.log_queue import queued
from runner.model.headers import trace_id
from runner.model.shard import CURRENT_SHARD
from runner.model.task import CURRENT_TASK
from runner.model.text_limits import ERROR_LIMIT, to_storable
from runner.resource_limits import reached_limit
from runner.text.redact import hide, mask, redact, secrets
from runner.text.sanitize import clean, error_text

STANDARD = frozenset(vars(logging.makeLogRecord({})))
"""Attributes of every record; all others are extras of the log call."""


def payload_secrets() -> list[str]:
    """The secrets in the payload and the headers of the task that the current context executes."""
    current = CURRENT_TASK.get()
    return [] if current is None else secrets(current.payload or "{}", current.headers)


class TaskFilter(logging.Filter):
    """Adds `task`, `handler`, `attempt`, `trace_id` and `shard` to records that are written inside a handler.

    `runner work` adds it to the handlers of the root logger. Add it to other handlers in your own configuration:
    `"filters": {"task": {"()": "runner.logs.TaskFilter"}}`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes that the record does not have."""
        if (current := CURRENT_TASK.get()) is not None:
            fields = {"task": current.id, "handler": current.handler, "attempt": current.attempt}
            if current.headers is not None and (trace := trace_id(current.headers)) is not None:
                fields["trace_id"] = trace
            vars(record).update({**fields, **vars(record)})
        if (shard := CURRENT_SHARD.get()) is not None and not hasattr(record, "shard"):
            record.shard = shard
        return True


class JsonLine(TypedDict, total=False):
    """One JSON line of the log of `runner work`. Records of applications may have further keys.

    Args:
        level: debug, info, warning, error, critical, or a level of the application.
        event: a step in the life of the runner: it started, drains, exits without its tasks, or stopped.
        task: the id of the task that the line is about, or whose handler wrote it.
        attempt: the number of the attempt, from 1.
        trace_id: the trace of the task.
        shard: the shard of the task, or of the runner, in a profile with shards.
        error_type: the class of the exception of a failed attempt.
        exception: the traceback of an exception.
    """

    at: Required[Annotated[str, {"format": "date-time"}]]
    level: Required[str]
    logger: Required[str]
    message: Required[str]
    event: Literal["started", "draining", "exiting", "stopped"]
    task: int
    handler: str
    queue: str
    key: str | None
    attempt: int
    max_attempts: int
    trace_id: str
    shard: str
    error_type: str | None
    exception: str


class JsonLines(logging.Formatter):
    """A JsonLine per record, with the extras of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line."""
        first: JsonLine = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line: dict[str, Any] = {**first}
        line |= {name: value for name, value in vars(record).items() if name not in STANDARD | {"message", "asctime"}}
        if record.exc_text:  # cut, or from another process
            line["exception"] = record.exc_text
        elif record.exc_info:
            line["exception"] = _limit_of(record) or self.formatException(record.exc_info)
        text = json.dumps(redact(line), default=str)
        return str(hide(text, [json.dumps(secret)[1:-1] for secret in payload_secrets()]))


class HumanLines(logging.Formatter):
    """Time of day, level unless it is info, and message, made safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line, with its task, and the type and message of an exception."""
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        message = record.getMessage()
        shard = f"{clean(record.shard)}: " if hasattr(record, "shard") else ""
        line = f"{at}.{int(record.msecs):03d} {level}{shard}{clean(mask(message))}"
        if (error := _last_line(record)) and error.partition(": ")[2][:COMPARED] not in message:
            line += f" ({clean(mask(error))})"
        return str(hide(line, payload_secrets())) + _task_suffix(vars(record), message)


COMPARED = 200
"""Characters of the message of an exception that are searched in the message of its record."""


def _last_line(record: logging.LogRecord) -> str:
    """The type and the message of the exception of a record; empty without one."""
    if limit := _limit_of(record):
        return limit
    if record.exc_info and (error := record.exc_info[1]) is not None:
        return to_storable(f"{type(error).__name__}: {error_text(error)}", ERROR_LIMIT)
    lines = (record.exc_text or "").rstrip().splitlines()
    return lines[-1] if lines else ""


def _limit_of(record: logging.LogRecord) -> str:
    """The limit that an exception of the runner itself has reached; a traceback would not name it."""
    is_own = record.name.partition(".")[0] == "runner" and "task" not in vars(record)
    error = record.exc_info[1] if is_own and record.exc_info else None
    return "" if error is None else reached_limit(error)


def log_exception(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    error: BaseException,
    frames: TracebackType | None = None,
    text: str = "",
    extra: dict[str, Any] | None = None,
) -> None:
    """Log a record with an exception. Handlers and error trackers receive it, and the record does not keep it.

    Args:
        frames: its traceback; None for all frames.
        text: its traceback as text; "" to format it. The record has at most ERROR_LIMIT bytes of it.
    """
    if not logger.isEnabledFor(level):
        return
    file, line, function, _ = logger.findCaller(stacklevel=2)
    exc_info = (type(error), error, frames or error.__traceback__)
    record = logger.makeRecord(logger.name, level, file, line, message, args, exc_info, function, extra)
    record.exc_text = to_storable(text or logging.Formatter().formatException(exc_info), ERROR_LIMIT)
    try:
        logger.handle(record)
    finally:
        record.exc_info = None


def _task_suffix(fields: dict[str, Any], message: str) -> str:
    """The task of a record whose message does not begin with it, and its trace."""
    trace = f"trace {fields['trace_id']}" if "trace_id" in fields else ""
    if "task" not in fields or message.startswith("task "):
        return clean(f" [{trace}]") if trace else ""
    attempt = f", attempt {fields['attempt']}" if "attempt" in fields else ""
    task = f"task {fields['task']} {fields.get('handler', '')}{attempt}"
    return clean(f" [{task}, {trace}]" if trace else f" [{task}]")


def set_up(
    form: Literal["auto", "human", "json"] = "auto", level: str | None = None, stream: TextIO | None = None
) -> None:
    """Configure the logging of this process, or keep the configuration of the application.

    If the root logger or the logger `runner` has handlers, the application has configured logging: its handlers and
    levels stay, and only `level` is applied, to the logger `runner`. The task filter is added in any case. A thread
    writes the lines to standard error and standard output, so that their readers never stop the runner.

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
    for logger in (root, *logging.root.manager.loggerDict.values()):
        for output in getattr(logger, "handlers", ()):
            if type(output) is logging.StreamHandler:
                output.setStream(queued(output.stream))
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
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # warns of each pipeline that ends by an error, which we log
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
