"""sequences: the counters of ids, which a data-only restore or a switch to a logical replica leaves behind the rows.

A new task would get the id of an earlier one: its result, attempts and audit entries would mix with those of that task.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.migrations.revisions import Installation, MigrationTransaction
from runner.db.schema import Tables
from runner.db.schema.partitions import full_name, name_literal
from runner.errors import DatabaseRefused, SequenceLate

log = logging.getLogger("runner.schema")

MARGIN = 1_000
"""Ids that a repair skips: other transactions take some between the look at a sequence and its change."""


class LateSequence(NamedTuple):
    """A sequence that is behind the ids of its rows.

    Args:
        table: full name of the table.
        last: the last id of the sequence.
        highest: the highest id that rows have.
    """

    table: str
    last: int
    highest: int

    @property
    def text(self) -> str:
        """The finding as text."""
        return f"the sequence of {self.table} is at id {self.last}, but rows have ids up to {self.highest}"


REMEDY = "Run as the owner of the tables: runner migrate"
"""What repairs a late sequence."""


def _numbered(tables: Tables) -> dict[sa.Table, list[sa.Column[int]]]:
    """The tables that number their rows, and all columns with their ids that have an index."""
    return {
        tables.task: [tables.task.c.id, tables.history.c.id, tables.attempt.c.task_id],
        tables.dependency: [tables.dependency.c.id],
        tables.workflow: [tables.workflow.c.id, tables.task.c.workflow, tables.history.c.workflow],
        tables.runner: [tables.runner.c.id, tables.ended_runner.c.runner_id],
        tables.audit: [tables.audit.c.id],
    }


async def late_sequences(tx: MigrationTransaction) -> list[LateSequence]:
    """Find the sequences that are behind the ids of their rows. A sequence that this login may not read is left out.

    Args:
        tx: open transaction. It executes one statement, which reads one index per column, beyond its sequence.
    """
    row = (await tx.connection.execute(_last_ids(tx.connection.dialect.name, tx.tables))).one()
    return late_sequences_of(row, tx.tables)


@lru_cache
def last_ids_text(tables: Tables, driver: sa.Dialect) -> str:
    """The statement of `late_sequences` as text, without parameters."""
    statement = _last_ids(driver.name, tables)
    return str(statement.compile(dialect=driver, compile_kwargs={"literal_binds": True}))


def _last_ids(dialect: str, tables: Tables) -> "sa.Select[*tuple[Any, ...]]":
    columns = []
    for table, ids in _numbered(tables).items():
        last = _last_in_server(table) if DIALECTS[dialect].is_server else _last_in_file(table)
        # Only beyond the sequence: a table of tasks that have just ended has millions of dead entries before it.
        beyond = sa.select(last).scalar_subquery()
        columns += [last, *(sa.select(sa.func.max(each)).where(each > beyond).scalar_subquery() for each in ids)]
    return sa.select(*columns)


def late_sequences_of(last_ids: Sequence[Any], tables: Tables) -> list[LateSequence]:
    """The late ones among the sequences, from the row of `last_ids_text`."""
    row, late = list(last_ids), []
    for table, ids in _numbered(tables).items():
        last, *found = (row.pop(0) for _ in range(len(ids) + 1))
        highest = max((id for id in found if id is not None), default=0)
        if last is not None and last < highest:
            late.append(LateSequence(table.fullname, last, highest))
    return late


async def repair_sequences(tx: MigrationTransaction) -> list[LateSequence]:
    """Advance the sequences that are late.

    Args:
        tx: a writing transaction of the owner of the tables.

    Returns:
        The sequences that were late.
    """
    late = await late_sequences(tx)
    tables = {table.fullname: table for table in _numbered(tx.tables)}
    for sequence in late:
        table, end = tables[sequence.table], sequence.highest + MARGIN
        if DIALECTS[tx.connection.dialect.name].is_server:
            statement = sa.text("SELECT setval(CAST(pg_get_serial_sequence(:name, 'id') AS regclass), :id)")
            await tx.connection.execute(statement, {"name": full_name(table), "id": end})
            continue
        counter = sa.table("sqlite_sequence", sa.column("name", sa.Text), sa.column("seq", sa.BigInteger))
        await tx.connection.execute(sa.delete(counter).where(counter.c.name == table.name))
        await tx.connection.execute(sa.insert(counter).values(name=table.name, seq=sequence.highest))
    return late


async def advance(database: Installation, late: list[LateSequence]) -> None:
    """Advance sequences before a program submits its first task.

    Raises:
        SequenceLate: the sequence of tasks is one of them, and this login may not change it.
    """
    text = "; ".join(sequence.text for sequence in late)
    try:
        await database.write(repair_sequences)
    except DatabaseRefused as error:
        if any(sequence.table == database.tables.task.fullname for sequence in late):
            raise SequenceLate(why=text) from error
    else:
        log.warning("repaired the sequences of ids: %s", text)


async def reused_ids(tx: MigrationTransaction) -> list[int]:
    """Find live tasks with the ids of earlier tasks: the first ones by id, 20 at most, among 10,000 live tasks."""
    task, history = tx.tables.task, tx.tables.history
    first = sa.select(task.c.id).order_by(task.c.id).limit(10_000).subquery("first")
    has_past = sa.exists().where(history.c.id == first.c.id)
    statement = sa.select(first.c.id).where(has_past).order_by(first.c.id).limit(20)
    return [row[0] for row in (await tx.connection.execute(statement)).all()]


def _last_in_server(table: sa.Table) -> sa.ColumnElement[int]:
    sequence = f"CAST(pg_get_serial_sequence({name_literal(table)}, 'id') AS regclass)"
    may_read = f"has_sequence_privilege({sequence}, 'SELECT')"
    last = f"coalesce(pg_sequence_last_value({sequence}), 0)"
    return sa.literal_column(f"CASE WHEN {may_read} THEN {last} END", sa.BigInteger)


def _last_in_file(table: sa.Table) -> sa.ColumnElement[int]:
    sequence = sa.table("sqlite_sequence", sa.column("name", sa.Text), sa.column("seq", sa.BigInteger))
    last = sa.select(sequence.c.seq).where(sequence.c.name == table.name).limit(1).scalar_subquery()
    return sa.func.coalesce(last, 0)
