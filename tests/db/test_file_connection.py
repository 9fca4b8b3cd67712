"""The log of a SQLite file while a reader keeps an old snapshot, and after it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db import connect, file_connection
from runner.db.database import Database
from tests.conftest import on_sqlite
from tests.store.rows import add_live

FRAME = 4_096 + 24
LARGE = 64
"""Pages of a large log here."""


@on_sqlite
async def test_checkpoints_are_rare_while_a_reader_keeps_the_log(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_connection, "LARGE_LOG", LARGE * FRAME)
    monkeypatch.setattr(connect, "KEPT_LOG", LARGE // 2 * FRAME)
    monkeypatch.setattr(connect, "CHECKPOINT_PAGES", 8)
    monkeypatch.setattr(connect, "SUBMIT_CHECKPOINT_PAGES", 4)
    database, path = Database.open(migrated_url), migrated_url.removeprefix("sqlite:///")
    log = Path(f"{path}-wal")

    async def limit_after(tasks: int) -> int:
        for _ in range(tasks):
            await add_live(database)
        async with database.writing() as tx:
            return int(await tx.scalar(sa.text("PRAGMA wal_autocheckpoint")))

    def limit_of_submits() -> int:
        return int(database.threads.look(lambda read: read("PRAGMA wal_autocheckpoint")[0][0][1]))

    try:
        assert (await limit_after(1), limit_of_submits()) == (8, 4)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM task").fetchone()
            limits = [await limit_after(10) for _ in range(12)]
            pages = log.stat().st_size // FRAME
            assert pages > 3 * LARGE
            assert limits == sorted(limits)
            assert limits[-1] == limit_of_submits()
            assert pages < limits[-1] <= max(pages + LARGE, pages * 5 // 4)
        for _ in range(20):
            if await limit_after(10) == 8:
                break
        assert (await limit_after(1), limit_of_submits()) == (8, 4)
        assert log.stat().st_size <= (LARGE // 2 + 1) * FRAME
    finally:
        await database.dispose()
