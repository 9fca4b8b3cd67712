"""Tasks with dependencies, and the steps of a runner that resolve them."""

from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.model.task import DependsOn, NewTask, OnFailure
from runner.store.dependencies.resolve import (
    CHUNK,
    FinishedParent,
    Resolved,
    close_moot,
    find_strays,
    open_dependencies,
    resolve,
)
from tests.store.table import put, row_of


async def put_after(
    database: Database, *parents: int | tuple[str, str], on_failure: OnFailure = "wait", **options: Any
) -> int:
    """Submit a task with dependencies that share one failure rule."""
    return await put(database, after=tuple(DependsOn(parent, on_failure) for parent in parents), **options)


async def resolve_parents(database: Database, *ids: int, limit: int = CHUNK) -> Resolved:
    """Resolve the dependencies on finished tasks as a runner does, in chunks of a given size."""
    rows = [await row_of(database, id) for id in ids]
    parents = [FinishedParent(row["id"], row["handler"], row["key"]) for row in rows]
    dependencies = await database.write(open_dependencies, parents, limit)
    return await database.write(resolve, dependencies) if dependencies else Resolved()


async def sweep(database: Database) -> Resolved:
    """Run the sweep that every runner repeats."""
    strays = await database.write(find_strays)
    if strays.moot:
        await database.write(close_moot, strays.moot)
    return await database.write(resolve, strays.dependencies) if strays.dependencies else Resolved()


async def dependencies_of(database: Database, task_id: int) -> list[dict[str, Any]]:
    """The dependencies of a task, open and resolved, in submit order."""
    dependency = database.tables.dependency
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(dependency).where(dependency.c.task_id == task_id).order_by(dependency.c.id))
    return [dict(row._mapping) for row in rows]


def after(*parents: int | tuple[str, str], handler: str = "work", **options: Any) -> NewTask:
    return NewTask(handler, after=tuple(DependsOn(parent) for parent in parents), **options)
