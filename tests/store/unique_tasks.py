"""Tasks with unique keys."""

from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Retry, Suspended
from runner.model.step import StepWrite
from runner.model.task import NewTask, SubmitResult, UniqueKey
from runner.store.notes import Checkpoint, save_checkpoint
from runner.store.steps import StepOwner, save_step
from runner.store.submit import submit_with_result
from tests.store.rows import ahead
from tests.store.runners import Runner
from tests.store.table import change


def once(unique_key: str = "k", /, handler: str = "work", **options: Any) -> NewTask:
    """A task with a unique key; keyword arguments set fields of the key or of the task."""
    unique = {name: options.pop(name) for name in ("scope", "seconds", "on_duplicate") if name in options}
    return NewTask(handler, unique_key=UniqueKey(unique_key, **unique), **options)


async def put(database: Database, *tasks: NewTask) -> SubmitResult:
    return await database.write(submit_with_result, tasks)


async def key_row(database: Database, key: str = "k") -> Any:
    unique = database.tables.unique
    async with database.reading() as tx:
        return (await tx.rows(sa.select(unique).where(unique.c.unique_key == key)))[0]


async def let_time_pass(database: Database) -> None:
    """Move the expiry of unique keys into the past."""
    unique = database.tables.unique
    await change(database, sa.update(unique).where(unique.c.expires_at.is_not(None)).values(expires_at=ahead(-1)))


async def begin(runner: Runner, record: str) -> None:
    """Execute a task until it waits for an hour, with a stored step or checkpoint."""
    (task,) = await runner.claim()
    if record == "step":
        owner = StepOwner(task.id, task.fence, task.attempt, runner.id)
        await runner.database.write(save_step, owner, StepWrite("charge", "function", 1, done=True, result="7"))
        await runner.end(task, Suspended(3_600.0, "waits for signal approved"))
    else:
        await runner.database.write(save_checkpoint, runner.id, Checkpoint(task.id, task.fence, 1, 1, "4000"))
        await runner.end(task, Retry("1h"))
