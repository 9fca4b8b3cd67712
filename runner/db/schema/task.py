"""Columns of tasks, live and finished, with the SQL literals of their states."""

from collections.abc import Iterable
from typing import Any, TypeAlias, get_args

import sqlalchemy as sa

from runner.db.types import BigId, Instant, JsonText, Name, db_now, random_below
from runner.model.headers import HEADERS_LIMIT
from runner.model.task import (
    BUCKETS,
    DEFAULT_QUEUE,
    FINAL,
    HIGHEST_FENCE,
    LIVE,
    MOST_ATTEMPTS,
    OnFailure,
    Priority,
    State,
)


def state_literal(state: State) -> sa.ColumnElement[str]:
    """Return a state as a literal; as a parameter it would hide the partial indexes from a generic plan."""
    return sa.literal_column(f"'{state.value}'", sa.Text)


def is_state(column: sa.ColumnElement[str], *states: State) -> sa.ColumnElement[bool]:
    """Return the condition that a column has one of the states, in the form of the partial indexes."""
    if len(states) == 1:
        return column == state_literal(states[0])
    return column.in_([state_literal(state) for state in states])


Condition: TypeAlias = sa.ColumnElement[bool]


def is_final_state(column: sa.ColumnElement[str], state: State) -> sa.ColumnElement[bool]:
    """The condition that a task ended in this state, in the form that SQLite's index needs.

    SQLite uses a partial index only if the query repeats the condition of the index.
    """
    match = is_state(column, state)
    return match if state is State.SUCCEEDED else match & (column != state_literal(State.SUCCEEDED))


def waits_with_tenant(task: Any) -> Condition:
    """The condition that a task with a tenant waits, in a form that only the index `tenant` has.

    With `state = 'waiting'`, PostgreSQL may choose the index `ready`: while its statistics know few waiting tasks, it
    reads and sorts all of them to find those of one tenant.

    Args:
        task: the columns of the live table.
    """
    waiting = state_literal(State.WAITING)
    return sa.and_(task.state >= waiting, task.state <= waiting, task.tenant.is_not(None))


def runs_with_order_key(task: Any) -> Condition:
    """The condition that a task with an order key runs, in a form that only the index `in_order` has.

    With `state = 'running'`, PostgreSQL may choose the index of all running tasks: while its statistics know none, it
    reads all of them to find the one of a key.

    Args:
        task: the columns of the live table.
    """
    running = state_literal(State.RUNNING)
    return sa.and_(task.order_key.is_not(None), task.state >= running, task.state <= running)


def is_open(dependency: Any) -> Condition:
    """The condition that a dependency is open, in the form of the partial indexes."""
    condition: Condition = dependency.satisfied_at.is_(None)
    return condition


def identity() -> list[sa.Column[Any]]:
    """The id of a live task."""
    return [sa.Column("id", BigId, sa.Identity(), primary_key=True, autoincrement=True)]


