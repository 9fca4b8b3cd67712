"""timeline: what happened to a task, in order: how its attempts went, and what operators did meanwhile."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from runner.people import cells
from runner.people.redaction import differences, masked
from runner.people.times import format_age
from runner.store.observe.audit import Audited
from runner.store.observe.evidence import Attempt
from runner.store.observe.story import Story
from runner.task import State

BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
"""Stands in for a time that cannot be read."""

MOST_OF_A_VALUE = 60
"""Characters of a value before and after a change; the entry in the audit has all of it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a task.

    Args:
        at: when; None when that cannot be read.
        kind: its name for programs: submitted, attempt, running, change, ended or hidden.
        text: what happened, in a line. Texts from the database are as they stand there, as in `details`.
        details: more of it, one line each: the error of an attempt, what a change changed.
    """

    at: datetime | None
    kind: str
    text: str
    details: tuple[str, ...] = ()


def timeline(story: Story, *, reveal: bool = False, zone: tzinfo = UTC) -> tuple[Event, ...]:
    """Tell what happened to a task, in the order of time.

    An attempt stands where it ended, for that is when it was decided what it led to, by what operators had changed
    until then; the one under way stands where it was claimed.

    Args:
        story: everything about the task.
        reveal: show secrets.
        zone: in which the times are told that a change set.
    """
    began, tried = _submitted(story), _attempts(story, reveal=reveal)
    events = [*began, *tried, *_changes(story, reveal=reveal, zone=zone), *_last(story)]
    known = sorted(events, key=lambda event: event.at or BEFORE_ALL)
    if not story.audit_seen:
        text = "what operators did is not shown: this login may not read the audit"
        known.append(Event(None, "hidden", text))
    return tuple(known)


def entry_told(entry: Audited) -> str:
    """What an operator did, in a line: by whom, why, and together with what."""
    why = f": {entry.reason}" if entry.reason else ""
    undone = f" (takes back {entry.undo_of})" if entry.undo_of else ""
    login = f" (login {entry.login})" if entry.login not in (None, entry.operator) else ""
    together = f", together with others as {entry.batch}" if entry.batch else ""
    return f"{cells.verb(entry.verb)}{undone} by {entry.operator}@{entry.host}{login}{together}{why}"


def _submitted(story: Story) -> Iterator[Event]:
    by = f" by {story.submitted_by}" if story.submitted_by else ""
    yield Event(story.task.submitted_at, "submitted", f"submitted{by}")


def _attempts(story: Story, *, reveal: bool) -> Iterator[Event]:
    for attempt in story.attempts:
        error = masked(f"{attempt.error_type}: {attempt.message}", reveal=reveal)
        yield Event(attempt.ended_at, "attempt", _attempt(attempt), (error,))


def _attempt(attempt: Attempt) -> str:
    next_in = f", next in {format_age(attempt.delay)}" if attempt.delay is not None else ""
    where = f"runner {cells.text(attempt.runner_id)} on {cells.text(attempt.host)}"
    held = cells.duration(attempt.duration)  # with its start and the writing of its end: more than its handler took
    return f"attempt {attempt.attempt} in hand for {held}, {where}, led to {attempt.verb}{next_in}"


def _changes(story: Story, *, reveal: bool, zone: tzinfo) -> Iterator[Event]:
    for entry in story.audit:
        values = differences(entry.before, entry.after, reveal=reveal, most=MOST_OF_A_VALUE, zone=zone)
        yield Event(entry.at, "change", entry_told(entry), tuple(values))


def _last(story: Story) -> Iterator[Event]:
    """What no attempt and no operator tells of: that it runs, or that it ended well."""
    task = story.task
    where = f"runner {cells.text(task.runner_id)} on {cells.text(task.host)}"
    if task.state is State.RUNNING:
        text = f"attempt {task.attempt} under way for {cells.since(task.claimed_at, story.at)}, {where}"
        yield Event(task.claimed_at, str(task.state), text)
    elif task.state is State.SUCCEEDED:
        took = f", its handler took {cells.duration(task.duration)}" if task.duration is not None else ""
        yield Event(task.finished_at, "ended", f"attempt {task.attempt} {task.state}{took}, {where}")
    elif task.state.final:
        yield Event(task.finished_at, "ended", f"{task.state}")
