"""What filters are applied to: tables, with the meaning of fields and states in each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.columns import db_now
from runner.schema import Tables, is_state, state_literal
from runner.task import FINAL, Shown, State

Condition: TypeAlias = sa.ColumnElement[bool]

TASK_COLUMNS = {
    "id": "id",
    "queue": "queue",
    "handler": "handler",
    "key": "key",
    "unique": "unique_key",
    "bucket": "bucket",
    "error": "error",
    "host": "host",
    "runner": "runner_id",
    "tag": "tags",
    "by": "submitted_by",
    "attempts": "attempt",
    "max_attempts": "max_attempts",
    "priority": "priority",
    "age": "submitted_at",
}
"""The column behind each field that means the same for live and finished tasks."""

ATTEMPT_COLUMNS = {
    "id": "task_id",
    "queue": "queue",
    "handler": "handler",
    "host": "host",
    "runner": "runner_id",
    "attempts": "attempt",
    "failure": "fingerprint",
    "since": "ended_at",
    "until": "ended_at",
}


@dataclass(frozen=True, eq=False)
class Subject:
    """What a filter is applied to.

    Args:
        table: whose rows.
        columns: what each field means there.
        states: the condition behind each word for a state that its rows can be in.
        failures: the table of failed attempts, which belong to its rows; None where it is that table itself.
        always: what else must hold of its rows; an index serves it.
        unordered: that index has no order that a list can have.
    """

    table: sa.Table
    columns: Mapping[str, Any]
    states: Mapping[str, Condition]
    failures: sa.Table | None = None
    always: tuple[Condition, ...] = ()
    unordered: bool = False


@lru_cache
def live(tables: Tables) -> Subject:
    """Tasks that have not ended."""
    task = tables.task.c
    columns = {field: task[name] for field, name in TASK_COLUMNS.items()}
    times = {"since": task.submitted_at, "until": task.submitted_at, "due": task.run_at}
    return Subject(tables.task, columns | times, live_states(tables), tables.attempt)


@lru_cache
def waiting(tables: Tables) -> Subject:
    """Tasks that wait for their time, or for a runner."""
    return _only(live(tables), State.WAITING, Shown.READY, Shown.SCHEDULED, Shown.RETRYING)


@lru_cache
def running(tables: Tables) -> Subject:
    """Tasks in the hands of runners."""
    return replace(_only(live(tables), State.RUNNING, Shown.LOST), unordered=True)


def _only(subject: Subject, state: State, *shown: Shown) -> Subject:
    states: dict[str, Condition] = {word: subject.states[word] for word in (state, *shown)}
    return replace(subject, states=states, always=(states[state],))


@lru_cache
def past(tables: Tables) -> Subject:
    """Tasks that have ended; none of them is due."""
    history = tables.history.c
    columns = {field: history[name] for field, name in TASK_COLUMNS.items()}
    times = {"since": history.finished_at, "until": history.finished_at, "due": history.run_at}
    states: dict[str, Condition] = {state: ended(history.state, state) for state in FINAL}
    return Subject(tables.history, columns | times, states, tables.attempt)


@lru_cache
def attempts(tables: Tables) -> Subject:
    """Attempts that failed."""
    tried = tables.attempt.c
    columns = {field: tried[name] for field, name in ATTEMPT_COLUMNS.items()}
    return Subject(tables.attempt, columns | {"error": tried.error_type + ": " + tried.message}, {})


def live_states(tables: Tables) -> dict[str, Condition]:
    """What each word for the state of a live task means, on the database's clock."""
    task, runner = tables.task.c, tables.runner.c
    waiting, later = is_state(task.state, State.WAITING), task.run_at > db_now()
    running = is_state(task.state, State.RUNNING)
    lease_holds = sa.exists().where(runner.id == task.runner_id, runner.lease_until >= db_now()).correlate(tables.task)
    return {
        State.WAITING: waiting,
        Shown.READY: waiting & (task.run_at <= db_now()),
        Shown.SCHEDULED: waiting & later & (task.attempt <= 0),
        Shown.RETRYING: waiting & later & (task.attempt > 0),
        State.BLOCKED: is_state(task.state, State.BLOCKED),
        State.RUNNING: running,
        Shown.LOST: running & ~lease_holds,
    }


def ended(column: sa.ColumnElement[str], state: State) -> Condition:
    """The condition that a task ended in this state, spelled so that SQLite too finds its index.

    It uses a partial index only when the index's own condition is written out.
    """
    found = is_state(column, state)
    return found if state is State.SUCCEEDED else found & (column != state_literal(State.SUCCEEDED))
