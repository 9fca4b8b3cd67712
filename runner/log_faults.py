"""Log faults: log handlers of an application that raise an exception in a runner.

A log line may be written anywhere in a runner. Without this, a handler that fails or exits would end the part of the
runner that writes a line.
"""

import logging
import sys
import threading
from collections import Counter
from contextlib import suppress

from runner.log_queue import queued
from runner.own_code import OwnCodeFault, call_own
from runner.text.sanitize import one_line

FAULTS: Counter[str] = Counter()
"""The number of faults by class of the log handler."""

_REPORTING = threading.local()


_NO_HANDLERS = logging.Logger("runner")
_NO_HANDLERS.addHandler(logging.NullHandler())


class ContainedLogger(logging.Logger):
    """A logger whose handlers and filters cannot stop its caller, and of which none costs another one its record."""

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record to the handlers, unless a filter rejects it."""
        try:
            call_own(super().handle, record)
        except OwnCodeFault as fault:
            _report("a filter of the logger", record, fault)

    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802 - of logging
        """Pass a record to each handler of this logger and of those above it."""
        logger: logging.Logger | None = self
        found = False
        while logger is not None:
            for handler in tuple(logger.handlers):
                found = True
                if record.levelno >= handler.level:
                    try:
                        call_own(handler.handle, record)
                    except OwnCodeFault as fault:
                        _report(f"{type(handler).__module__}.{type(handler).__qualname__}", record, fault)
            logger = logger.parent if logger.propagate else None
        try:  # an error tracker replaces this method of all loggers
            call_own(logging.Logger.callHandlers, _NO_HANDLERS if found else self, record)
        except OwnCodeFault as fault:
            _report("logging.Logger.callHandlers", record, fault)


def contain_log_handlers() -> None:
    """Contain the log handlers of this process for the records of the runner. Other loggers stay as they are."""
    for name, logger in [*logging.root.manager.loggerDict.items()]:
        if type(logger) is logging.Logger and name.partition(".")[0] == "runner":
            logger.__class__ = ContainedLogger


def _report(where: str, record: logging.LogRecord, fault: OwnCodeFault) -> None:
    """Name a fault on standard error after 1, 2, 4, ... of them; a logger may be the one that fails."""
    FAULTS[where] += 1
    if FAULTS[where].bit_count() != 1 or getattr(_REPORTING, "active", False):
        return
    _REPORTING.active = True
    try:
        with suppress(OwnCodeFault):
            message = one_line(call_own(record.getMessage))
            text = f"log handler {where} {one_line(str(fault))} ({FAULTS[where]} so far); it did not get: {message}\n"
            call_own(queued(sys.stderr).write, text)
    finally:
        _REPORTING.active = False
