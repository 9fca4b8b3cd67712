"""Tasks with unique keys, for tests."""

from typing import Any

import sqlalchemy as sa

from runner.store.database import Database
from runner.store.submit import hand_in
from runner.task import NewTask, Receipt, Unique
from tests.store.rows import ahead
from tests.store.table import change


def once(unique_key: str = "k", /, handler: str = "work", **said: Any) -> NewTask:
    """A task with a unique key; what is said may be of either."""
    unique = {name: said.pop(name) for name in ("scope", "seconds", "on_duplicate") if name in said}
    return NewTask(handler, unique=Unique(unique_key, **unique), **said)


async def put(database: Database, *tasks: NewTask) -> Receipt:
    return await database.write(hand_in, tasks)


async def key_row(database: Database, key: str = "k") -> Any:
    unique = database.tables.unique
    async with database.reading() as tx:
        return (await tx.rows(sa.select(unique).where(unique.c.unique_key == key)))[0]


async def let_time_pass(database: Database) -> None:
    """Let the time pass that keys are held for."""
    unique = database.tables.unique
    await change(database, sa.update(unique).where(unique.c.expires_at.is_not(None)).values(expires_at=ahead(-1)))
