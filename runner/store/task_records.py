"""task record: a task with the rows that belong to it, as one JSON object."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import Instant, instant_from_text

Record: TypeAlias = dict[str, Any]
"""The columns of a task by name, and for each key of RELATED, and for WORKFLOWS, a list of rows.

Times are ISO texts, JSON stays text.
"""

RELATED = {
    "attempts": "attempt",
    "audit": "audit",
    "dependencies": "dependency",
    "checkpoints": "checkpoint",
    "steps": "step",
    "signals": "signal",
    "progress": "progress",
    "log": "log",
}
"""The tables of the rows that belong to a task, by their key in a record."""

WORKFLOWS = "workflows"
"""The key of the workflow of a task in a record: a list of one row, empty without one."""

CHUNK = 500
"""Records per statement."""


def line_of(record: Record) -> str:
    """A record as one line of JSON."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def digest_of(line: str) -> str:
    """The digest of a line, which differs if any value of the record does."""
    return hashlib.sha256(line.encode(errors="surrogatepass")).hexdigest()


async def read_records(tx: Transaction, table: sa.Table, ids: Sequence[int]) -> list[Record]:
    """Read tasks with the rows that belong to them, by id.

    Args:
        tx: an open transaction; one statement per table is executed.
        table: the live table or the history.
    """
    records = {row["id"]: row for row in await _read_rows(tx, table, table.c.id, ids)}
    for key, name in RELATED.items():
        related: sa.Table = getattr(tx.tables, name)
        by_task: dict[int, list[Record]] = defaultdict(list)
        for row in await _read_rows(tx, related, related.c.task_id, ids):
            by_task[row.pop("task_id")].append(row)
        for id, record in records.items():
            record[key] = by_task[id]
    workflow, ids_of = tx.tables.workflow, {record["workflow"] for record in records.values()} - {None}
    by_id = {row["id"]: row for row in await _read_rows(tx, workflow, workflow.c.id, sorted(ids_of))} if ids_of else {}
    for record in records.values():
        record[WORKFLOWS] = [by_id[record["workflow"]]] if record["workflow"] in by_id else []
    return list(records.values())


async def _read_rows(tx: Transaction, table: sa.Table, column: Any, ids: Sequence[int]) -> list[Record]:
    """Read the rows of a table by the values of a column, in the order of its primary key."""
    columns = [
        (tx.dialect.readable_time(each) if isinstance(each.type, Instant) else each).label(each.name)
        for each in table.c
        if each.computed is None
    ]
    key = (column, *(each for each in table.primary_key if each is not column))
    statement = sa.select(*columns).where(tx.dialect.one_of(column, list(ids))).order_by(*key)
    times = {each.name for each in table.c if isinstance(each.type, Instant)}
    rows = (await tx.execute(statement)).mappings().all()
    return [{name: _time_text(value) if name in times else value for name, value in row.items()} for row in rows]


def _time_text(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = instant_from_text(value)
        except ValueError:
            return value
    return value.astimezone(UTC).isoformat(timespec="microseconds") if isinstance(value, datetime) else value


async def write_records(tx: Transaction, table: sa.Table, records: Sequence[Record]) -> None:
    """Insert tasks with the rows that belong to them, and their workflows unless they exist.

    Args:
        table: the live table or the history; none of the tasks may exist.
    """
    workflows = {row["id"]: row for record in records for row in record.get(WORKFLOWS, ())}
    await _insert_rows(tx, tx.tables.workflow, workflows.values())
    await _insert_rows(tx, table, records)
    for key, name in RELATED.items():
        rows = [{**row, "task_id": record["id"]} for record in records for row in record.get(key, ())]
        await _insert_rows(tx, getattr(tx.tables, name), rows)


async def _insert_rows(tx: Transaction, table: sa.Table, rows: Iterable[Record]) -> None:
    """Insert rows as `_read_rows` returns them; workflows unless they exist."""
    insert = tx.dialect.insert(table)
    statement = insert.on_conflict_do_nothing() if table is tx.tables.workflow else insert
    columns = [column for column in table.c if column.computed is None]
    values = [{column.name: _value(column, row.get(column.name)) for column in columns} for row in rows]
    for first in range(0, len(values), CHUNK):
        await tx.execute(statement, values[first : first + CHUNK])


def _value(column: Any, value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(column.type, Instant) and isinstance(value, str) else value
