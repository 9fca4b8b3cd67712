"""The storage that the migrations have to create: indexes, partitions and options of each database."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from runner.db.schema import NO_BIN, Tables, records
from runner.db.schema.partitions import BEYOND, ORDER_SPACE, OTHERS, SUCCEEDED, WIDTH, full_name, range_name
from runner.db.schema.task import is_state, runs_with_order_key, state_literal, waits_with_tenant
from runner.model.task import FINAL, State

LIVE = {
    # Every claim writes a new row version: leave room for it on the page, and vacuum early and often.
    "fillfactor": 70,
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.05,
    "autovacuum_vacuum_cost_delay": 0,
}
"""PostgreSQL's storage parameters of the live table."""


def storage_metadata(prefix: str = "", schema: str | None = None) -> sa.MetaData:
    """Return the tables of an installation with their storage.

    Args:
        schema: PostgreSQL schema of the tables; None for the search path.
    """
    tables = Tables(prefix, schema)
    _set_parameters(tables.task, LIVE)
    _execute_after_create(tables.task, *_ordered_submit_marks(tables.task))
    _set_parameters(tables.unique, {"fillfactor": 90})
    tables.history.dialect_options["postgresql"]["partition_by"] = "LIST (state)"
    counted = (tables.task, tables.dependency, tables.workflow, tables.runner, tables.audit, tables.signal)
    for table in counted:
        table.dialect_options["sqlite"]["autoincrement"] = True
    _execute_after_create(tables.history, *_partitions(tables.history))
    _index_live(tables.task)
    _index_past(tables.history, tables.attempt)
    _index_open(tables.dependency)
    _index_rest(tables.unique, tables.audit, tables.workflow)
    _index_schedules(tables.schedule, tables.tick)
    _index_signals(tables.signal)
    _index_counts(tables.minute)
    _index(tables.ended_runner, "at", tables.ended_runner.c.ended_at)
    return tables.metadata


def _set_parameters(table: sa.Table, parameters: Mapping[str, float]) -> None:
    values = ", ".join(f"{name}={value}" for name, value in parameters.items())
    _execute_after_create(table, f"ALTER TABLE %(fullname)s SET ({values})")


def _execute_after_create(table: sa.Table, *statements: str) -> None:
    for statement in statements:
        ddl = sa.DDL(statement)  # type: ignore[no-untyped-call]
        sa.event.listen(table, "after_create", ddl.execute_if(dialect="postgresql"))


def _state_list(*states: State) -> str:
    """Return states as a SQL list."""
    return ", ".join(repr(state.value) for state in states)


def _partitions(history: sa.Table) -> list[str]:
    """Return the statements that create the partitions of a new history."""
    whole, succeeded, others, beyond, first = (
        full_name(history, part) for part in ("", SUCCEEDED, OTHERS, BEYOND, range_name(1))
    )
    other_states = _state_list(*(state for state in FINAL if state is not State.SUCCEEDED))
    values = f"FOR VALUES IN ({_state_list(State.SUCCEEDED)}) PARTITION BY RANGE (id)"
    return [
        f"CREATE TABLE {others} PARTITION OF {whole} (PRIMARY KEY (id)) FOR VALUES IN ({other_states})",
        f"CREATE TABLE {succeeded} PARTITION OF {whole} (PRIMARY KEY (id)) {values}",
        f"CREATE TABLE {beyond} PARTITION OF {succeeded} DEFAULT",
        f"CREATE TABLE {first} PARTITION OF {succeeded} FOR VALUES FROM (1) TO ({1 + WIDTH})",
    ]


def _ordered_submit_marks(task: sa.Table) -> list[str]:
    """Return the statements that mark the commits of tasks with an order key."""
    function, table = full_name(task, "in_order_commit"), full_name(task)
    lock = f"PERFORM pg_advisory_xact_lock_shared({ORDER_SPACE}, CAST(TG_RELID AS integer))"
    body = f"RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {lock}; RETURN NULL; END $$"
    rows = "FOR EACH ROW WHEN (NEW.order_key IS NOT NULL)"
    trigger = f"CREATE CONSTRAINT TRIGGER in_order_commit AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED {rows}"
    return [f"CREATE OR REPLACE FUNCTION {function}() {body}", f"{trigger} EXECUTE FUNCTION {function}()"]


def _index(
    table: sa.Table, name: str, *columns: Any, where: sa.ColumnElement[bool] | None = None, unique: bool = False
) -> None:
    sa.Index(f"{table.name}_{name}", *columns, unique=unique, postgresql_where=where, sqlite_where=where)


