"""Behind a pooler that shares sessions between transactions, session state would leak to other clients."""

from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.needs import Needs, needs
from runner.db.transaction import Transaction
from runner.model.outcome import Done, Retry
from runner.queries.counts import counts
from runner.store.claim.survey import survey
from runner.store.rescue import any_lost, rescue
from tests.postgres.proxy import Proxy
from tests.store.runners import Runner, settle_done, settlement
from tests.store.table import put

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

KEPT = {
    "prepared statements": "SELECT count(*) FROM pg_prepared_statements",
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
    await pooled.write(survey)
    await pooled.write(any_lost, runner.rescuer, 1.0)
    await pooled.write(rescue, runner.rescuer, 1.0)
    await pooled.read(counts)
    assert await pooled.read(_kept_by_prepared) == dict.fromkeys(KEPT, 0)
    for opened, settings in ((pooled.reading, 1), (pooled.writing, 0)):  # a read bounds its waits, up to its end
        async with opened() as tx:
            assert await _kept(tx) == dict.fromkeys(KEPT, 0) | {"settings": settings}


async def test_only_connections_for_single_statements_prepare(database: Database, runner: Runner) -> None:
    await _work(database, runner)
    assert await _prepared(database) > 0
    for opened, settings in ((database.reading, 1), (database.writing, 0)):
        async with opened() as tx:
            assert [await tx.scalar(sa.text(KEPT[name])) for name in ("prepared statements", "settings")] == [
                0,
                settings,
            ]


async def test_the_setting_turns_prepared_statements_off(migrated_url: str) -> None:
    unprepared = Database.open(migrated_url, prepares=False)
    await _work(unprepared, await Runner.enter(unprepared))
    kept = await unprepared.read(_kept_by_prepared)
    assert {kept[name] for name in ("prepared statements", "settings")} == {0}
    await unprepared.dispose()


async def test_lost_prepared_statements_are_not_prepared_again(database: Database, runner: Runner) -> None:
    await _work(database, runner)
    await database.read(_deallocate)
    await _work(database, runner)
    assert await _prepared(database) == 0


async def _work(database: Database, runner: Runner) -> None:
    for _ in range(OFTEN):
        await put(database)
        (task,) = await runner.claim(1)
        assert await database.write(settle_done, runner.id, [settlement(task)]) == {task.id}


async def _kept(tx: Transaction) -> dict[str, int]:
    return {name: await tx.scalar(sa.text(question)) for name, question in KEPT.items()}


@needs(Needs.PREPARED)
async def _kept_by_prepared(tx: Transaction) -> dict[str, int]:
    """The same on a connection for prepared statements."""
    return await _kept(tx)


@needs(Needs.PREPARED)
async def _deallocate(tx: Transaction) -> None:
    """Lose the prepared statements of a connection, in a way that its driver does not recognize."""
    await tx.execute(sa.text("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"))


async def _prepared(database: Database) -> int:
    return (await database.read(_kept_by_prepared))["prepared statements"]