def finished_identity() -> list[sa.Column[Any] | sa.Constraint]:
    """The id of a finished task, which it keeps. On PostgreSQL each partition has the primary key."""
    return [
        sa.Column("id", BigId, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id").ddl_if(dialect="sqlite"),
    ]


def _submit_columns() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """The columns that a submit fills besides the payload, for live and finished tasks."""
    return [
        sa.Column("queue", Name, nullable=False, server_default=DEFAULT_QUEUE),
        sa.Column("handler", Name, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default=str(Priority.DEFAULT)),
        sa.Column("run_at", Instant, nullable=False, server_default=db_now()),
        # No attempt starts after it.
        sa.Column("expires_at", Instant),
        sa.Column("max_attempts", sa.Integer),
        sa.Column("retry", sa.Text),
        sa.Column("timeout", sa.Float),
        sa.Column("bucket", sa.SmallInteger, nullable=False, server_default=random_below(BUCKETS)),
        # The customer, account or host that it belongs to, for limits and shares per tenant.
        sa.Column("tenant", Name),
        # The hosts that may take it, such as web-1,web-2; empty for all. It is part of the lane.
        sa.Column("hosts", Name, nullable=False, server_default=""),
        # From then on, any host may take it.
        sa.Column("hosts_until", Instant),
        sa.Column("unique_key", sa.Text),
        sa.Column("order_key", sa.Text),
        # The effect of a failed predecessor in the order key; null is "wait".
        sa.Column("order_on_failure", sa.Text),
        sa.Column("tags", JsonText),
        # Texts by name that travel with the task, such as the position in a trace: a JSON object.
        sa.Column("headers", JsonText),
        sa.Column("submitted_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("submitted_by", sa.Text),
        # The id of its workflow, a row of task_workflow; null for a task outside of workflows.
        sa.Column("workflow", sa.BigInteger),
    ]


def _trail() -> list[sa.Column[Any]]:
    """The execution so far."""
    return [
        sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("releases", sa.Integer, nullable=False, server_default="0"),
        sa.Column("rescues", sa.Integer, nullable=False, server_default="0"),
        sa.Column("interruptions", sa.Integer, nullable=False, server_default="0"),
        sa.Column("runner_id", sa.BigInteger),
        sa.Column("host", sa.Text),
        sa.Column("claimed_at", Instant),
        # Number of its parents by final state; null while it is blocked, and without dependencies.
        sa.Column("parents", JsonText),
        sa.Column("error", sa.Text),
    ]


def _payload() -> sa.Column[Any]:
    """The payload, the last column: SQLite reads all pages of a long value before the columns behind it."""
    return sa.Column("payload", JsonText, nullable=False, server_default="{}")


def live() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Columns of a live task."""
    return [
        *_submit_columns(),
        sa.Column("state", sa.Text, nullable=False, server_default=State.WAITING.value),
        sa.Column("blocked_by", sa.Integer, nullable=False, server_default="0"),
        sa.Column("deadline_at", Instant),
        # Null while a runner is not known to have started it: its attempt does not count if the runner is lost.
        sa.Column("started_at", Instant),
        # Part of the lane: some orders claim fresh tasks first.
        sa.Column("retried", sa.Boolean, sa.Computed("attempt > 0", persisted=True)),
        sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        *_trail(),
        _payload(),
        *_live_rules(),
        *_header_rules(),
    ]


def finished() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Columns of a finished task."""
    return [
        *_submit_columns(),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("finished_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("duration", sa.Float),
        *_trail(),
        sa.Column("result", JsonText),
        _payload(),
        one_of("state", FINAL),
    ]


def _live_rules() -> list[sa.CheckConstraint]:
    """Checks for rows inserted by hand, which must never break a claim, a list or a settle."""
    return [
        one_of("state", LIVE),
        sa.CheckConstraint("priority between 1 and 9", name="priority"),
        sa.CheckConstraint("max_attempts >= 1", name="max_attempts"),
        sa.CheckConstraint(f"bucket between 0 and {BUCKETS - 1}", name="bucket"),
        sa.CheckConstraint(f"attempt between 0 and {MOST_ATTEMPTS}", name="attempt"),
        sa.CheckConstraint(f"rescues between 0 and {MOST_ATTEMPTS}", name="rescues"),
        sa.CheckConstraint(f"releases between 0 and {MOST_ATTEMPTS}", name="releases"),
        sa.CheckConstraint(f"interruptions between 0 and {MOST_ATTEMPTS}", name="interruptions"),
        sa.CheckConstraint(f"fence between 0 and {HIGHEST_FENCE}", name="fence"),
        sa.CheckConstraint(f"version between 0 and {HIGHEST_FENCE}", name="version"),
        sa.CheckConstraint("timeout > 0 and timeout < 1e9", name="timeout"),
        sa.CheckConstraint("length(handler) between 1 and 200", name="handler"),
        sa.CheckConstraint("length(queue) between 1 and 200", name="queue"),
        sa.CheckConstraint("length(tenant) between 1 and 200", name="tenant"),
        sa.CheckConstraint("length(hosts) <= 1000", name="hosts"),
        one_of("order_on_failure", get_args(OnFailure)),
        *_on_postgresql(
            sa.CheckConstraint("run_at >= '1970-01-01Z' and run_at < '9999-01-01Z'", name="run_at"),
            sa.CheckConstraint("expires_at >= '1970-01-01Z' and expires_at < '9999-01-01Z'", name="expires_at"),
            sa.CheckConstraint("hosts_until >= '1970-01-01Z' and hosts_until < '9999-01-01Z'", name="hosts_until"),
            sa.CheckConstraint("json_typeof(payload) = 'object'", name="payload"),
        ),
        *_on_sqlite(
            sa.CheckConstraint(
                # IN has two values: with three or more, SQLite writes them to a table for each row that it checks.
                # Adding 0 days changes dates that do not exist (30 February); text that is not a time gives NULL, which
                # a check would accept.
                "coalesce(run_at in (strftime('%Y-%m-%d %H:%M:%f', run_at, '+0 days'), datetime(run_at, '+0 days')), 0)"
                " and run_at >= '1970' and run_at < '9999'",
                name="run_at",
            ),
            sa.CheckConstraint(
                "expires_at is null or coalesce(expires_at in (strftime('%Y-%m-%d %H:%M:%f', expires_at, '+0 days'),"
                " datetime(expires_at, '+0 days')), 0) and expires_at >= '1970' and expires_at < '9999'",
                name="expires_at",
            ),
            sa.CheckConstraint(
                "hosts_until is null or coalesce(hosts_until in (strftime('%Y-%m-%d %H:%M:%f', hosts_until, '+0 days'),"
                " datetime(hosts_until, '+0 days')), 0) and hosts_until >= '1970' and hosts_until < '9999'",
                name="hosts_until",
            ),
            sa.CheckConstraint("json_valid(payload) and json_type(payload) = 'object'", name="payload"),
            # SQLite would accept text in a number column and bytes in a text column. An update evaluates the checks of
            # the columns that it sets: those that a claim sets have a check of their own.
            sa.CheckConstraint(
                "typeof(attempt + fence + version) = 'integer' and typeof(coalesce(max_attempts, 1)) = 'integer'",
                name="claim_types",
            ),
            sa.CheckConstraint(
                "typeof(priority + bucket + rescues + releases + interruptions) = 'integer'"
                " and typeof(coalesce(timeout, 1.0)) = 'real'"
                " and typeof(queue || handler) = 'text' and typeof(queue) <> 'blob' and typeof(handler) <> 'blob'"
                " and typeof(coalesce(tenant, '')) = 'text' and typeof(hosts) = 'text'",
                name="types",
            ),
        ),
    ]


def _header_rules() -> list[sa.CheckConstraint]:
    """Checks for headers: each claim reads them."""
    is_object = "headers is null or json_valid(headers) and json_type(headers) = 'object'"
    return [
        sa.CheckConstraint(f"length(CAST(headers AS TEXT)) <= {HEADERS_LIMIT}", name="headers_length"),
        *_on_postgresql(sa.CheckConstraint("json_typeof(headers) = 'object'", name="headers")),
        *_on_sqlite(sa.CheckConstraint(is_object, name="headers")),
    ]


def one_of(column: str, values: Iterable[str]) -> sa.CheckConstraint:
    """The check that a text column has one of some values.

    SQLite would put the list of an IN into a table, for each row that it checks: more than half the cost of an insert.
    """
    return sa.CheckConstraint(" or ".join(f"{column} = '{value}'" for value in values), name=column)


def _on_postgresql(*checks: sa.CheckConstraint) -> list[sa.CheckConstraint]:
    return [check.ddl_if(dialect="postgresql") for check in checks]


def _on_sqlite(*checks: sa.CheckConstraint) -> list[sa.CheckConstraint]:
    return [check.ddl_if(dialect="sqlite") for check in checks]


def object_checks(*columns: str) -> list[sa.CheckConstraint]:
    """The checks that columns hold JSON objects."""
    checks = []
    for name in columns:
        both = {
            "postgresql": f"json_typeof({name}) = 'object'",
            "sqlite": f"json_valid({name}) and json_type({name}) = 'object'",
        }
        checks += [sa.CheckConstraint(text, name=name).ddl_if(dialect=dialect) for dialect, text in both.items()]
    return checks


def time_checks(*columns: str) -> list[sa.CheckConstraint]:
    """The checks that columns hold times that every client can read, as of task.run_at."""
    checks = []
    for name in columns:
        forms = f"strftime('%Y-%m-%d %H:%M:%f', {name}, '+0 days'), datetime({name}, '+0 days')"
        both = {
            "postgresql": f"{name} >= '1970-01-01Z' and {name} < '9999-01-01Z'",
            "sqlite": f"{name} is null or coalesce({name} in ({forms}), 0) and {name} >= '1970' and {name} < '9999'",
        }
        checks += [sa.CheckConstraint(text, name=name).ddl_if(dialect=dialect) for dialect, text in both.items()]
    return checks
