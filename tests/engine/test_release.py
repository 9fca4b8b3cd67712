"""A runner whose tables somebody migrates says so once, and goes on."""

import logging
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.engine.release import Release
from runner.errors import DatabaseAway
from runner.migrations import HEAD, upgrade
from runner.store.database import Database
from tests.releases import NEXT, install_next
from tests.store.table import change


async def test_other_tables_are_said_once_and_so_is_that_they_fit_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = Release(database)
    await release.look()
    with monkeypatch.context() as other:
        install_next(tmp_path, other)
        await upgrade(database)
    for _ in range(2):
        await release.look()
    await change(database, sa.text(f"UPDATE task_schema SET version_num = '{HEAD}'"))
    for _ in range(2):
        await release.look()
    said = [record.getMessage() for record in caplog.records if record.name == "runner.release"]
    assert [record.levelno for record in caplog.records if record.name == "runner.release"] == [
        logging.ERROR,
        logging.WARNING,
    ]
    assert f"is at schema {NEXT}, which this program (schema {HEAD}) does not know" in said[0]
    assert "goes on" in said[0]


async def test_an_outage_says_nothing_about_the_tables(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(_database: Database) -> None:
        raise DatabaseAway(url="x", why="y")

    monkeypatch.setattr("runner.engine.release.check", away)
    await Release(database).look()
    assert not caplog.records
