"""Tables, indexes and checks, as data. See the migrations for how a database gets there."""

from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.schema import partitions, records, registries
from runner.schema import task as tasks
from runner.schema.records import GONE, MINUTE_COUNTS, SETTLED_COUNTS
from runner.schema.states import is_state, state_literal
from runner.task import State

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
        self.task = self._table("task", *tasks.identity(), *tasks.live(), **STORAGE)
        self.history = self._table(
            "task_history", *tasks.kept_identity(), *tasks.ended(), postgresql_partition_by=partitions.PARTITION_BY
        )
        self.attempt = self._table("task_attempt", *records.attempt())
        self.unique = self._table("task_unique", *records.unique(), postgresql_with={"fillfactor": 90})
        self.dependency = self._table("task_dependency", *records.dependency(), sqlite_autoincrement=True)
        self.queue = self._table("task_queue", *registries.queue())
        self.handler = self._table("task_handler", *registries.handler())
        self.runner = self._table("task_runner", *registries.runner(), sqlite_autoincrement=True)
        self.schedule = self._table("task_schedule", *registries.schedule())
        self.minute = self._table("task_minute", *records.minute())
        self.audit = self._table("task_audit", *records.audit(), sqlite_autoincrement=True)
        self._index_live(self.task)
        self._index_past(self.history, self.attempt)
        expires_at = self.unique.c.expires_at
        self._index(self.unique, "expires", expires_at, where=expires_at.is_not(None))
        self._index_open(self.dependency)
        together = self.audit.c.batch
        self._index(self.audit, "batch", together, self.audit.c.id, where=together.is_not(None))
        partitions.create_with(self.history)

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
        self._index(table, "key", task.key, task.handler, task.id, where=task.key.is_not(None))

    def _index_open(self, dependency: sa.Table) -> None:
        edge = dependency.c
        is_open = edge.satisfied_at.is_(None)
        # Its second condition is true of every row. Whoever does not repeat it is kept from using this index, which a
        # planner takes for small, to look for single edges.
        self._index(dependency, "open", edge.id, where=is_open & (edge.id > sa.literal_column("0")))
        self._index(
            dependency, "key", edge.parent_key, edge.parent_handler, where=is_open & edge.parent_key.is_not(None)
        )

    def _index_past(self, history: sa.Table, attempt: sa.Table) -> None:
        past, tried = history.c, attempt.c
        # Successes are the bulk, and are found by id and by time; all else is rare and has an index of its own.
        self._index(history, "finished", past.finished_at, past.id)
        rare = past.state != state_literal(State.SUCCEEDED)
        self._index(history, "failed", past.state, past.queue, past.id, where=rare)
        # By id and by end, so that no list and no bulk sorts them anew for each page.
        self._index(history, "rare", past.state, past.id, where=rare)
        self._index(history, "ended", past.state, past.finished_at, past.id, where=rare)
        self._index(history, "key", past.key, past.handler, past.id, where=past.key.is_not(None))
        self._index(attempt, "fingerprint", tried.fingerprint, tried.ended_at)
        self._index(attempt, "ended", tried.ended_at)


@lru_cache
def tables(prefix: str = "", schema: str | None = None) -> Tables:
    """The tables for a prefix and a schema; the same object for the same arguments, so that statements can be kept."""
    return Tables(prefix, schema)


__all__ = ["GONE", "MINUTE_COUNTS", "SETTLED_COUNTS", "Tables", "is_state", "state_literal", "tables"]
