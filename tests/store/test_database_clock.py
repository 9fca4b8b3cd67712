"""Every stored time is one of the database's clock, although the clock of the process is a day behind it."""

import sqlite3
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction, clock
from runner.db.types import Instant
from runner.model.outcome import Cancelled, Dead, Done, Failure, Outcome, Release, Retry, Snooze
from runner.settings import Settings
from runner.store.claim.plain import HandlerDefaults
from runner.store.heartbeat import LoopBlock, heartbeat, renew
from runner.store.retention import prune, retention_of
from tests.chaos.clock import SteppedClock, shift_sqlite
from tests.store.runners import Runner
from tests.store.table import expire, put

AHEAD = timedelta(days=1)
NEAR = timedelta(minutes=30)


DEFAULTS = """
    DO $$ DECLARE default_ record; BEGIN
        FOR default_ IN
            SELECT table_name, column_name, column_default FROM information_schema.columns
            WHERE table_schema = 'public' AND column_default LIKE '%statement_timestamp()%'
        LOOP
            EXECUTE format('ALTER TABLE %I ALTER %I SET DEFAULT %s', default_.table_name, default_.column_name,
                           replace(default_.column_default, 'pg_catalog.statement', 'stepped.statement'));
        END LOOP;
    END $$
"""
"""The defaults of PostgreSQL's columns kept the function that they found when they were created."""


@pytest.fixture
async def ahead(migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A database whose clock is a day ahead of this process."""
    monkeypatch.setattr(sqlite3, "connect", sqlite3.connect)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", sqlite3.connect)
    if migrated_url.startswith("sqlite"):
        shift_sqlite(AHEAD.total_seconds)
    with SteppedClock(migrated_url, tmp_path / "clock") as stepped:
        stepped.step(AHEAD.total_seconds())
        if stepped.differs:
            with psycopg.connect(migrated_url, autocommit=True) as server:
                server.execute(DEFAULTS)
        database = Database.open(migrated_url)
        yield database
        await database.dispose()


async def stored_times(tx: Transaction) -> dict[str, list[datetime]]:
    """All times of all tables, by table and column."""
    times: dict[str, list[datetime]] = {}
    for table in tx.tables.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, Instant):
                rows = await tx.rows(sa.select(column).where(column.is_not(None)))
                times[f"{table.name}.{column.name}"] = [row[0] for row in rows]
    return times


async def live_through(database: Database) -> None:
    """Take tasks through every verb of a runner."""
    runner = await Runner.enter(database, terms=HandlerDefaults(3, 300.0))
    failure = Failure("ValueError", "no luck")
    outcomes: tuple[Outcome, ...] = (
        Done(),
        Retry(failure=failure),
        Retry("10m", failure=failure),
        Dead(failure=failure),
        Cancelled(),
        Snooze(60.0, "later"),
        Release("stopped"),
    )
    for _ in outcomes:
        await put(database)
    for delay in (0.0, 600.0):
        await put(database, delay=delay, expires=600.0)
    claimed = await runner.claim(len(outcomes))
    for task, outcome in zip(claimed, outcomes, strict=True):
        await runner.end(task, outcome)
    await database.write(heartbeat, runner.id, 60.0, 1, 60.0)

    blocked = await Runner.enter(database, host="blocked")

    async def renews(tx: Transaction) -> None:
        await tx.follow(renew(tx, blocked.id, 60.0, LoopBlock(12.0)))

    await database.write(renews)
    lost = await Runner.enter(database, host="lost")
    await put(database, priority=9)
    assert await lost.claim(1)
    await expire(database, lost.id)
    assert await runner.rescue()
    await database.write(prune, retention_of(Settings()))


async def test_every_verb_writes_times_of_the_databases_clock(ahead: Database) -> None:
    await live_through(ahead)
    async with ahead.reading() as tx:
        now, times = await clock(tx), await stored_times(tx)
    assert now > datetime.now(now.tzinfo) + AHEAD - NEAR, "the clocks do not differ"
    strange = {name: values for name, values in times.items() if any(abs(value - now) > NEAR for value in values)}
    assert strange == {}
    assert len(times["task_runner.lease_until"]) == 2, "a rescue took a renewed lease for an expired one"
    missing = {"task_runner.lease_until", "task.run_at", "task_attempt.ended_at", "task_history.finished_at"}
    assert all(times[name] for name in missing), "the verbs wrote nothing"
