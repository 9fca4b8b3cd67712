"""Tables, indexes and checks, as data. See the migrations for how a database gets there."""

from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.columns import BigId, Instant, JsonText, Name, db_now
from runner.task import FINAL, LIVE, Priority, State

NAMING = {
    "ix": "%(table_name)s_%(column_0_N_name)s",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s",
    "pk": "%(table_name)s_pkey",
}

STORAGE = {
    "postgresql_with": {
        # Every claim writes a new version of the row: leave room for it on the page, and clean up early and often.
        "fillfactor": 70,
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_vacuum_insert_scale_factor": 0.05,
        "autovacuum_analyze_scale_factor": 0.05,
        "autovacuum_vacuum_cost_delay": 0,
    },
    "sqlite_autoincrement": True,
}


class Tables:
    """The tables of one installation.

    Args:
        prefix: goes before every table's name.
        schema: the PostgreSQL schema that they stand in; None stands for the search path.
    """

    def __init__(self, prefix: str = "", schema: str | None = None) -> None:
        self.prefix = prefix
        self.metadata = sa.MetaData(schema=schema, naming_convention=NAMING)
        self.task = self._table("task", *_identity(), *_plan(), *_live(), *_trail(), *_live_rules(), **STORAGE)
        self.history = self._table("task_history", *_identity(False), *_plan(), *_ended(), *_trail())
        self.attempt = self._table("task_attempt", *_attempt())
        self.unique = self._table("task_unique", *_unique())
        self.dependency = self._table("task_dependency", *_dependency(), sqlite_autoincrement=True)
        self.queue = self._table("task_queue", *_queue())
        self.handler = self._table("task_handler", *_handler())
        self.runner = self._table("task_runner", *_runner(), sqlite_autoincrement=True)
        self.schedule = self._table("task_schedule", *_schedule())
        self.minute = self._table("task_minute", *_minute())
        self.audit = self._table("task_audit", *_audit(), sqlite_autoincrement=True)
        self._index_live(self.task)
        self._index_past(self.history, self.attempt)

    def _table(self, name: str, *items: Any, **options: Any) -> sa.Table:
        return sa.Table(f"{self.prefix}{name}", self.metadata, *items, **options)

    def _index(self, table: sa.Table, name: str, *columns: Any, where: sa.ColumnElement[bool] | None = None) -> None:
        sa.Index(f"{table.name}_{name}", *columns, postgresql_where=where, sqlite_where=where)

    def _index_live(self, table: sa.Table) -> None:
        task = table.c
        waiting, running = is_state(task.state, State.WAITING), is_state(task.state, State.RUNNING)
        # A lane is a (queue, handler, priority). One index finds the lanes that exist and walks each in order of need,
        # so that tasks of other handlers, of paused queues and of the future are never looked at.
        self._index(table, "ready", task.queue, task.handler, task.priority, task.run_at, task.id, where=waiting)
        # The few tasks that lived through a lost runner, which are tried apart from others.
        self._index(table, "rescued", task.run_at, task.id, where=waiting & (task.rescues > sa.literal_column("0")))
        self._index(table, "running", task.runner_id, where=running)
        self._index(table, "blocked", task.id, where=is_state(task.state, State.BLOCKED))
        self._index(table, "key", task.key, task.handler, where=task.key.is_not(None))

    def _index_past(self, history: sa.Table, attempt: sa.Table) -> None:
        past, tried = history.c, attempt.c
        # Successes are the bulk, and are found by id and by time; all else is rare and has an index of its own.
        self._index(history, "finished", past.finished_at, past.id)
        rare = past.state != state_literal(State.SUCCEEDED)
        self._index(history, "failed", past.state, past.queue, past.id, where=rare)
        self._index(history, "key", past.key, past.handler, where=past.key.is_not(None))
        self._index(attempt, "fingerprint", tried.fingerprint, tried.ended_at)
        self._index(attempt, "ended", tried.ended_at)


@lru_cache
def tables(prefix: str = "", schema: str | None = None) -> Tables:
    """The tables for a prefix and a schema; the same object for the same arguments, so that statements can be kept."""
    return Tables(prefix, schema)


def state_literal(state: State) -> sa.ColumnElement[str]:
    """A state as a literal: as a parameter it would hide the partial indexes from a generic plan."""
    return sa.literal_column(f"'{state.value}'", sa.Text)


def is_state(column: sa.ColumnElement[str], *states: State) -> sa.ColumnElement[bool]:
    """The condition that a state column is one of these, spelled so that partial indexes match."""
    if len(states) == 1:
        return column == state_literal(states[0])
    return column.in_([state_literal(state) for state in states])


def _identity(generated: bool = True) -> list[sa.Column[Any]]:
    by_database = [sa.Identity()] if generated else []
    return [sa.Column("id", BigId, *by_database, primary_key=True, autoincrement=generated)]


