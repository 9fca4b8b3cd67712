"""Stuck rows: set apart with growing pauses, named in the log, and isolated in a batch."""

import sqlite3
from collections.abc import Sequence

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.db.database import Database
from runner.db.errors import row_fault
from runner.db.halves import write_in_halves
from runner.db.server_connection import StatementCancelled
from runner.engine.stuck_rows import StuckRows
from runner.errors import DatabaseRefused, DatabaseUnavailable
from runner.model.stuck_row import BlockingSession, RowFault, RowPlace, StuckCause, read_stuck, stored_stuck
from tests.conftest import on_postgresql

REFUSED = RowFault(StuckCause.REFUSED, "P0001 audit says no")
LOCKED = RowFault(StuckCause.LOCKED, "55P03 could not obtain lock on row")
SESSION = BlockingSession(4711, "psql", "mai", "idle in transaction", 12.5, "SELECT '…' FOR UPDATE")


@given(st.integers(1, 64), st.data())
async def test_halves_write_all_items_but_the_refused_ones(size: int, data: st.DataObject) -> None:
    refused = data.draw(st.sets(st.integers(0, size - 1)))
    written, apart, calls = set[int](), dict[int, RowFault](), 0

    async def write(items: Sequence[int]) -> None:
        nonlocal calls
        calls += 1
        if refused.intersection(items):
            raise DatabaseRefused(why="P0001 audit says no")
        written.update(items)

    await write_in_halves(range(size), write, apart.__setitem__)
    assert written == set(range(size)) - refused
    assert apart == dict.fromkeys(refused, REFUSED)
    assert calls <= 1 + 2 * len(refused) * size.bit_length()


async def test_halves_end_when_the_database_does_not_answer() -> None:
    async def write(items: Sequence[int]) -> None:
        raise DatabaseUnavailable(url="here", why="connection refused")

    with pytest.raises(DatabaseUnavailable):
        await write_in_halves([1, 2], write, lambda *_: None)


def test_a_refused_row_is_logged_once_and_rests_until_an_equal_one_is_free(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "runner.stuck")
    stuck = StuckRows()
    for _ in range(3):
        stuck.set_apart("settle", 1, "mail.send", REFUSED)
        stuck.set_apart("settle", 2, "mail.send", REFUSED)
    assert [record.message.split(":")[0] for record in caplog.records] == ["task 1 (mail.send)", "task 2 (mail.send)"]
    assert "P0001 audit says no" in caplog.text
    assert stuck.resting("settle") == {1, 2}
    assert not stuck.resting("claim")
    assert stuck.tries("settle", 2) == 3
    stuck.free("settle", [1])
    assert not stuck.resting("settle")
    assert [row.task for row in stuck.rows()] == [2]


def test_a_lock_is_logged_with_its_session_when_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "runner.stuck")
    stuck = StuckRows()
    stuck.set_apart("settle", 1, "mail.send", LOCKED)
    assert not caplog.records
    assert not stuck.rows()
    stuck.set_apart("settle", 1, "mail.send", LOCKED)
    stuck.set_apart("settle", 1, "mail.send", LOCKED, SESSION)
    assert "process 4711 (psql, user mai, idle in transaction, transaction open for 12s" in caplog.text
    stuck.free("settle", [1])
    assert "no longer locked" in caplog.records[-1].message
    assert not len(stuck)


@on_postgresql
async def test_a_lock_of_another_table_is_named_with_the_next_heartbeat(
    database: Database, migrated_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No verb but the settle looks for the session."""
    stuck = StuckRows()
    with psycopg.connect(migrated_url) as session:
        session.execute("INSERT INTO task_handler (name) VALUES ('mail')")
        session.commit()
        ((address,),) = session.execute("SELECT ctid::text FROM task_handler FOR UPDATE").fetchall()
        fault = LOCKED._replace(place=RowPlace("task_handler", address))
        for _ in range(5):
            stuck.set_apart("resolve", 1, "mail", fault)
            await stuck.store(database, 1)
        (row,) = stuck.rows()
        assert (row.fact, row.blocker and row.blocker.pid) == (
            f"{LOCKED.fact} on row mail of task_handler",
            session.info.backend_pid,
        )
    assert [" on row mail of task_handler, held by process " in each.message for each in caplog.records] == [0, 1]


def test_other_processes_read_the_stored_rows_and_survive_a_foreign_text() -> None:
    stuck = StuckRows()
    for task in range(30):
        stuck.set_apart("claim", task, "mail.send", REFUSED)
    rows = stuck.rows()
    report = read_stuck(stored_stuck(rows))
    assert (report.rows, report.total) == (tuple(rows[:20]), 30)
    for text in ("[", "[1]", '{"rows": [7, {"task": "x"}]}', '{"rows": 3}', "null", '{"rows": [{"since": "1"}]}'):
        assert read_stuck(text).rows == ()


def test_faults_of_rows_differ_from_an_unavailable_database() -> None:
    file = sqlite3.connect(":memory:")
    file.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    file.execute("CREATE TRIGGER no BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'audit says no'); END")
    with pytest.raises(sqlite3.IntegrityError) as refusal:
        file.execute("INSERT INTO t VALUES (1)")
    assert row_fault(refusal.value) == RowFault(StuckCause.REFUSED, "SQLITE_CONSTRAINT_TRIGGER audit says no")
    file.close()
    assert row_fault(DatabaseUnavailable(url="here", why="connection refused")) is None
    assert row_fault(StatementCancelled("no answer for 5.7 s")) is None
