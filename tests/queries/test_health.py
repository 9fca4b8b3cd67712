"""The state of the database, and its problems."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.queries.health import DeadRows, Health, OpenTransaction, Ping, health, health_issues, ping
from runner.text import operator
from tests.conftest import on_postgresql
from tests.store.rows import add_live

WELL = Health(datetime(2026, 1, 1, tzinfo=UTC), "postgresql", "18", connections=(5, 100))


async def test_every_database_reports_its_version_and_size(database: Database) -> None:
    await add_live(database)
    report = await database.read(health)
    assert report.kind == database.dialect.name
    assert report.version[0].isdigit()
    assert report.size is not None
    assert report.size > 10_000


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_a_file_reports_its_write_ahead_log(database: Database) -> None:
    await add_live(database)
    report = await database.read(health)
    log = Path(f"{database.engine.url.database}-wal")
    assert report.wal == log.stat().st_size > 0
    assert (report.connections, report.oldest) == (None, None)


@on_postgresql
async def test_a_server_reports_its_oldest_transaction(database: Database, rival: Database) -> None:
    async with rival.writing() as tx:
        pid = await tx.scalar(sa.text("SELECT pg_backend_pid()"))
        report = await database.read(health)
    assert report.oldest is not None
    assert (report.oldest.pid, report.oldest.state) == (pid, "idle in transaction")
    assert report.oldest.age >= 0
    assert report.connections is not None
    assert report.connections[0] >= 2
    assert {"task", "task_history"} <= {table.table for table in report.dead}
    assert sum(report.tables.values()) == report.size
    assert {table.name for table in database.tables.metadata.sorted_tables} == report.tables.keys()


class Undone(Exception):
    """Rolls back the role that the test created."""


@on_postgresql
async def test_values_that_a_role_may_not_see_are_marked_as_hidden(database: Database, rival: Database) -> None:
    async with rival.writing() as open_:
        await open_.execute(sa.text("SELECT 1"))
        with suppress(Undone):
            async with database.writing() as tx:
                await tx.execute(sa.text("CREATE ROLE stranger_of_the_tests"))
                await tx.execute(sa.text("SET LOCAL ROLE stranger_of_the_tests"))
                report = await health(tx)
                raise Undone
    assert report.hidden >= 1
    assert report.oldest is None
    assert report.size is not None


def test_a_healthy_database_has_no_problems() -> None:
    fine = WELL._replace(oldest=OpenTransaction(20.0, 7, "psql", "active"), dead=(DeadRows("task", 5, 90_000, 1.0),))
    assert list(health_issues(fine)) == []
    assert list(health_issues(Health(WELL.at, "sqlite", "3", size=1, wal=4096))) == []


def test_problems_name_their_cause_and_a_remedy() -> None:
    ill = WELL._replace(
        oldest=OpenTransaction(4_000.0, 7, "report\x1b[31m", "idle in transaction"),
        dead=(DeadRows("task", 1_000, 383_000, None), DeadRows("task_minute", 500_000, 200_000, None)),
        connections=(95, 100),
        wal=2**29,
    )
    texts, idle = [worry.text for worry in health_issues(ill)], "(connection 7, idle in transaction)"
    assert texts == [
        f"a transaction of report␛[31m {idle} has been open for 1h06m: dead rows accumulate until it ends",
        "task has 383,000 dead and 1,000 live rows, last vacuum: never",
        "95 of 100 connections are in use",
        "the write-ahead log has grown to 512 MiB",
    ]
    assert next(health_issues(ill)).advice.endswith("SELECT pg_terminate_backend(7)")


async def test_the_difference_of_the_clocks_is_measured(database: Database) -> None:
    async def ask() -> datetime:
        return operator.now() + timedelta(seconds=9)

    def uncertainty(measured: Ping) -> timedelta:
        """The other clock was read somewhere between question and answer; ours has steps."""
        return timedelta(seconds=measured.took / 2 + 0.01)

    ahead = await ping(ask, 3)
    assert abs(ahead.skew - timedelta(seconds=9)) <= uncertainty(ahead)
    same = await ping(lambda: database.read(clock), 3)
    assert abs(same.skew) <= uncertainty(same)
