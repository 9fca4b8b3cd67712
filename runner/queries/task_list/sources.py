"""The tables that filters apply to, with the meaning of each field and state."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.db.schema import Tables, is_state
from runner.db.schema.task import Condition, is_final_state
from runner.db.types import db_now
from runner.model.task import FINAL, Shown, State

TASK_FIELDS = {
    "id": "id",
    "queue": "queue",
    "handler": "handler",
    "key": "key",
    "tenant": "tenant",
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
    "payload": "payload",
    "workflow": "workflow",
}
"""The column of each field that is the same for live and finished tasks."""

ATTEMPT_FIELDS = {
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
class Source:
    """A table that a filter applies to.

    Args:
        columns: the column or expression of each field.
        states: the condition of each state that a row of the table can have.
        related: the tables of attempts, changes and dependencies, which belong to its rows.
        always: conditions that hold for all of its rows; an index serves them.
        unordered: True if that index has none of the list orders.
    """

    table: sa.Table
    columns: Mapping[str, Any]
    states: Mapping[str, Condition]
    related: Tables
    always: tuple[Condition, ...] = ()
    unordered: bool = False


def bound_to(task: Any) -> dict[str, Any]:
    """The field of the hosts of a task, which is null if any host may take it."""
    return {"hosts": sa.func.nullif(task.hosts, sa.literal_column("''"), type_=sa.Text)}


@lru_cache
def live(tables: Tables) -> Source:
    """Live tasks."""
    task = tables.task.c
    columns = {field: task[name] for field, name in TASK_FIELDS.items()} | bound_to(task)
    times = {"since": task.submitted_at, "until": task.submitted_at, "due": task.run_at}
    return Source(tables.task, columns | times, live_states(tables), tables)


@lru_cache
def waiting(tables: Tables) -> Source:
    """Waiting tasks."""
    return _only(live(tables), State.WAITING, Shown.READY, Shown.SCHEDULED, Shown.RETRYING)


@lru_cache
def running(tables: Tables) -> Source:
    """Running tasks."""
    return replace(_only(live(tables), State.RUNNING, Shown.LOST), unordered=True)


def _only(subject: Source, state: State, *shown: Shown) -> Source:
    states: dict[str, Condition] = {word: subject.states[word] for word in (state, *shown)}
    return replace(subject, states=states, always=(states[state],))


@lru_cache
def past(tables: Tables) -> Source:
    """Finished tasks; none of them is due."""
    history = tables.history.c
    columns = {field: history[name] for field, name in TASK_FIELDS.items()} | bound_to(history)
    times = {"since": history.finished_at, "until": history.finished_at, "due": history.run_at}
    states: dict[str, Condition] = {state: is_final_state(history.state, state) for state in FINAL}
    return Source(tables.history, columns | times, states, tables)


@lru_cache
def attempts(tables: Tables) -> Source:
    """Failed attempts."""
    attempt = tables.attempt.c
    columns = {field: attempt[name] for field, name in ATTEMPT_FIELDS.items()}
    return Source(tables.attempt, columns | {"error": attempt.error_type + ": " + attempt.message}, {}, tables)


def live_states(tables: Tables) -> dict[str, Condition]:
    """The condition of each live state, by the database's clock."""
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
