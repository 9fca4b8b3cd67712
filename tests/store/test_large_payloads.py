"""Large payloads on SQLite: how often a task writes its payload before it is in the history."""

import json
from pathlib import Path

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.file_writer import FileStatement
from runner.db.needs import Needs, needs
from runner.db.transaction import Transaction
from runner.model.outcome import Done
from runner.model.task import NewTask
from runner.store.settle import Settlement
from runner.store.submit import submit_many
from tests.conftest import on_sqlite
from tests.store.runners import Runner, settle_done

SIZE, TASKS = 100_000, 20
FRAME = 24 + 4_096
"""Bytes of a page in the write-ahead log."""


@on_sqlite
async def test_a_claim_and_a_settle_each_write_a_payload_once(database: Database, migrated_url: str) -> None:
    log = Path(migrated_url.removeprefix("sqlite:///") + "-wal")
    payload = json.dumps({"pad": "x" * SIZE})
    await database.write(submit_many, [NewTask("work", payload)] * TASKS)
    runner = await Runner.enter(database)
    before = log.stat().st_size
    tasks = await runner.claim()
    claimed = log.stat().st_size
    done = [Settlement(task.id, task.fence, Done()) for task in tasks]
    assert len(await database.write(settle_done, runner.id, done)) == TASKS
    settled = log.stat().st_size
    most = 1.2 * TASKS * SIZE * FRAME / 4_096
    assert claimed - before < most
    assert settled - claimed < most


@on_sqlite
async def test_the_rows_of_a_claim_are_collected_in_memory(database: Database) -> None:
    @needs(Needs.PREPARED)
    async def temp_store(_: Transaction) -> list[tuple[int]]:
        return await FileStatement("PRAGMA temp_store")

    assert await database.write(temp_store) == [(2,)]


@on_sqlite
async def test_no_column_follows_the_payload(database: Database) -> None:
    for table in (database.tables.task, database.tables.history):
        async with database.reading() as tx:
            columns = await tx.rows(sa.text(f"SELECT name FROM pragma_table_info('{table.name}')"))
        assert columns[-1].name == "payload"
