"""The columns of what is kept about tasks: attempts, minutes, the audit, what is unique and what waits for what."""

from typing import Any

import sqlalchemy as sa

from runner.columns import BigId, Instant, JsonText, Name, db_now
from runner.task import Scope


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


def dependency() -> list[sa.Column[Any] | sa.Index]:
    """What a task waits for."""
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("task_id", sa.BigInteger, nullable=False, index=True),
        sa.Column("parent_id", sa.BigInteger, index=True),
        sa.Column("parent_handler", Name),
        sa.Column("parent_key", sa.Text),
        sa.Column("on_failure", sa.Text, nullable=False),
        sa.Column("satisfied_at", Instant),
    ]
