"""The partitions of the history on PostgreSQL, as data: successes by ranges of ids, all that people keep longer apart.

    task_history            LIST (state)
    ├── task_history_others     dead and cancelled
    └── task_history_succeeded  RANGE (id)
        ├── task_history_from_1, task_history_from_5000001, ...
        └── task_history_beyond     DEFAULT: what no range covers, so that a settle never fails

Ids are handed out in the order of submission: a range of ids is a range of time, and an id is looked up in one range.
A key of the whole would have to hold the state too. Each half has a key of its own, which holds nothing but the id.
"""

import sqlalchemy as sa

from runner.schema.states import state_list
from runner.task import FINAL, State

WIDTH = 5_000_000
"""Ids of the first range, and of others while there are few."""

OTHERS, SUCCEEDED, BEYOND = "others", "succeeded", "beyond"
"""What is put behind the name of the history."""

PARTITION_BY = "LIST (state)"


def range_name(first: int) -> str:
    """What is put behind the name of the history, for the range that begins with an id."""
    return f"from_{first}"


def full_name(table: sa.Table, part: str = "") -> str:
    """The name of a table, or of one of its partitions, as it is written in a statement."""
    from sqlalchemy.dialects import postgresql  # loaded already, where there are partitions

    preparer = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    name = f"{table.name}_{part}" if part else table.name
    return str(preparer.format_table(sa.table(name, schema=table.schema)))


def creation(history: sa.Table) -> list[str]:
    """The statements that give a new history its partitions."""
    whole, succeeded, others, beyond, first = (
        full_name(history, part) for part in ("", SUCCEEDED, OTHERS, BEYOND, range_name(1))
    )
    kept_long = state_list(*(state for state in FINAL if state is not State.SUCCEEDED))
    values = f"FOR VALUES IN ({state_list(State.SUCCEEDED)}) PARTITION BY RANGE (id)"
    return [
        f"CREATE TABLE {others} PARTITION OF {whole} (PRIMARY KEY (id)) FOR VALUES IN ({kept_long})",
        f"CREATE TABLE {succeeded} PARTITION OF {whole} (PRIMARY KEY (id)) {values}",
        f"CREATE TABLE {beyond} PARTITION OF {succeeded} DEFAULT",
        f"CREATE TABLE {first} PARTITION OF {succeeded} FOR VALUES FROM (1) TO ({1 + WIDTH})",
    ]


def create_with(history: sa.Table) -> None:
    """Let whoever creates the history create its partitions with it."""
    for statement in creation(history):
        creating = sa.DDL(statement)  # type: ignore[no-untyped-call]
        sa.event.listen(history, "after_create", creating.execute_if(dialect="postgresql"))