def _index_live(table: sa.Table) -> None:
    task = table.c
    waiting, running = is_state(task.state, State.WAITING), is_state(task.state, State.RUNNING)
    # A lane is a (queue, handler, priority, hosts, retried). This index finds the lanes and reads each in order: claims
    # never read tasks of other handlers or hosts, of paused queues or of the future.
    lane = (task.queue, task.handler, task.priority, task.hosts, task.retried)
    _index(table, "ready", *lane, task.run_at, task.id, where=waiting)
    # The lanes again, tenant by tenant: only tasks with a tenant have an entry, so others do not pay for it.
    _index(table, "tenant", *lane, task.tenant, task.run_at, task.id, where=waits_with_tenant(task))
    # The few rescued tasks, which run apart from others.
    _index(table, "rescued", task.run_at, task.id, where=waiting & (task.rescues > sa.literal_column("0")))
    _index(table, "running", task.runner_id, task.claimed_at, where=running)
    _index(table, "blocked", task.id, where=is_state(task.state, State.BLOCKED))
    _index(table, "expires", task.expires_at, where=task.expires_at.is_not(None))
    _index(table, "hosts", task.hosts_until, where=task.hosts != sa.literal_column("''"))
    ordered = task.order_key.is_not(None)
    _index(table, "order", task.order_key, task.id, where=ordered)
    _index(table, "in_order", task.order_key, where=runs_with_order_key(task), unique=True)
    _index(table, "key", task.key, task.handler, task.id, where=task.key.is_not(None))
    _index(table, "members", task.workflow, task.id, where=task.workflow.is_not(None))


def _index_open(dependency: sa.Table) -> None:
    column = dependency.c
    is_open = column.satisfied_at.is_(None)
    # The second condition holds for every row. A query that does not repeat it cannot use this index, which a planner
    # would wrongly prefer for a single dependency because it is small.
    _index(dependency, "open", column.id, where=is_open & (column.id > sa.literal_column("0")))
    _index(dependency, "key", column.parent_key, column.parent_handler, where=is_open & column.parent_key.is_not(None))


def _index_past(history: sa.Table, attempt: sa.Table) -> None:
    task, failure = history.c, attempt.c
    # Most rows are successes, which need lookups by id and by time only. The rare other states have their own indexes.
    _index(history, "finished", task.finished_at, task.id)
    rare = task.state != state_literal(State.SUCCEEDED)
    _index(history, "failed", task.state, task.queue, task.id, where=rare)
    # By id and by finish time, so that no page of a list or bulk operation has to sort.
    _index(history, "rare", task.state, task.id, where=rare)
    _index(history, "ended", task.state, task.finished_at, task.id, where=rare)
    _index(
        history,
        "key",
        task.key,
        task.handler,
        task.id,
        where=task.key.is_not(None),
    )
    _index(history, "members", task.workflow, task.id, where=task.workflow.is_not(None))
    _index(attempt, "fingerprint", failure.fingerprint, failure.ended_at)
    _index(attempt, "ended", failure.ended_at)
    _index(attempt, "breaks", failure.handler, failure.ended_at, where=failure.breaks.is_not(None))


def _index_rest(unique: sa.Table, audit: sa.Table, workflow: sa.Table) -> None:
    expires_at, change_group = unique.c.expires_at, audit.c.change_group
    _index(unique, "expires", expires_at, where=expires_at.is_not(None))
    _index(audit, "change_group", change_group, audit.c.id, where=change_group.is_not(None))
    _index(workflow, "name", workflow.c.name, workflow.c.id, where=workflow.c.name.is_not(None))


def _index_counts(minute: sa.Table) -> None:
    # Most reports read no histograms, which have many rows.
    _index(minute, "counts", minute.c.minute, where=minute.c.bin_ms == sa.literal_column(str(NO_BIN)))


def _index_signals(signal: sa.Table) -> None:
    row = signal.c
    _index(signal, "task", row.task_id, row.name, row.id)
    # Runners look for new ones once a second.
    _index(signal, "new", row.task_id, where=row.noticed_at.is_(None))


def _index_schedules(schedule: sa.Table, tick: sa.Table) -> None:
    row = schedule.c
    # A runner looks for due schedules once a second; these answer with one row each, however many there are.
    _index(schedule, "next", row.next_at, where=row.next_at.is_not(None))
    _index(schedule, "unplanned", row.id, where=records.is_unplanned(row))
    _index(schedule, "requested", row.run_requested_at, where=row.run_requested_at.is_not(None))
    _index(tick, "at", tick.c.at)
    _index(tick, "task", tick.c.task_id, where=tick.c.task_id.is_not(None))
