"""Tasks that wait for others, and what a runner does for them, one verb at a time."""

from typing import Any

import sqlalchemy as sa

from runner.store.database import Database
from runner.store.dependencies import Ended, Resolved, forget, resolve, strays, waiting_for
from runner.store.dependencies.resolving import CHUNK
from runner.task import After, NewTask, OnFailure
from tests.store.table import put, standing


async def put_after(
    database: Database, *parents: int | tuple[str, str], on_failure: OnFailure = "wait", **options: Any
) -> int:
    """Submit a task that waits for others, all by the same rule."""
    return await put(database, after=tuple(After(parent, on_failure) for parent in parents), **options)


async def tell(database: Database, *ended: int, limit: int = CHUNK) -> Resolved:
    """Do what a runner does when it has ended these tasks, with so many edges at once."""
    rows = [await standing(database, id) for id in ended]
    told = [Ended(row["id"], row["handler"], row["key"]) for row in rows]
    edges = await database.state(waiting_for, told, limit)
    return await database.write(resolve, edges) if edges else Resolved()


async def sweep(database: Database) -> Resolved:
    """Do what every runner does now and then."""
    found = await database.state(strays)
    if found.moot:
        await database.write(forget, found.moot)
    return await database.write(resolve, found.edges) if found.edges else Resolved()


async def edges(database: Database, task_id: int) -> list[dict[str, Any]]:
    """What a task waits for, or waited for, in the order in which it was said."""
    edge = database.tables.dependency
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(edge).where(edge.c.task_id == task_id).order_by(edge.c.id))
    return [dict(row._mapping) for row in rows]


def after(*parents: int | tuple[str, str], handler: str = "work", **options: Any) -> NewTask:
    return NewTask(handler, after=tuple(After(parent) for parent in parents), **options)
