"""eligible: which tasks a claim takes; the claim asks this, and so does `why` for people."""

import sqlalchemy as sa

from runner.columns import db_now
from runner.schema import is_state
from runner.task import State


def is_due(task: sa.FromClause) -> sa.ColumnElement[bool]:
    """The condition that a task waits, and its time has come."""
    return sa.and_(is_state(task.c.state, State.WAITING), task.c.run_at <= db_now())


def has_attempts_left(task: sa.FromClause) -> sa.ColumnElement[bool]:
    """The condition that a task may be tried again."""
    return task.c.max_attempts.is_(None) | (task.c.attempt < task.c.max_attempts)


def is_suspect(task: sa.FromClause) -> sa.ColumnElement[bool]:
    """The condition that a task is to be run apart: it saw two runners die, or one before its last attempt."""
    twice = task.c.rescues > sa.literal_column("1")
    last = task.c.attempt + sa.literal_column("1") >= task.c.max_attempts
    # False and not unknown where there is no maximum: both claims would pass over such a row, for ever.
    return twice | (task.c.rescues == sa.literal_column("1")) & task.c.max_attempts.is_not(None) & last
