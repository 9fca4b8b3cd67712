"""Outcome log: the log records of failed attempts, rescues and tasks that do not end."""

import logging
from collections.abc import Sequence

from runner.engine.handler_result import handler_frames
from runner.engine.slots import Running
from runner.store.rescue import Rescued
from runner.store.settle import Settlement
from runner.text import formatting
from runner.text.sanitize import count_noun

log = logging.getLogger("runner")
outcome_log = logging.getLogger("runner.outcome")
"""The failed attempts and the deaths."""

_LEVELS = {"die": logging.ERROR, "retry": logging.WARNING, "rescue": logging.WARNING}
"""Levels of the moves that need attention; the others are information."""


def log_unfinished(running: Running) -> None:
    """Log a task that did not end when interrupted, without its payload."""
    task = running.task
    log.error("task %d (%s) ignored its interrupt: it ends with the process", task.id, task.handler)


MOST_NAMED = 20
"""Tasks that are named when a process ends with many."""


def log_immediate_exit(number: int, started: Sequence[Running]) -> None:
    """Log the tasks of a process that ends on a second signal.

    Args:
        number: all tasks of the runner, which other runners rescue.
        started: those whose body is running.
    """
    names = ", ".join(f"task {running.task.id} ({running.task.handler})" for running in started[:MOST_NAMED])
    more = f" and {len(started) - MOST_NAMED:,} more" if len(started) > MOST_NAMED else ""
    running = f"; running: {names}{more}" if started else ""
    log.warning("exiting immediately: %s will be rescued%s", count_noun(number, "task"), running)


def log_rescued(id: int, task: Rescued) -> None:
    """Log a task that this runner took from a lost one."""
    extra = {"task": id, "handler": task.handler, "queue": task.queue, "key": task.key, "attempt": task.attempt}
    outcome_log.log(
        _LEVELS.get(task.verb, logging.WARNING), "task %d (%s) %s", id, task.handler, task.text, extra=extra
    )


def log_failure(running: Running, settlement: Settlement, verb: str) -> None:
    """Log an attempt that did not succeed, without its payload: a death with its exception, for error trackers."""
    task, failure = running.task, getattr(settlement.outcome, "failure", None)
    why = failure.reason if failure else getattr(settlement.outcome, "why", None) or ""
    attempt = f"attempt {task.attempt}/{task.max_attempts}"
    level, error = _LEVELS.get(verb, logging.INFO), running.error if verb == "die" else None
    exc_info = error and (type(error), error, handler_frames(error))
    extra = {
        "task": task.id,
        "handler": task.handler,
        "queue": task.queue,
        "key": task.key,
        "attempt": task.attempt,
        "max_attempts": task.max_attempts,
        "error_type": failure.type if failure else None,
    }
    arguments = (task.id, task.handler, attempt, formatting.ended_as(verb), " ".join(why[:300].split()))
    outcome_log.log(level, "task %d (%s) %s %s: %s", *arguments, exc_info=exc_info, extra=extra)
