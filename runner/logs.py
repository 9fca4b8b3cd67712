"""Logs: one line each, for people on a terminal, as JSON elsewhere; what looks like a secret is masked."""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Literal, TextIO

from runner.people.redaction import masked, redacted
from runner.people.terminal import clean

STANDARD = frozenset(vars(logging.makeLogRecord({})))
"""What every record has; whatever else one has was given by its writer."""


class JsonLines(logging.Formatter):
    """A JSON object per record: at, level, logger, message, what its writer added, and an exception's text."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the record as one line."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in STANDARD | {"message", "asctime"}}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(redacted(line), default=str)


class HumanLines(logging.Formatter):
    """The time of day, the level where it matters, and the message, made safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the record as one line; an exception as one more, indented."""
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{at}.{int(record.msecs):03d} {level}{clean(masked(record.getMessage()))}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f" ({type(record.exc_info[1]).__name__}: {clean(masked(str(record.exc_info[1])))})"
        return line


def set_up(form: Literal["auto", "human", "json"] = "auto", stream: TextIO | None = None) -> None:
    """Send the log of this process to a stream.

    Args:
        form: "auto" writes for people when the stream is a terminal, and JSON otherwise.
        stream: standard error when None.
    """
    stream = stream or sys.stderr
    human = form == "human" or (form == "auto" and stream.isatty())
    lines = logging.StreamHandler(stream)
    lines.setFormatter(HumanLines() if human else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(logging.WARNING)
    logging.getLogger("runner").setLevel(logging.INFO)
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # "skipped, still running" is what a long scan looks like
