"""The sessions that hold the row locks of tasks."""

import asyncio

import psycopg
import pytest

from runner.db.database import Database
from runner.db.row_locks import (
    awaited_locks,
    lock_of,
    registry_locks,
    row_locks,
    statement_start,
    table_locks,
)
from runner.model.task import NewTask
from runner.store.submit import submit
from runner.text.stuck_row import lock_text
from tests.databases import database_at
from tests.postgres.logins import logins

on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)


def for_update(session: psycopg.Connection, task: int) -> None:
    session.execute("SELECT 'secret' FROM task WHERE id = %s FOR UPDATE", (task,))


def foreign_key(session: psycopg.Connection, task: int) -> None:
    session.execute("INSERT INTO mine VALUES (%s)", (task,))


def change(session: psycopg.Connection, task: int) -> None:
    session.execute("UPDATE task SET priority = 7 WHERE id = %s", (task,))


@on_postgresql
async def test_each_kind_of_lock_names_its_session(database: Database, migrated_url: str) -> None:
    task = await database.write(submit, NewTask("mail.send"))
    with psycopg.connect(migrated_url, autocommit=True) as owner:
        owner.execute("CREATE TABLE mine (task bigint REFERENCES task (id))")
    for hold in (for_update, foreign_key, change):
        with psycopg.connect(migrated_url, application_name="psql") as session:
            hold(session, task)
            found = (await database.read(row_locks, [task]))[task]
            assert (found.pid, found.application, found.certain) == (session.info.backend_pid, "psql", True)
            assert found.state == "idle in transaction"
            assert found.age is not None
            assert "secret" not in found.statement
            session.rollback()


@on_postgresql
async def test_of_several_sessions_the_oldest_is_named(database: Database, migrated_url: str) -> None:
    task = await database.write(submit, NewTask("mail.send"))
    with psycopg.connect(migrated_url, autocommit=True) as owner:
        owner.execute("CREATE TABLE mine (task bigint REFERENCES task (id))")
    with psycopg.connect(migrated_url) as first, psycopg.connect(migrated_url) as second:
        foreign_key(first, task)
        foreign_key(second, task)
        found = (await database.read(row_locks, [task]))[task]
        assert (found.pid, found.certain) == (first.info.backend_pid, True)
        first.rollback()
        second.rollback()


@on_postgresql
async def test_a_released_savepoint_names_its_session_as_probable(database: Database, migrated_url: str) -> None:
    task = await database.write(submit, NewTask("mail.send"))
    with psycopg.connect(migrated_url, application_name="django") as session:
        session.execute("SAVEPOINT one")
        for_update(session, task)
        session.execute("RELEASE one")
        found = (await database.read(row_locks, [task]))[task]
        assert (found.pid, found.certain) == (session.info.backend_pid, False)
        session.rollback()


@on_postgresql
async def test_a_login_without_rights_gets_pid_application_and_user(database: Database, migrated_url: str) -> None:
    task = await database.write(submit, NewTask("mail.send"))
    with logins(migrated_url) as urls, psycopg.connect(migrated_url, application_name="psql") as session:
        for_update(session, task)
        async with database_at(urls["reader"]) as reader:
            found = (await reader.read(row_locks, [task]))[task]
        assert (found.pid, found.application, found.statement) == (session.info.backend_pid, "psql", "")
        session.rollback()


def test_the_start_of_a_statement_contains_no_texts_of_it() -> None:
    assert statement_start("UPDATE a\n SET b = 'it''s', c = E'x\\'y' WHERE d = 1") == (
        "UPDATE a SET b = '…', c = '…' WHERE d = 1"
    )
    assert statement_start("SELECT 'cut by the ser") == "SELECT '…'"
    assert statement_start("DO $x$ BEGIN END $x$") == "DO '…'"


ROWS = {
    "task_handler": "INSERT INTO task_handler (name) VALUES ('mail')",
    "task_queue": "INSERT INTO task_queue (name) VALUES ('mail')",
    "task_minute": "INSERT INTO task_minute (minute, queue, handler, runner_id) VALUES ('2026-01-01', 'q', 'mail', 1)",
    "task_unique": "INSERT INTO task_unique (handler, unique_key, task_id, scope) VALUES ('h', 'mail', 1, 'forever')",
}
MODES = ("FOR UPDATE", "FOR SHARE")


@on_postgresql
@pytest.mark.parametrize("table", ROWS)
async def test_the_error_of_a_statement_leads_to_the_lock_in_any_table(
    database: Database, migrated_url: str, table: str
) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as owner:
        owner.execute(ROWS[table])
        for mode in MODES:
            with psycopg.connect(migrated_url, application_name="psql") as session:
                session.execute(f"SELECT 1 FROM {table} {mode}")
                owner.execute("SET lock_timeout = '20ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable) as raised:
                    owner.execute(f"DELETE FROM {table}")
                lock = await database.read(lock_of, raised.value)
                assert lock is not None
                assert (lock.table, lock.session.pid) == (table, session.info.backend_pid)
                assert "mail" in lock.key
                assert lock_text(lock).startswith(f"row {lock.key} of {table} is locked, held by process ")
                session.rollback()


@on_postgresql
@pytest.mark.parametrize("table", ["task", "task_history", "task_minute"])
async def test_a_lock_of_a_whole_table_is_named(database: Database, migrated_url: str, table: str) -> None:
    with psycopg.connect(migrated_url) as waiter, psycopg.connect(migrated_url, application_name="psql") as session:
        session.execute(f"LOCK TABLE {table} IN SHARE MODE")
        waiter.execute("SET lock_timeout = '20ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable) as raised:
            waiter.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        for lock in (await database.read(lock_of, raised.value), *(await database.read(table_locks))[:1]):
            assert lock is not None
            assert (lock.table, lock.key, lock.mode) == (table, "", "ShareLock")
            assert lock.session.pid == session.info.backend_pid
        session.rollback()


@on_postgresql
async def test_a_lock_that_a_session_waits_for_is_named_with_the_first_session_of_the_queue(
    database: Database, migrated_url: str
) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as owner:
        owner.execute(ROWS["task_minute"])
    waiters = [await psycopg.AsyncConnection.connect(migrated_url, autocommit=True) for _ in range(2)]
    with psycopg.connect(migrated_url, application_name="psql") as session:
        session.execute("SELECT 1 FROM task_minute FOR UPDATE")
        waits = [asyncio.ensure_future(each.execute("DELETE FROM task_minute")) for each in waiters]
        async with asyncio.timeout(90):
            while not (locks := await database.read(awaited_locks)):
                await asyncio.sleep(0.01)
        assert [(each.table, each.session.pid) for each in locks] == [("task_minute", session.info.backend_pid)]
        assert "mail" in locks[0].key
        session.rollback()
        await asyncio.gather(*waits)
    for each in waiters:
        await each.close()


@on_postgresql
async def test_the_locked_rows_of_the_registries_are_found_without_a_session_that_waits(
    database: Database, migrated_url: str
) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as owner:
        owner.execute(ROWS["task_queue"])
        owner.execute(ROWS["task_handler"])
    with psycopg.connect(migrated_url, application_name="psql") as session:
        assert await database.read(registry_locks) == []
        session.execute("SELECT 1 FROM task_queue FOR UPDATE")
        locks = await database.read(registry_locks)
        assert [(each.table, each.key, each.session.pid) for each in locks] == [
            ("task_queue", "mail", session.info.backend_pid)
        ]
        session.rollback()
