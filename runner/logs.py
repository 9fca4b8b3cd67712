"""Logs: one line per record, plain on a terminal and JSON otherwise, with likely secrets masked."""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Literal, TextIO

from runner.text.redact import mask, redact
from runner.text.sanitize import clean

STANDARD = frozenset(vars(logging.makeLogRecord({})))
"""Attributes of every record; all others are extras of the log call."""


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
        """Format the record as one line, with the type and message of an exception."""
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{at}.{int(record.msecs):03d} {level}{clean(mask(record.getMessage()))}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f" ({type(record.exc_info[1]).__name__}: {clean(mask(str(record.exc_info[1])))})"
        return line


def set_up(form: Literal["auto", "human", "json"] = "auto", stream: TextIO | None = None) -> None:
    """Configure the logging of this process.

    Args:
        form: "auto" means "human" on a terminal and "json" otherwise.
        stream: output; None for standard error.
    """
    stream = stream or sys.stderr
    human = form == "human" or (form == "auto" and stream.isatty())
    lines = logging.StreamHandler(stream)
    lines.setFormatter(HumanLines() if human else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(logging.WARNING)
    logging.getLogger("runner").setLevel(logging.INFO)
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it warns "skipped, still running" during a long scan
