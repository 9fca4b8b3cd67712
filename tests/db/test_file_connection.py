"""The log of a SQLite file while a reader keeps an old snapshot, and after it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db import connect, file_connection
from runner.db.database import Database
from runner.db.needs import Needs
from tests.conftest import on_sqlite
from tests.store.rows import add_live

FRAME = 4_096 + 24
"""Bytes of a page in the log."""

LARGE = 64
"""Pages of a large log here."""


@on_sqlite
async def test_commits_try_no_checkpoints_while_a_reader_keeps_the_log(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_connection, "LARGE_LOG", LARGE * FRAME)
    monkeypatch.setattr(file_connection, "LEAST_PAUSE", 0.0)
    monkeypatch.setattr(file_connection, "SHARE", 0)
    monkeypatch.setattr(connect, "KEPT_LOG", LARGE // 2 * FRAME)
    monkeypatch.setattr(connect, "CHECKPOINT_PAGES", 8)
    monkeypatch.setattr(connect, "SUBMIT_CHECKPOINT_PAGES", 4)
    database, path = Database.open(migrated_url), migrated_url.removeprefix("sqlite:///")
    log = Path(f"{path}-wal")

    async def limits_after(tasks: int) -> tuple[int, int]:
        """The limits of a writing connection, and of one for submits."""
        for _ in range(tasks):
            await add_live(database)
        async with database.writing() as tx:
            limit = int(await tx.scalar(sa.text("PRAGMA wal_autocheckpoint")))
        return limit, database.threads.run(
            lambda each: int(each.driver.execute("PRAGMA wal_autocheckpoint").fetchone()[0]), Needs.PREPARED
        )

    try:
        assert await limits_after(1) == (8, 4)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM task").fetchone()
            assert await limits_after(50) == (0, 0)
            assert log.stat().st_size > LARGE * FRAME
        await limits_after(1)  # copies the log, and the next write cuts it
        assert await limits_after(2) == (8, 4)
        assert log.stat().st_size <= (LARGE // 2 + 1) * FRAME
    finally:
        await database.dispose()
