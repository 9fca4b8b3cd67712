"""How the tables are stored: indexes, partitions and what each database is told besides, as data.

No statement needs it, and SQLAlchemy loads all that it knows of a database whose options are named: so it stands apart,
for whoever creates tables or compares them with those that are there.
"""

from typing import Any

import sqlalchemy as sa

from runner.schema import Tables, partitions
from runner.schema.states import is_state, state_literal
from runner.task import State

LIVE = {
    # Every claim writes a new version of the row: leave room for it on the page, and clean up early and often.
    "fillfactor": 70,
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.05,
    "autovacuum_vacuum_cost_delay": 0,
}
"""PostgreSQL's parameters for the live tasks."""


def stored(prefix: str = "", schema: str | None = None) -> sa.MetaData:
    """The tables of an installation as they are stored.

    Args:
        prefix: goes before every table's name.
        schema: the PostgreSQL schema that they stand in; None stands for the search path.
    """
    tables = Tables(prefix, schema)
    tables.task.dialect_options["postgresql"]["with"] = LIVE
    tables.unique.dialect_options["postgresql"]["with"] = {"fillfactor": 90}
    tables.history.dialect_options["postgresql"]["partition_by"] = partitions.PARTITION_BY
    for numbered in (tables.task, tables.dependency, tables.runner, tables.audit):
        numbered.dialect_options["sqlite"]["autoincrement"] = True
    partitions.create_with(tables.history)
    _index_live(tables.task)
    _index_past(tables.history, tables.attempt)
    _index_open(tables.dependency)
    _index_rest(tables.unique, tables.audit)
    return tables.metadata


def _index(table: sa.Table, name: str, *columns: Any, where: sa.ColumnElement[bool] | None = None) -> None:
    sa.Index(f"{table.name}_{name}", *columns, postgresql_where=where, sqlite_where=where)


def _index_live(table: sa.Table) -> None:
    task = table.c
    waiting, running = is_state(task.state, State.WAITING), is_state(task.state, State.RUNNING)
    # A lane is a (queue, handler, priority). One index finds the lanes that exist and walks each in order of need,
    # so that tasks of other handlers, of paused queues and of the future are never looked at.
    _index(table, "ready", task.queue, task.handler, task.priority, task.run_at, task.id, where=waiting)
    # The few tasks that lived through a lost runner, which are tried apart from others.
    _index(table, "rescued", task.run_at, task.id, where=waiting & (task.rescues > sa.literal_column("0")))
    _index(table, "running", task.runner_id, where=running)
    _index(table, "blocked", task.id, where=is_state(task.state, State.BLOCKED))
    _index(table, "key", task.key, task.handler, task.id, where=task.key.is_not(None))


def _index_open(dependency: sa.Table) -> None:
    edge = dependency.c
    is_open = edge.satisfied_at.is_(None)
    # Its second condition is true of every row. Whoever does not repeat it is kept from using this index, which a
    # planner takes for small, to look for single edges.
    _index(dependency, "open", edge.id, where=is_open & (edge.id > sa.literal_column("0")))
    _index(dependency, "key", edge.parent_key, edge.parent_handler, where=is_open & edge.parent_key.is_not(None))


def _index_past(history: sa.Table, attempt: sa.Table) -> None:
    past, tried = history.c, attempt.c
    # Successes are the bulk, and are found by id and by time; all else is rare and has an index of its own.
    _index(history, "finished", past.finished_at, past.id)
    rare = past.state != state_literal(State.SUCCEEDED)
    _index(history, "failed", past.state, past.queue, past.id, where=rare)
    # By id and by end, so that no list and no bulk sorts them anew for each page.
    _index(history, "rare", past.state, past.id, where=rare)
    _index(history, "ended", past.state, past.finished_at, past.id, where=rare)
    _index(history, "key", past.key, past.handler, past.id, where=past.key.is_not(None))
    _index(attempt, "fingerprint", tried.fingerprint, tried.ended_at)
    _index(attempt, "ended", tried.ended_at)


def _index_rest(unique: sa.Table, audit: sa.Table) -> None:
    expires_at, together = unique.c.expires_at, audit.c.batch
    _index(unique, "expires", expires_at, where=expires_at.is_not(None))
    _index(audit, "batch", together, audit.c.id, where=together.is_not(None))
