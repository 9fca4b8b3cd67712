"""EventLog: the log lines of events."""

import logging
from collections import Counter

from runner.engine.events import (
    AttemptsEnded,
    BreakerReviewed,
    Events,
    InterruptIgnored,
    StrangersReleased,
    TaskClaimedTwice,
    TasksCancelled,
    TasksRescued,
    TasksUnbound,
)
from runner.engine.executing.attempt_outcome import handler_frames
from runner.engine.running import Running, in_context
from runner.logs import log_exception
from runner.model.headers import trace_id
from runner.model.outcome import Dead, Done, Outage, Outcome, Retry, Snooze
from runner.model.sealed import hide_sealed
from runner.store.settle import Settlement
from runner.text import formatting
from runner.text.sanitize import count_noun, one_line

log = logging.getLogger("runner")
claim_log = logging.getLogger("runner.claim")
breaker_log = logging.getLogger("runner.breaker")
recovery_log = logging.getLogger("runner.recovery")
outcome_log = logging.getLogger("runner.outcome")
"""The failed attempts and the deaths."""

LEVELS = {"die": logging.ERROR, "retry": logging.WARNING, "rescue": logging.WARNING}
"""Levels of the moves that need attention; the others are information."""

LOST_ANSWER = "the result of the claim never reached the runner"


class EventLog:
    """Writes the log lines of the events of one runner, without payloads."""

    def __init__(self, events: Events) -> None:
        self._late_results = set[str]()
        """The handlers of which a result after `ctx.transaction()` is already in the log."""
        events.subscribe(AttemptsEnded, self._log_ends)
        events.subscribe(InterruptIgnored, _log_ignored_interrupt)
        events.subscribe(TaskClaimedTwice, _log_second_claim)
        events.subscribe(TasksRescued, _log_rescued)
        events.subscribe(TasksCancelled, _log_expired)
        events.subscribe(TasksUnbound, _log_unbound)
        events.subscribe(StrangersReleased, _log_released_strangers)
        events.subscribe(BreakerReviewed, _log_breaker)

    def _log_ends(self, event: AttemptsEnded) -> None:
        tasks = [running.task for running, _ in event.attempts]
        if event.verb is None:
            text = "task %d (%s) was fenced out: its outcome is discarded"
            for running, _ in event.attempts:
                in_context(running, log.warning, text, running.task.id, running.task.handler)
            return
        for task in tasks if event.written else ():
            if task.id in event.written:
                text = "task %d (%s): %s was written before: its commit was not answered"
                log.info(text, task.id, task.handler, event.verb)
        for running, settlement in event.attempts:
            if running.done_in_tx:
                in_context(running, self._log_late_outcome, running, settlement.outcome)
            elif event.verb != "succeed":
                in_context(running, _log_failure, running, settlement, event.verb)

    def _log_late_outcome(self, running: Running, outcome: Outcome) -> None:
        """Log a result, an outcome or a failure that came after `ctx.transaction()` and changes nothing."""
        task, failure, text = running.task, getattr(outcome, "failure", None), ""
        if failure is not None:
            text = f"succeeded in its own transaction, then failed: {' '.join(failure.reason[:300].split())}"
        elif isinstance(outcome, (Retry, Dead, Snooze)):
            text = f"succeeded in its own transaction: its {type(outcome).__name__} after that is ignored"
        elif self._has_new_late_result(running, outcome):
            self._late_results.add(task.handler)
            text = "returned a result after ctx.transaction(), which is not kept: set it within the block"
        if text:
            log.warning("task %d (%s) %s", task.id, task.handler, text)

    def _has_new_late_result(self, running: Running, outcome: Outcome) -> bool:
        has_result = isinstance(outcome, Done) and bool(outcome.result) and not running.result_in_tx
        return has_result and running.task.handler not in self._late_results


def _log_ignored_interrupt(event: InterruptIgnored) -> None:
    task = event.running.task
    log.error("task %d (%s) ignored its interrupt: it ends with the process", task.id, task.handler)


def _log_second_claim(event: TaskClaimedTwice) -> None:
    claim_log.warning("task %d was claimed again while in flight: its lease must have expired", event.task.id)


def _log_rescued(event: TasksRescued) -> None:
    for id, task in event.tasks.items():
        extra = {"task": id, "handler": task.handler, "queue": task.queue, "key": task.key, "attempt": task.attempt}
        if (trace := trace_id(task.headers)) is not None:
            extra["trace_id"] = trace
        level = LEVELS.get(task.verb, logging.WARNING)
        outcome_log.log(level, "task %d (%s) %s", id, task.handler, task.text, extra=extra)


def _log_expired(event: TasksCancelled) -> None:
    for handler, number in Counter(task.handler for task in event.tasks).items() if event.expired else ():
        recovery_log.warning("%s of %s expired without a start", count_noun(number, "task"), one_line(handler))


def _log_unbound(event: TasksUnbound) -> None:
    recovery_log.info("any host may take %s that waited for theirs", count_noun(event.number, "task"))


def _log_released_strangers(event: StrangersReleased) -> None:
    recovery_log.warning("released %s: %s", count_noun(event.number, "task"), LOST_ANSWER)


def _log_breaker(event: BreakerReviewed) -> None:
    name, review = one_line(event.handler), event.review
    match review.change:
        case "opened":
            breaker_log.warning("breaker of %s opened: %s", name, one_line(review.why))
        case "waits":
            breaker_log.warning("probe of %s failed: the next one starts in %s", name, review.why)
        case "closed":
            breaker_log.info("breaker of %s closed: a probe succeeded", name)


def _log_failure(running: Running, settlement: Settlement, verb: str) -> None:
    """Log an attempt that did not succeed: a death with its exception, for error trackers."""
    task, failure = running.task, getattr(settlement.outcome, "failure", None)
    why = hide_sealed(failure.reason if failure else getattr(settlement.outcome, "why", None) or "")
    attempt = f"attempt {task.attempt}/{task.max_attempts}"
    level, error = LEVELS.get(verb, logging.INFO), running.error if verb == "die" else None
    if isinstance(settlement.outcome, Outage):
        level = max(level, logging.WARNING)
    extra = {
        "task": task.id,
        "handler": task.handler,
        "queue": task.queue,
        "key": task.key,
        "attempt": task.attempt,
        "max_attempts": task.max_attempts,
        "error_type": failure.type if failure else None,
    }
    end = ": ".join(filter(None, (formatting.ended_as(verb), " ".join(why[:300].split()))))
    text, values = "task %d (%s) %s %s", (task.id, task.handler, attempt, end)
    if error is None:
        outcome_log.log(level, text, *values, extra=extra)
    else:
        frames, trace = handler_frames(error), failure.traceback if failure else ""
        log_exception(outcome_log, level, text, *values, error=error, frames=frames, text=trace, extra=extra)
