"""The partitions of the history on PostgreSQL, as data: successes by id range, other final states in one partition.

    task_history            LIST (state)
    ├── task_history_others     dead and cancelled, which have a longer retention
    └── task_history_succeeded  RANGE (id)
        ├── task_history_from_1, task_history_from_5000001, ...
        └── task_history_beyond     DEFAULT: ids without a range, so that a settle never fails

Ids follow the order of submission, so a range of ids is a range of time, and a lookup by id reads one range.
A primary key of the whole table would have to include the state. Each half has its own, on the id alone.
"""

from typing import Any

import sqlalchemy as sa

WIDTH = 5_000_000
"""Width of the first ranges, in ids."""

OTHERS, SUCCEEDED, BEYOND = "others", "succeeded", "beyond"
"""Suffixes of partition names."""


def range_name(first: int) -> str:
    """Return the suffix of the range that starts at an id."""
    return f"from_{first}"


def full_name(table: sa.Table, part: str = "") -> str:
    """Return the name of a table, or of one of its partitions, as a statement needs it."""
    from sqlalchemy.dialects import postgresql  # already loaded if there are partitions

    preparer = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    name = f"{table.name}_{part}" if part else table.name
    return str(preparer.format_table(sa.table(name, schema=table.schema)))


def name_literal(table: sa.Table) -> str:
    """Return the name of a table as a SQL literal, as a cast to regclass needs it."""
    return "'" + full_name(table).replace("'", "''") + "'"


ORDER_SPACE = 0x7461736B
"""The first key of the advisory lock of order keys ("task"); the second is the oid of the live table.

A trigger marks the commits of tasks with an order key, from any client, by a shared lock. A transaction that lets tasks
fail waits for these commits, and so sees every task that comes after a failed one. The lock begins with the commit, so
that an application with a long transaction delays no runner.
"""


SUBMITS, SETTLES = 0x7461736C, 0x7461736D
"""The first keys of the advisory locks of submits with parents and of settles; the second is the oid of the table.

A success to which nothing refers leaves no row at a retention of zero. A submit may find a parent alive that ends
before the submit commits. Its dependent would then wait for a task without a row. Therefore such a submit holds a lock,
and a settle or a pruning that sees the lock keeps the rows. No settle waits for an application.
"""

ROW_TIMEOUT = "100ms"
"""Wait of a settle for a locked row, also with the lock of settles; less than the deadlock timeout of servers, 1 s."""


def mark_submit(table: sa.Table) -> sa.ClauseElement:
    """Mark the transaction as a submit with parents until its end, and wait for the settles that may not see the mark.

    Statements that begin later see the end of each parent, or its settle sees the mark and leaves a row. The wait takes
    the milliseconds of a settle, and no settle waits for the application. The statement returns true if its snapshot
    may be older than the mark, and the login may lock tasks.
    """
    oid = _oid(table)
    minute = "floor(extract(epoch FROM clock_timestamp()) / 60)::integer"
    locks = f"has_any_column_privilege({name_literal(table)}, 'UPDATE')"
    columns = (
        f"current_setting('transaction_isolation') <> 'read committed' AND {locks}",
        *(f"pg_advisory_xact_lock_shared({keys})" for keys in (f"{SUBMITS}, {oid}", f"{oid}, {minute}")),
        *(f"pg_advisory_{verb}({SETTLES}, {oid})" for verb in ("lock", "unlock")),
    )
    return sa.select(*(sa.literal_column(column, sa.Text) for column in columns))


def submit_watch(task: sa.Table, dependency: sa.Table) -> sa.CTE:
    """Find out whether the statement may miss a submit with parents; one row.

    The snapshot of a statement is older than its locks. A submit that ended between the two has taken ids for its
    dependencies since the last settle that saw no open submit, and the sequence of these ids has no snapshot.

    A statement that then waits for a row for ROW_TIMEOUT fails.

    Args:
        task: the live table; `last_dependency` is a parameter, see SubmitWatch.

    Returns:
        `alone`: true if the snapshot shows every submit with parents that has read tasks, and later ones wait until the
        end of the transaction; `last_dependency` for the next statement.
    """
    oid, sequence = _oid(task), f"pg_get_serial_sequence({name_literal(dependency)}, 'id')"
    keys = f"{SUBMITS}, {oid}"
    last = f"CASE WHEN has_sequence_privilege({sequence}, 'SELECT')"
    last += f" THEN coalesce(pg_sequence_last_value(CAST({sequence} AS regclass)), 0) END"
    columns: dict[str, tuple[str, Any]] = {  # in the order of their evaluation
        "before": (last, sa.BigInteger),
        "lock": (f"CAST(pg_advisory_xact_lock_shared({SETTLES}, {oid}) AS text)", sa.Text),
        # The holder of a row may be waiting for this lock, to submit.
        "patience": (f"set_config('lock_timeout', '{ROW_TIMEOUT}', true)", sa.Text),
        "free": (f"CASE WHEN pg_try_advisory_lock({keys}) THEN pg_advisory_unlock({keys}) ELSE false END", sa.Boolean),
        "after": (last, sa.BigInteger),
    }
    marks = sa.select(*(sa.literal_column(sql, kind).label(name) for name, (sql, kind) in columns.items()))
    mark = marks.cte("mark").prefix_with("MATERIALIZED").c
    alone = (mark.free & (mark.after == sa.bindparam("last_dependency", type_=sa.BigInteger))).label("alone")
    return sa.select(alone, sa.case((mark.free, mark.before)).label("last_dependency")).cte("watch")


def _oid(table: sa.Table) -> str:
    return f"CAST(CAST({name_literal(table)} AS regclass) AS oid)::integer"


OLDEST_SUBMIT = """
SELECT to_timestamp(60 * min(CAST(objid AS bigint))) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = CAST(CAST(:name AS regclass) AS oid)
"""
"""The minute in which the oldest open submit with parents began."""
