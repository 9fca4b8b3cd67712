"""Maintenance of the history: partitions ahead of the ids, and deletion of old tasks."""

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.engine.periodic.maintenance import Maintenance
from runner.engine.stuck_rows import StuckRows
from runner.settings import Settings
from runner.store.partitions import read_layout
from runner.urls import parse_url
from tests.databases import database_at
from tests.engine.harness import Harness
from tests.postgres import login
from tests.store.rows import add_past, ahead

on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)


def maintenance_of(
    harness: Harness, database: Database | None = None, stopping: Callable[[], bool] = bool, **settings: Any
) -> Maintenance:
    return Maintenance(
        database or harness.database, Settings(url=parse_url(harness.url), **settings), stopping, StuckRows()
    )


async def old_and_young(harness: Harness) -> None:
    for id, days in ((1, 10), (2, 1)):
        await add_past(harness.database, id, finished_at=ahead(-86_400 * days))


async def history_ids(harness: Harness) -> list[int]:
    return [row.id for row in await harness.rows(sa.select(harness.database.tables.history.c.id))]


async def test_old_tasks_are_deleted(harness: Harness) -> None:
    await old_and_young(harness)
    minute = harness.database.tables.minute
    for runner_id, days in ((1, 31), (2, 1)):
        values = {"minute": ahead(-86_400 * days), "queue": "q", "handler": "h", "runner_id": runner_id}
        await harness.change(sa.insert(minute).values(**values))
    await maintenance_of(harness).run()
    assert await history_ids(harness) == [2]
    assert [row.runner_id for row in await harness.rows(sa.select(minute.c.runner_id))] == [2]


@on_postgresql
async def test_partitions_are_made(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "runner.maintenance"):
        await maintenance_of(harness).run()
    layout = await harness.database.read(read_layout)
    assert layout is not None
    assert len(layout.ranges) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "created a history partition for tasks 5000001 to 10000000",
        "created a history partition for tasks 10000001 to 15000000",
    ]


@on_postgresql
async def test_a_runner_that_stops_makes_no_more(harness: Harness) -> None:
    await maintenance_of(harness, stopping=lambda: True).run()
    layout = await harness.database.read(read_layout)
    assert layout is not None
    assert len(layout.ranges) == 1


@on_postgresql
async def test_a_role_without_ownership_logs_it_once_and_deletes_row_by_row(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await old_and_young(harness)
    with login(harness.url, "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public") as url:
        async with database_at(url) as database:
            caring = maintenance_of(harness, database)
            await caring.run()
            await caring.run()
    assert await history_ids(harness) == [2]
    (message,) = [record.getMessage() for record in caplog.records if record.name == "runner.maintenance"]
    assert "does not own task_history" in message


@on_postgresql
@pytest.mark.parametrize("with_sequences", [False, True])
async def test_a_role_that_keeps_the_rows_of_successes_logs_the_missing_grant_once(
    harness: Harness, caplog: pytest.LogCaptureFixture, with_sequences: bool
) -> None:
    with login(harness.url, "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public") as url:
        role = urlsplit(url).username
        grant = f"GRANT SELECT ON SEQUENCE public.task_dependency_id_seq TO {role}"
        if with_sequences:
            await harness.change(sa.text(grant))
        async with database_at(url) as database:
            caring = maintenance_of(harness, database, retention_succeeded="0s")
            await caring.run()
            await caring.run()
    messages = [record.getMessage() for record in caplog.records if "keep their rows" in record.getMessage()]
    assert [message.partition("tables: ")[2] for message in messages] == ([] if with_sequences else [grant])