def _plan() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """What was asked for: the same for live and finished tasks."""
    return [
        sa.Column("queue", Name, nullable=False, server_default="default"),
        sa.Column("handler", Name, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("payload", JsonText, nullable=False, server_default="{}"),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default=str(Priority.DEFAULT)),
        sa.Column("run_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("max_attempts", sa.Integer),
        sa.Column("retry", sa.Text),
        sa.Column("timeout", sa.Float),
        sa.Column("bucket", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("route_key", sa.Text),
        sa.Column("unique_key", sa.Text),
        sa.Column("host_rule", sa.Text),
        sa.Column("tags", JsonText),
        sa.Column("trace", sa.Text),
        sa.Column("submitted_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("submitted_by", sa.Text),
    ]


def _trail() -> list[sa.Column[Any]]:
    """What has happened to it so far."""
    return [
        sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("releases", sa.Integer, nullable=False, server_default="0"),
        sa.Column("rescues", sa.Integer, nullable=False, server_default="0"),
        sa.Column("runner_id", sa.BigInteger),
        sa.Column("host", sa.Text),
        sa.Column("claimed_at", Instant),
        sa.Column("checkpoint", JsonText),
        sa.Column("error", sa.Text),
    ]


def _live() -> list[sa.Column[Any]]:
    return [
        sa.Column("state", sa.Text, nullable=False, server_default=State.WAITING.value),
        sa.Column("blocked_by", sa.Integer, nullable=False, server_default="0"),
        sa.Column("deadline_at", Instant),
        sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("progress", sa.Float),
    ]


def _ended() -> list[sa.Column[Any] | sa.CheckConstraint]:
    return [
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("finished_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("duration", sa.Float),
        sa.Column("result", JsonText),
        _one_of("state", FINAL),
    ]


def _live_rules() -> list[sa.CheckConstraint]:
    """What a row inserted by hand must hold to, so that it can never break a claim, a list or a settle."""
    return [
        _one_of("state", LIVE),
        sa.CheckConstraint("priority between 1 and 9", name="priority"),
        sa.CheckConstraint("max_attempts >= 1", name="max_attempts"),
        sa.CheckConstraint("attempt >= 0", name="attempt"),
        sa.CheckConstraint("timeout > 0 and timeout < 1e9", name="timeout"),
        sa.CheckConstraint("length(handler) between 1 and 200", name="handler"),
        sa.CheckConstraint("length(queue) between 1 and 200", name="queue"),
        *_on_postgresql(
            sa.CheckConstraint("run_at >= '1970-01-01Z' and run_at < '9999-01-01Z'", name="run_at"),
            sa.CheckConstraint("json_typeof(payload) = 'object'", name="payload"),
        ),
        *_on_sqlite(
            sa.CheckConstraint(
                "run_at in (strftime('%Y-%m-%d %H:%M:%f', run_at), datetime(run_at)) and run_at < '9999'", name="run_at"
            ),
            sa.CheckConstraint("json_valid(payload) and json_type(payload) = 'object'", name="payload"),
            sa.CheckConstraint("typeof(priority) = 'integer'", name="priority_type"),
        ),
    ]


def _one_of(column: str, states: tuple[State, ...]) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} in ({', '.join(repr(state.value) for state in states)})", name=column)


def _on_postgresql(*checks: sa.CheckConstraint) -> list[sa.CheckConstraint]:
    return [check.ddl_if(dialect="postgresql") for check in checks]


def _on_sqlite(*checks: sa.CheckConstraint) -> list[sa.CheckConstraint]:
    return [check.ddl_if(dialect="sqlite") for check in checks]


def _attempt() -> list[sa.Column[Any]]:
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


def _unique() -> list[sa.Column[Any]]:
    return [
        sa.Column("handler", Name, primary_key=True),
        sa.Column("unique_key", sa.Text, primary_key=True),
        sa.Column("task_id", sa.BigInteger, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("expires_at", Instant),
    ]


def _dependency() -> list[sa.Column[Any] | sa.Index]:
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("task_id", sa.BigInteger, nullable=False, index=True),
        sa.Column("parent_id", sa.BigInteger, index=True),
        sa.Column("parent_handler", Name),
        sa.Column("parent_key", sa.Text),
        sa.Column("on_failure", sa.Text, nullable=False),
        sa.Column("satisfied_at", Instant),
    ]


def _queue() -> list[sa.Column[Any]]:
    return [sa.Column("name", Name, primary_key=True), *_pause(), sa.Column("max_running", sa.Integer)]


def _handler() -> list[sa.Column[Any]]:
    return [
        sa.Column("name", Name, primary_key=True),
        sa.Column("queue", Name),
        *_pause(),
        sa.Column("max_running", sa.Integer),
        sa.Column("breaker", sa.Text),
        sa.Column("breaker_until", Instant),
        sa.Column("last_seen_at", Instant, nullable=False, server_default=db_now()),
    ]


def _pause() -> list[sa.Column[Any]]:
    return [
        sa.Column("paused_at", Instant),
        sa.Column("paused_until", Instant),
        sa.Column("paused_by", sa.Text),
        sa.Column("paused_why", sa.Text),
    ]


def _runner() -> list[sa.Column[Any]]:
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("beat_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("lease_until", Instant, nullable=False),
        sa.Column("handlers", JsonText, nullable=False, server_default="[]"),
        sa.Column("capacity", sa.Integer, nullable=False, server_default="0"),
        sa.Column("running", sa.Integer, nullable=False, server_default="0"),
        sa.Column("wish", sa.Text),
    ]


def _schedule() -> list[sa.Column[Any]]:
    return [
        sa.Column("name", Name, primary_key=True),
        sa.Column("handler", Name, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("payload", JsonText, nullable=False, server_default="{}"),
        sa.Column("next_tick", Instant),
        sa.Column("last_tick", Instant),
        sa.Column("misfire", sa.Text),
        sa.Column("overlap", sa.Text),
        *_pause(),
    ]


def _minute() -> list[sa.Column[Any]]:
    return [
        sa.Column("minute", Instant, primary_key=True),
        sa.Column("queue", Name, primary_key=True),
        sa.Column("handler", Name, primary_key=True),
        # A runner writes rows of its own and sums are taken when reading: no two writers ever wait for each other.
        sa.Column("runner_id", BigId, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Integer, nullable=False, server_default="0") for name in MINUTE_COUNTS),
        sa.Column("durations", JsonText, nullable=False, server_default="[]"),
    ]


MINUTE_COUNTS = ("succeeded", "first_try", "second_try", "retried", "died", "cancelled", "rescued")


def _audit() -> list[sa.Column[Any]]:
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
