"""A runner logs a migration of its tables once and continues."""

import logging
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.migrations.apply import upgrade
from runner.db.migrations.revisions import HEAD
from runner.engine.periodic.schema_watch import SchemaWatch
from runner.errors import DatabaseUnavailable, SchemaIncomplete
from runner.model.task import DependsOn, UniqueKey
from runner.operations.results import Actor, Target
from runner.operations.retry import requeue
from tests.engine.harness import Harness
from tests.releases import NEXT, install_next
from tests.store.table import change


async def test_other_tables_are_reported_once_and_so_is_that_they_fit_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = SchemaWatch(database)
    await release.check_schema()
    with monkeypatch.context() as other:
        install_next(tmp_path, other)
        await upgrade(database)
    for _ in range(2):
        await release.check_schema()
    await change(database, sa.text(f"UPDATE task_schema SET version_num = '{HEAD}'"))
    for _ in range(2):
        await release.check_schema()
    messages = [record.getMessage() for record in caplog.records if record.name == "runner.maintenance"]
    assert [record.levelno for record in caplog.records if record.name == "runner.maintenance"] == [
        logging.ERROR,
        logging.WARNING,
    ]
    assert f"is at schema {NEXT}, which this program (schema {HEAD}) does not support" in messages[0]
    assert "this runner continues" in messages[0]


@pytest.mark.slow
async def test_runners_producers_and_operators_go_on_after_an_additive_migration(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing = [True]

    @harness.handler("work", max_attempts=1)
    async def work() -> int:
        if failing:
            raise ValueError
        return 7

    async with harness.running():
        before = await harness.submit("work")
        await harness.wait_for(before)
        with monkeypatch.context() as other:
            install_next(tmp_path, other, additive=True)
            await upgrade(harness.database)
        during = await harness.submit("work", unique_key=UniqueKey("k"))
        await harness.wait_for(during)
    failing.clear()
    targets = [Target(id, (await harness.row(id)).version) for id in (before, during)]
    assert (await harness.database.write(requeue, targets, Actor("ana", "desk", "try"))).changed == [before, during]
    after = await harness.run("work", after=(DependsOn(during),))
    assert [await harness.state(id) for id in (before, during, after)] == ["succeeded"] * 3


async def test_an_outage_says_nothing_about_the_tables(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(_database: Database) -> None:
        raise DatabaseUnavailable(url="x", why="y")

    monkeypatch.setattr("runner.engine.periodic.schema_watch.check", away)
    await SchemaWatch(database).check_schema()
    assert not caplog.records


@pytest.mark.both_databases
async def test_a_runner_does_not_start_without_a_table_of_its_revision(harness: Harness) -> None:
    await change(harness.database, sa.text("DROP TABLE task_ended_runner"))
    with pytest.raises(SchemaIncomplete) as refused:
        await harness.work()
    message = (
        f"lacks the table task_ended_runner of schema {HEAD}. Restore a backup of all its tables, or create it anew"
    )
    assert message in str(refused.value)
    assert await harness.count(harness.database.tables.runner) == 0
