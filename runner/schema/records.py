"""The columns of what is kept about tasks: attempts, minutes, the audit, what is unique and what waits for what."""

from typing import Any, get_args

import sqlalchemy as sa

from runner.columns import BigId, Instant, JsonText, Name, db_now, login
from runner.task import OnFailure, Scope


def attempt() -> list[sa.Column[Any]]:
    """One row for each attempt that failed or was rescued."""
    return [
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("fence", BigId, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("queue", Name, nullable=False),
        sa.Column("handler", Name, nullable=False),
        sa.Column("started_at", Instant),
        sa.Column("ended_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("runner_id", sa.BigInteger),
        sa.Column("host", sa.Text),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("error_type", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("traceback", sa.Text),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("delay", sa.Float),
    ]


def minute() -> list[sa.Column[Any]]:
    """What was done, minute by minute, queue by queue, handler by handler."""
    return [
        sa.Column("minute", Instant, primary_key=True),
        sa.Column("queue", Name, primary_key=True),
        sa.Column("handler", Name, primary_key=True),
        # A runner writes rows of its own and sums are taken when reading: no two writers ever wait for each other.
        sa.Column("runner_id", BigId, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Integer, nullable=False, server_default="0") for name in MINUTE_COUNTS),
        sa.Column("durations", JsonText, nullable=False, server_default="[]"),
    ]


SETTLED_COUNTS = ("succeeded", "first_try", "second_try", "retried", "died", "cancelled", "rescued")
"""Counted when they happen; of the runner's own rows each holds the total of its minute."""

MINUTE_COUNTS = ("submitted", *SETTLED_COUNTS)
"""`submitted` is counted when a task is first claimed, or cancelled before that; in the minute of its submitted_at.

Counting it when it is submitted would have all producers wait for each other at one row, and leave out plain INSERTs.
What was never claimed yet stands in the live table with the fence 0."""


def audit() -> list[sa.Column[Any]]:
    """Who changed what."""
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("task_id", sa.BigInteger, index=True),
        sa.Column("target", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("before", JsonText),
        sa.Column("after", JsonText),
        sa.Column("undo_of", sa.BigInteger),
        # The same for all that was changed together.
        sa.Column("batch", sa.Text),
        # As whom the database knew the client; the roles give nobody the right to write it.
        sa.Column("login", sa.Text, server_default=login()),
    ]


def unique() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Which task holds a unique key, or held it last."""
    scopes = ", ".join(f"'{scope.value}'" for scope in Scope)
    return [
        sa.Column("handler", Name, primary_key=True),
        sa.Column("unique_key", Name, primary_key=True),
        # A row that was only locked names nobody and holds nothing.
        sa.Column("task_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("scope", sa.Text, nullable=False, server_default=Scope.UNTIL_FINISHED.value),
        sa.Column("expires_at", Instant),
        sa.Column("duplicates", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("duplicate_at", Instant),
        sa.CheckConstraint(f"scope in ({scopes})", name="scope"),
        sa.CheckConstraint(f"(scope = '{Scope.FOR_A_TIME.value}') = (expires_at is not null)", name="expires_at"),
    ]


def dependency() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """What a task waits for: one row for each parent.

    A row without `satisfied_at` is open, and holds its task back while that is blocked.
    """
    rules = ", ".join(repr(rule) for rule in get_args(OnFailure))
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        # The one that waits.
        sa.Column("task_id", sa.BigInteger, nullable=False, index=True),
        # The one that is waited for; where it is named by handler and key, the one that these stood for when its end
        # was seen, and null until then.
        sa.Column("parent_id", sa.BigInteger, index=True),
        sa.Column("parent_handler", Name),
        sa.Column("parent_key", sa.Text),
        sa.Column("on_failure", sa.Text, nullable=False, server_default="wait"),
        # The final state in which it was seen last, or GONE; null until then. It may stand in an open row: a dead
        # parent that may yet be run again.
        sa.Column("parent_state", sa.Text),
        # When it stopped to hold its task back.
        sa.Column("satisfied_at", Instant),
        # The operator who let it go; null when it let go by itself.
        sa.Column("satisfied_by", sa.Text),
        sa.CheckConstraint(f"on_failure in ({rules})", name="on_failure"),
        sa.CheckConstraint("parent_id is not null or parent_key is not null", name="parent"),
        sa.CheckConstraint("(parent_handler is null) = (parent_key is null)", name="parent_key"),
    ]


GONE = "gone"
"""Stands for the state of a parent that is neither live nor in the history."""
