"""The partitions of the history on PostgreSQL, as data: successes by id range, other final states in one partition.

    task_history            LIST (state)
    ├── task_history_others     dead and cancelled, which have a longer retention
    └── task_history_succeeded  RANGE (id)
        ├── task_history_from_1, task_history_from_5000001, ...
        └── task_history_beyond     DEFAULT: ids without a range, so that a settle never fails

Ids follow the order of submission, so a range of ids is a range of time, and a lookup by id reads one range.
A primary key of the whole table would have to include the state. Each half has its own, on the id alone.
"""

import sqlalchemy as sa

from runner.db.schema.task import state_list
from runner.model.task import FINAL, State

WIDTH = 5_000_000
"""Width of the first ranges, in ids."""

OTHERS, SUCCEEDED, BEYOND = "others", "succeeded", "beyond"
"""Suffixes of partition names."""

PARTITION_BY = "LIST (state)"


def range_name(first: int) -> str:
    """Return the suffix of the range that starts at an id."""
    return f"from_{first}"


def full_name(table: sa.Table, part: str = "") -> str:
    """Return the name of a table, or of one of its partitions, as a statement needs it."""
    from sqlalchemy.dialects import postgresql  # already loaded if there are partitions

    preparer = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    name = f"{table.name}_{part}" if part else table.name
    return str(preparer.format_table(sa.table(name, schema=table.schema)))


def creation(history: sa.Table) -> list[str]:
    """Return the statements that create the partitions of a new history."""
    whole, succeeded, others, beyond, first = (
        full_name(history, part) for part in ("", SUCCEEDED, OTHERS, BEYOND, range_name(1))
    )
    other_states = state_list(*(state for state in FINAL if state is not State.SUCCEEDED))
    values = f"FOR VALUES IN ({state_list(State.SUCCEEDED)}) PARTITION BY RANGE (id)"
    return [
        f"CREATE TABLE {others} PARTITION OF {whole} (PRIMARY KEY (id)) FOR VALUES IN ({other_states})",
        f"CREATE TABLE {succeeded} PARTITION OF {whole} (PRIMARY KEY (id)) {values}",
        f"CREATE TABLE {beyond} PARTITION OF {succeeded} DEFAULT",
        f"CREATE TABLE {first} PARTITION OF {succeeded} FOR VALUES FROM (1) TO ({1 + WIDTH})",
    ]


def create_with(history: sa.Table) -> None:
    """Create the partitions whenever the history is created."""
    for statement in creation(history):
        ddl = sa.DDL(statement)  # type: ignore[no-untyped-call]
        sa.event.listen(history, "after_create", ddl.execute_if(dialect="postgresql"))


ORDER_SPACE = 0x7461736B
"""The first key of the advisory lock of order keys ("task"); the second is the oid of the live table."""


def ordered_submit_marks(task: sa.Table) -> list[str]:
    """Return the statements that mark the commits of tasks with an order key, from any client, by a shared lock.

    A transaction that lets tasks fail waits for these commits, and so sees every task that comes after a failed one.
    The lock begins with the commit, so that an application with a long transaction delays no runner.
    """
    function, table = full_name(task, "in_order_commit"), full_name(task)
    lock = f"PERFORM pg_advisory_xact_lock_shared({ORDER_SPACE}, CAST(TG_RELID AS integer))"
    body = f"RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {lock}; RETURN NULL; END $$"
    rows = "FOR EACH ROW WHEN (NEW.order_key IS NOT NULL)"
    trigger = f"CREATE CONSTRAINT TRIGGER in_order_commit AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED {rows}"
    return [f"CREATE OR REPLACE FUNCTION {function}() {body}", f"{trigger} EXECUTE FUNCTION {function}()"]


def mark_ordered_submits(task: sa.Table) -> None:
    """Create the marks whenever the live table is created."""
    for statement in ordered_submit_marks(task):
        ddl = sa.DDL(statement)  # type: ignore[no-untyped-call]
        sa.event.listen(task, "after_create", ddl.execute_if(dialect="postgresql"))
