"""Behind a pooler that shares sessions between transactions, session state would leak to other clients."""

from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.model.outcome import Done, Retry
from runner.queries.counts import counts
from runner.store.claim.survey import survey
from runner.store.rescue import any_lost, rescue
from tests.postgres.proxy import Proxy
from tests.store.runners import Runner, settle_done, settlement
from tests.store.table import put

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

PREPARED = "SELECT count(*) FROM pg_prepared_statements"
KEPT = {
    "prepared statements": PREPARED,
    "settings": "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction%'",
    "listeners": "SELECT count(*) FROM pg_listening_channels()",
    "advisory locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    "temporary tables": "SELECT count(*) FROM pg_class WHERE relpersistence = 't'",
}

OFTEN = 12
"""Executions after which a direct connection has prepared its statements."""


@pytest.fixture
async def pooled(migrated_url: str) -> AsyncIterator[Database]:
    """The same database through a pooler."""
    async with Proxy(migrated_url, pools=True).opened() as pooler:
        opened = Database.open(pooler.url)
        yield opened
        await opened.dispose()


async def test_the_verbs_leave_nothing_behind_in_the_sessions_of_a_pooler(pooled: Database) -> None:
    runner = await Runner.enter(pooled)
    for outcome in (Done(), Retry("1h")) * OFTEN:
        await put(pooled)
        (task,) = await runner.claim(1)
        await runner.end(task, outcome)
    await _work(pooled, runner)
    await pooled.write_single(survey)
    await pooled.write_single(any_lost, runner.rescuer, 1.0)
    await pooled.write(rescue, runner.rescuer, 1.0)
    await pooled.read(counts)
    for opened in (pooled.single, pooled.writing, pooled.reading):
        async with opened() as tx:
            left = {name: await tx.scalar(sa.text(question)) for name, question in KEPT.items()}
        assert left == dict.fromkeys(KEPT, 0)


async def test_only_connections_for_single_statements_prepare(database: Database, runner: Runner) -> None:
    await _work(database, runner)
    assert await _prepared(database) > 0
    for opened in (database.writing, database.reading):
        async with opened() as tx:
            assert {await tx.scalar(sa.text(KEPT[name])) for name in ("prepared statements", "settings")} == {0}


async def test_the_setting_turns_prepared_statements_off(migrated_url: str) -> None:
    unprepared = Database.open(migrated_url, prepares=False)
    await _work(unprepared, await Runner.enter(unprepared))
    async with unprepared.single() as tx:
        assert {await tx.scalar(sa.text(KEPT[name])) for name in ("prepared statements", "settings")} == {0}
    await unprepared.dispose()


async def test_lost_prepared_statements_are_not_prepared_again(database: Database, runner: Runner) -> None:
    await _work(database, runner)
    async with database.single() as tx:
        # The driver does not recognize it.
        await tx.execute(sa.text("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"))
    await _work(database, runner)
    assert await _prepared(database) == 0


async def _work(database: Database, runner: Runner) -> None:
    for _ in range(OFTEN):
        await put(database)
        (task,) = await runner.claim(1)
        assert await database.write_single(settle_done, runner.id, [settlement(task)]) == {task.id}


async def _prepared(database: Database) -> int:
    async def count(tx: Transaction) -> int:
        return int(await tx.scalar(sa.text(PREPARED)))

    return await database.read_single(count)
