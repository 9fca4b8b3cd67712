"""A lock of a whole table, such as that of ALTER TABLE: commands name its session instead of waiting for it."""

import psycopg
import pytest

from runner.cli.exit_codes import Exit
from runner.db import database as databases
from runner.model import stuck_row
from runner.model.task import NewTask
from tests.cli.conftest import Call, Store
from tests.conftest import on_postgresql

pytestmark = on_postgresql

TABLES = ("task", "task_handler", "task_queue", "task_runner")


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "READ_LOCK_SECONDS", 0.3)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("table", TABLES)
def test_why_names_the_session_that_locks_a_table(cli: Call, store: Store, migrated_url: str, table: str) -> None:
    (task,) = store.submit(NewTask("mail.send"))
    with psycopg.connect(migrated_url, application_name="alter") as holder:
        holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        explained = cli("why", task)
        pid = holder.info.backend_pid
    assert explained.code == Exit.LOCKED
    text = " ".join(explained.err.split())
    fact = f"55P03 canceling statement due to lock timeout: table {table} is locked"
    assert text.startswith(f"runner: The database cannot be read: {fact}")
    assert f"process {pid} (alter, " in text
    assert f"pg_terminate_backend({pid})" in text
    assert cli("why", task).code == Exit.OK


def test_why_names_the_session_that_locks_the_queue_of_a_waiting_task(
    cli: Call, store: Store, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_row, "LONG_LOCK", 0.0)
    (task,) = store.submit(NewTask("mail.send", queue="mail"))
    assert cli("limit", "queue", "mail", "--concurrency", 2, "--new").code == Exit.OK
    with psycopg.connect(migrated_url, application_name="psql") as holder:
        holder.execute("SELECT 1 FROM task_queue WHERE name = 'mail' FOR UPDATE")
        causes = cli("why", task, "--json").document["causes"]
        pid = holder.info.backend_pid
    lock = causes[0]
    assert lock["kind"] == "lock"
    assert lock["text"].startswith(f"Row mail of task_queue is locked, held by process {pid} (psql, ")
    assert f"pg_terminate_backend({pid})" in lock["advice"]
    assert not [cause for cause in cli("why", task, "--json").document["causes"] if cause["kind"] == "lock"]
