"""Test rows, inserted directly into the tables as a foreign client would."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.filter.parse import Filter, parse_filter
from runner.model.task import State


def ahead(seconds: float) -> Any:
    """A time the given number of seconds from now on the database's clock; negative for the past."""
    return db_later(db_now(), seconds)


def filtered(text: str) -> Filter:
    return parse_filter(text, datetime.now(UTC), UTC)


async def add_live(database: Database, handler: str = "h", **values: Any) -> int:
    """Insert a live task, submitted ten minutes ago: no minute that a screen counts; `values` may hold expressions."""
    async with database.writing() as tx:
        task = tx.tables.task
        values = {"submitted_at": ahead(-600)} | values
        return int(await tx.scalar(sa.insert(task).values(handler=handler, **values).returning(task.c.id)))


async def add_past(database: Database, id: int, state: State = State.SUCCEEDED, **values: Any) -> int:
    """Insert a finished task."""
    columns = {"handler": "h", "queue": "default"} | values
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.history).values(id=id, state=state.value, **columns))
    return id


async def add_attempt(database: Database, task_id: int, fence: int = 1, **values: Any) -> None:
    columns = {"attempt": fence, "queue": "default", "handler": "h", "verb": "retry", "error_type": "ValueError"}
    columns |= {"message": "no", "fingerprint": "f1"} | values
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.attempt).values(task_id=task_id, fence=fence, **columns))


async def add_runner(database: Database, lease: float = 1e6, handlers: str = '["h"]', **values: Any) -> int:
    """Insert a runner whose lease ends in the given number of seconds; by default after any test."""
    columns = {"host": "web-1", "pid": 7, "version": "1", "lease_until": ahead(lease), "handlers": handlers} | values
    async with database.writing() as tx:
        runner = tx.tables.runner
        return int(await tx.scalar(sa.insert(runner).values(**columns).returning(runner.c.id)))


async def stored(database: Database, id: int) -> Any:
    """The live row; None if there is none."""
    async with database.reading() as tx:
        task = tx.tables.task
        return (await tx.execute(sa.select(task).where(task.c.id == id))).one_or_none()


async def history_row(database: Database, id: int) -> Any:
    """The row in the history; None if there is none."""
    async with database.reading() as tx:
        history = tx.tables.history
        return (await tx.execute(sa.select(history).where(history.c.id == id))).one_or_none()


async def until_locked(database: Database, waiting: int = 1) -> None:
    """Wait until this number of connections to a PostgreSQL database wait for locks."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(90):
        while True:
            async with database.reading() as tx:
                if await tx.scalar(sa.text(waits)) >= waiting:
                    return
            await asyncio.sleep(0.01)
