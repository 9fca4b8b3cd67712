"""timeline: the attempts of a task and the operations on it, in order."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from runner.model.task import State
from runner.queries.audit import AuditRecord
from runner.queries.audit_words import change_words
from runner.queries.task.attempts import Attempt
from runner.queries.task.detail import TaskDetail
from runner.text import formatting
from runner.text.redact import differences, mask
from runner.text.runner_name import runner_name
from runner.text.times import format_age

BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
"""The sort position of an unreadable time."""

MOST_OF_A_VALUE = 60
"""Characters of a value before and after a change; the audit entry has the full value."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a task.

    Args:
        at: the time; None if unreadable.
        kind: a name for programs: submitted, attempt, running, change, ended or hidden.
        text: one line. Values from the database in `text` and `details` are not sanitized.
        details: more lines: the error of an attempt, or the values of a change.
    """

    at: datetime | None
    kind: str
    text: str
    details: tuple[str, ...] = ()


def timeline(detail: TaskDetail, *, reveal: bool = False, zone: tzinfo | None = None) -> tuple[Event, ...]:
    """List the events of a task in order.

    A finished attempt has the time of its end, when its result was decided; a running one has the time of its claim.

    Args:
        reveal: show secrets.
        zone: the time zone of changed values in words; None for their columns and their JSON, with times in UTC.
    """
    start, attempts = _submitted(detail), _attempts(detail, reveal=reveal)
    events = [*start, *attempts, *_changes(detail, reveal=reveal, zone=zone), *_last(detail)]
    ordered = sorted(events, key=lambda event: event.at or BEFORE_ALL)
    if not detail.audit_seen:
        text = "operations are hidden: this login may not read the audit log"
        ordered.append(Event(None, "hidden", text))
    return tuple(ordered)


def format_entry(entry: AuditRecord) -> str:
    """One operation as a line: verb, operator, change group and reason."""
    why = f": {entry.reason}" if entry.reason else ""
    undo = f" (undoes {entry.undo_of})" if entry.undo_of else ""
    login = f" (login {entry.login})" if entry.login not in (None, entry.operator) else ""
    group = f", group {entry.change_group}" if entry.change_group else ""
    return f"{formatting.verb(entry.verb)}{undo} by {entry.operator}@{entry.host}{login}{group}{why}"


def _submitted(detail: TaskDetail) -> Iterator[Event]:
    by = f" by {detail.submitted_by}" if detail.submitted_by else ""
    yield Event(detail.task.submitted_at, "submitted", f"submitted{by}")


def _attempts(detail: TaskDetail, *, reveal: bool) -> Iterator[Event]:
    for attempt in detail.attempts:
        error = mask(f"{attempt.error_type}: {attempt.message}", reveal=reveal)
        yield Event(attempt.ended_at, "attempt", _attempt(attempt, detail.run_time(attempt)), (error,))


def _attempt(attempt: Attempt, run_time: timedelta | float | None) -> str:
    """The end of an attempt."""
    next_in = f" in {format_age(attempt.delay)}" if attempt.delay is not None else ""
    where = runner_name(formatting.text(attempt.runner_id), attempt.host, attempt.pid)
    rule = f" ({attempt.rule})" if attempt.rule else ""
    end = f"{formatting.ended_as(attempt.verb)}{next_in}{rule}"
    return f"attempt {attempt.attempt} ended after {formatting.duration(run_time)} on {where}: {end}"


def _changes(detail: TaskDetail, *, reveal: bool, zone: tzinfo | None) -> Iterator[Event]:
    for entry in detail.audit:
        if zone is None:
            stored = differences(entry.before, entry.after, reveal=reveal, most=MOST_OF_A_VALUE)
            values = tuple(map(str, stored))
        else:
            values = tuple(change_words(entry, zone, reveal=reveal, most=MOST_OF_A_VALUE))
        yield Event(entry.at, "change", format_entry(entry), values)


def _last(detail: TaskDetail) -> Iterator[Event]:
    """The events without an attempt or audit entry: the current run and the end."""
    task = detail.task
    where = runner_name(formatting.text(task.runner_id), task.host, detail.pid)
    if task.state is State.RUNNING:
        text = f"attempt {task.attempt} running for {formatting.since(task.claimed_at, detail.at)}, {where}"
        yield Event(task.claimed_at, str(task.state), text)
    elif task.state is State.SUCCEEDED:
        handler_time = f", handler time {formatting.duration(task.duration)}" if task.duration is not None else ""
        yield Event(task.finished_at, "ended", f"attempt {task.attempt} {task.state}{handler_time}, {where}")
    elif task.state.final:
        yield Event(task.finished_at, "ended", f"{task.state}")
