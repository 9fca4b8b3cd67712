"""What a database tells of itself, and what gives cause for worry."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.people import person
from runner.store.database import Database
from runner.store.observe import Health, clock, health, ping, worries
from runner.store.observe.health import DeadRows, OpenTransaction
from tests.store.conftest import ON_POSTGRESQL
from tests.store.rows import add_live

WELL = Health(datetime(2026, 1, 1, tzinfo=UTC), "postgresql", "18", connections=(5, 100))


async def test_every_database_tells_its_version_and_its_size(database: Database) -> None:
    await add_live(database)
    found = await database.read(health)
    assert found.kind == database.dialect.name
    assert found.version[0].isdigit()
    assert found.size is not None
    assert found.size > 10_000


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_a_file_tells_of_its_log(database: Database) -> None:
    await add_live(database)
    found = await database.read(health)
    log = Path(f"{database.engine.url.database}-wal")
    assert found.wal == log.stat().st_size > 0
    assert (found.connections, found.oldest) == (None, None)


@ON_POSTGRESQL
async def test_a_server_tells_who_has_a_transaction_open(database: Database, rival: Database) -> None:
    async with rival.writing() as tx:
        pid = await tx.scalar(sa.text("SELECT pg_backend_pid()"))
        found = await database.read(health)
    assert found.oldest is not None
    assert (found.oldest.pid, found.oldest.state) == (pid, "idle in transaction")
    assert found.oldest.age >= 0
    assert found.connections is not None
    assert found.connections[0] >= 2
    assert {"task", "task_history"} <= {table.table for table in found.dead}


class Undone(Exception):
    """The role that was made is not kept."""


@ON_POSTGRESQL
async def test_what_a_role_may_not_see_is_said_to_be_hidden(database: Database, rival: Database) -> None:
    async with rival.writing() as open_:
        await open_.execute(sa.text("SELECT 1"))
        with suppress(Undone):
            async with database.writing() as tx:
                await tx.execute(sa.text("CREATE ROLE stranger_of_the_tests"))
                await tx.execute(sa.text("SET LOCAL ROLE stranger_of_the_tests"))
                found = await health(tx)
                raise Undone
    assert found.hidden >= 1
    assert found.oldest is None
    assert found.size is not None


def test_a_healthy_database_is_no_worry() -> None:
    fine = replace(WELL, oldest=OpenTransaction(20.0, 7, "psql", "active"), dead=(DeadRows("task", 5, 90_000, 1.0),))
    assert list(worries(fine)) == []
    assert list(worries(Health(WELL.at, "sqlite", "3", size=1, wal=4096))) == []


def test_worries_say_who_and_what_to_do() -> None:
    ill = replace(
        WELL,
        oldest=OpenTransaction(4_000.0, 7, "report\x1b[31m", "idle in transaction"),
        dead=(DeadRows("task", 1_000, 383_000, None), DeadRows("task_minute", 500_000, 200_000, None)),
        connections=(95, 100),
        wal=2**29,
    )
    texts, idle = [worry.text for worry in worries(ill)], "(connection 7, idle in transaction)"
    assert texts == [
        f"a transaction of report␛[31m {idle} has been open for 1h06m: dead rows stay until it ends",
        "task has 383,000 dead rows beside 1,000 live ones, vacuumed never",
        "95 of 100 connections are in use",
        "the write-ahead log has grown to 512.0 MiB",
    ]
    assert next(worries(ill)).advice.endswith("SELECT pg_terminate_backend(7)")


async def test_the_difference_of_the_clocks_is_measured(database: Database) -> None:
    async def ask() -> datetime:
        return person.now() + timedelta(seconds=9)

    took, skew = await ping(ask, 3)
    assert took < 1
    assert skew == pytest.approx(timedelta(seconds=9), abs=timedelta(seconds=1))
    assert abs((await ping(lambda: database.read(clock), 3)).skew) < timedelta(seconds=5)
