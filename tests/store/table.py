"""The rows of the task table, and changes by edits and by the passing of time."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import NewTask
from runner.store.submit import submit, submit_many

Row = dict[str, Any]


async def put(database: Database, handler: str = "work", **options: Any) -> int:
    """Submit one task in its own transaction."""
    return await database.write(submit, NewTask(handler, **options))


async def put_many(database: Database, tasks: int, handler: str = "work", **options: Any) -> list[int]:
    return await database.write(submit_many, [NewTask(handler, **options)] * tasks)


async def live(database: Database, task_id: int) -> Row | None:
    """The task's live row; None if there is none."""
    return await _one(database, database.tables.task, task_id)


async def past(database: Database, task_id: int) -> Row | None:
    """The task's row in the history; None if there is none."""
    return await _one(database, database.tables.history, task_id)


async def row_of(database: Database, task_id: int) -> Row:
    """The task's only row, in either table."""
    (row,) = [row for row in (await live(database, task_id), await past(database, task_id)) if row]
    return row


async def attempts(database: Database, task_id: int) -> list[Row]:
    """The task's failed attempts, in order."""
    table = database.tables.attempt
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(table).where(table.c.task_id == task_id).order_by(table.c.fence))
    return [dict(row._mapping) for row in rows]


async def count(database: Database, table: sa.Table) -> int:
    async with database.reading() as tx:
        return int(await tx.scalar(sa.select(sa.func.count()).select_from(table)))


async def edit(database: Database, task_id: int, **values: Any) -> None:
    """Change a live task directly, as an edit does."""
    task = database.tables.task
    changed = values | {"version": task.c.version + 1}
    await change(database, sa.update(task).where(task.c.id == task_id).values(changed))


async def make_due(database: Database, *task_ids: int) -> None:
    """Move the due time of these tasks into the past."""
    task = database.tables.task
    await change(database, sa.update(task).where(task.c.id.in_(task_ids)).values(run_at=db_later(db_now(), -1)))


async def expire(database: Database, *runner_ids: int) -> None:
    """Move the end of these runners' leases into the past."""
    runner = database.tables.runner
    over = sa.update(runner).where(runner.c.id.in_(runner_ids)).values(lease_until=db_later(db_now(), -1))
    await change(database, over)


async def pause(database: Database, registry: sa.Table, name: str, **until: Any) -> None:
    """Pause a queue or a handler."""
    await change(database, sa.delete(registry).where(registry.c.name == name))
    await change(database, sa.insert(registry).values(name=name, paused_at=db_now(), **until))


async def change(database: Database, statement: Any, rows: Sequence[Row] | None = None) -> None:
    async with database.writing() as tx:
        await tx.execute(statement, rows)


async def _one(database: Database, table: sa.Table, task_id: int) -> Row | None:
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(table).where(table.c.id == task_id))
    return dict(rows[0]._mapping) if rows else None
