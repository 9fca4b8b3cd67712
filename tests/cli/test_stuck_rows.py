"""Stuck rows as operators see them: in `check`, `why`, `show`, `runners` and JSON, from another process."""

import re
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
import sqlalchemy as sa

from runner.cli.exit_codes import Exit
from runner.db import connect, errors
from runner.db.database import Database
from runner.db.transaction import Transaction, clock
from runner.model.stuck_row import BlockingSession, StuckCause, StuckRow, StuckVerb, stored_stuck
from runner.model.task import NewTask
from runner.policy.breaker import Breaker
from runner.store.registration import Identity, register
from tests.cli.conftest import Call, Store
from tests.cli.test_inspect import EVIL, FORBIDDEN
from tests.conftest import on_postgresql, on_sqlite
from tests.engine.locks import locked_by_program
from tests.store.runners import Runner

SESSION = BlockingSession(4711, "psql", "mai", "idle in transaction", 312.0, "SELECT 1 FROM task FOR UPDATE")


async def enter(database: Database) -> int:
    """Register a runner that claims nothing."""
    return (await Runner.enter(database, "mail.send")).id


def plant(store: Store, verb: StuckVerb, session: BlockingSession | None, fact: str, number: int = 1) -> int:
    """A task whose row a live runner could not change; returns its id."""
    store.submit(*(NewTask("mail.send") for _ in range(number)))
    is_claimed = verb != "claim"
    runner = store.claim("mail.send") if is_claimed else store.use(enter)
    tasks = [task["id"] for task in store.tasks()]
    since = datetime.now(UTC) - timedelta(seconds=90)
    cause = StuckCause.LOCKED if session else StuckCause.REFUSED
    rows = [StuckRow(task, "mail.send", verb, cause, fact, since, 4, session) for task in tasks]

    async def write(tx: Transaction) -> None:
        table = tx.tables.runner
        await tx.execute(sa.update(table).where(table.c.id == runner).values(stuck=stored_stuck(rows)))

    store.write(write)
    return int(tasks[0])


@pytest.mark.one_database
@pytest.mark.both_databases
def test_each_command_names_a_locked_row_and_its_session(cli: Call, store: Store) -> None:
    task = plant(store, "settle", SESSION, "55P03 lock not available")
    holder = (
        "55P03 lock not available, held by process 4711 (psql, user mai, idle in transaction, "
        "transaction open for 5m12s, last statement: SELECT 1 FROM task FOR UPDATE)"
    )
    step = "nd that transaction, or run SELECT pg_terminate_backend(4711), which rolls back its changes"
    name = f"task {task} (mail.send): {holder}: its outcome is not written, tried 4 times"
    checked = cli("check")
    assert checked.code == Exit.LOCKED
    assert cli("check", "--max-locked", "1h").code == Exit.OK
    text = " ".join(checked.out.split())
    assert f"✗ wrong rows {name}" in text
    assert f"E{step}. More: runner why {task}" in text
    found = [each for each in cli("check", "--json").document["checks"] if each["topic"] == "rows"]
    assert [(each["verdict"], each["found"]) for each in found] == [("wrong", name)]
    explained = " ".join(cli("why", task).out.split())
    assert f"Task {task} mail.send has ended, and its outcome is not written." in explained
    tried = re.escape(f"Its row is locked: {holder}. So its outcome is not written, tried 4 times in ")
    assert re.search(rf"{tried}\d+m\d+s", explained)
    assert "if it ends before, the task runs again after a rescue." in explained
    assert f"-> e{step}" in explained
    cause = cli("why", task, "--json").document["causes"][0]
    assert (cause["kind"], cause["advice"]) == ("stuck", f"e{step}")
    shown = " ".join(cli("show", task).out.split())
    assert f"locked {holder}; its outcome is not written" in shown
    assert "running ended, its outcome is not written" in shown
    assert cli("show", task, "--json").document["stuck"][0]["blocker"]["pid"] == 4711
    listed = " ".join(cli("runners").out.split())
    assert "alive, 1 stuck row" in listed
    assert f"{name}. E{step}." in listed
    (runner,) = cli("runners", "--json").document["runners"]
    assert (runner["stuck"]["total"], runner["stuck"]["rows"][0]["task"]) == (1, task)


@pytest.mark.slow
def test_a_refused_row_that_is_not_claimed_is_named(cli: Call, store: Store) -> None:
    task = plant(store, "claim", None, "P0001 audit says no (function audit)")
    name = f"task {task} (mail.send): P0001 audit says no (function audit): it is not claimed, tried 4 times"
    checked = cli("check")
    assert checked.code == Exit.REFUSED
    assert cli("check", "--max-refused", 1).code != Exit.REFUSED
    assert name in " ".join(checked.out.split())
    explained = " ".join(cli("why", task).out.split())
    assert "1. Its row is refused: P0001 audit says no (function audit). So it is not claimed" in explained
    assert "-> change the trigger" in explained
    assert "or the row; runners try again at least once a minute" in explained


def test_many_stuck_rows_are_counted(cli: Call, store: Store) -> None:
    plant(store, "settle", None, "P0001 audit says no", number=30)
    found = [each["found"] for each in cli("check", "--json").document["checks"] if each["topic"] == "rows"]
    assert len(found) == 6
    assert found[-1] == "25 more rows of tasks are locked or refused"


def test_no_text_of_a_stuck_row_reaches_the_terminal_unsanitized(cli: Call, store: Store) -> None:
    session = SESSION._replace(application=EVIL, user=EVIL, state=EVIL, statement=EVIL, prepared="")
    task = plant(store, "settle", session, EVIL)
    for command in (("check",), ("why", task), ("why", task, "--json"), ("show", task), ("runners",)):
        result = cli(*command)
        assert not FORBIDDEN.search(result.out + result.err), command


@pytest.mark.slow
@pytest.mark.one_database
@pytest.mark.both_databases
def test_the_stuck_row_of_a_task_that_has_ended_is_not_named(cli: Call, store: Store) -> None:
    task = plant(store, "rescue", None, "P0001 audit says no")
    assert cli("check").code == Exit.REFUSED

    async def end(tx: Transaction) -> None:
        await tx.execute(sa.update(tx.tables.task).where(tx.tables.task.c.id == task).values(state="waiting"))

    store.write(end)
    assert "audit says no" not in cli("check").out
    assert "audit says no" not in cli("why", task).out
    assert cli("runners", "--json").document["runners"][0]["stuck"] == {"rows": [], "total": 0}


def test_a_row_that_is_stuck_on_two_runners_counts_once(cli: Call, store: Store) -> None:
    plant(store, "rescue", None, "P0001 audit says no", number=6)
    second = store.use(enter)

    async def copy(tx: Transaction) -> None:
        table = tx.tables.runner
        text = sa.select(table.c.stuck).where(table.c.id != second).scalar_subquery()
        await tx.execute(sa.update(table).where(table.c.id == second).values(stuck=text))

    store.write(copy)
    found = [each["found"] for each in cli("check", "--json").document["checks"] if each["topic"] == "rows"]
    assert len(found) == 6
    assert found[-1] == "1 more row of a task is locked or refused"


def test_a_stuck_row_is_the_only_cause_of_a_task_that_nothing_else_blocks(cli: Call, store: Store) -> None:
    task = plant(store, "claim", SESSION, "55P03 lock not available")
    assert [cause["kind"] for cause in cli("why", task, "--json").document["causes"]] == ["stuck"]


HELD = {
    "SELECT 1 FROM task_handler FOR UPDATE": "row mail.send of task_handler is locked, held by process ",
    "SELECT 1 FROM task_runner FOR SHARE": "of task_runner is locked, held by process ",
    "SELECT 1 FROM task_queue FOR UPDATE": "row default of task_queue is locked, held by process ",
    "LOCK TABLE task IN SHARE MODE": "table task is locked in mode ShareLock, held by process ",
    "LOCK TABLE task_runner": "table task_runner is locked in mode AccessExclusiveLock, held by process ",
    "LOCK TABLE task_history": "table task_history is locked in mode AccessExclusiveLock, held by process ",
}


@pytest.mark.slow
@pytest.mark.representatives(2)
@on_postgresql
@pytest.mark.parametrize("statement", HELD)
def test_a_check_names_each_lock_of_a_row_or_a_table_and_its_session(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr("runner.model.stuck_row.LONG_LOCK", 0.0)
    store.submit(NewTask("mail.send"))
    store.use(enter)
    cli("pause", "default")
    assert cli("check").code == Exit.OK
    with psycopg.connect(store.url, application_name="psql") as session:
        session.execute(statement)
        checked = cli("check")
        text = " ".join(checked.out.split())
        assert (checked.code, f"{HELD[statement]}{session.info.backend_pid} (psql, user postgres, " in text) == (
            Exit.LOCKED,
            True,
        )
        assert f"End that transaction, or run SELECT pg_terminate_backend({session.info.backend_pid})" in text
        assert cli("check", "--max-locked", "1h").code == Exit.OK
        session.rollback()
    assert cli("check").code == Exit.OK


@on_postgresql
def test_a_foreign_key_to_a_row_of_a_registry_is_no_finding_and_delays_no_operation(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.model.stuck_row.LONG_LOCK", 0.0)
    store.use(enter)
    cli("pause", "default")
    with psycopg.connect(store.url) as session:
        for table in ("task_queue", "task_handler", "task_runner"):
            session.execute(f"SELECT FROM {table} FOR KEY SHARE")
        checked = cli("check")
        assert (checked.code, " is locked" in checked.out) == (Exit.OK, False)
        for words in ("resume default", "pause default", "limit queue default --concurrency 3", "runners drain 1"):
            answer = cli(*words.split())
            assert answer.code == Exit.OK, answer.out + answer.err
        session.rollback()


async def fill_registries(tx: Transaction) -> None:
    """A runner whose handler has a breaker, and two queues, of which one is paused."""
    breakers = {"mail.send": Breaker("10/min").columns}
    await register(tx, Identity("here", 1, "test", ["mail.send"], 10, breakers=breakers), 3600.0)
    rows = [{"name": "mail", "paused_at": None}, {"name": "letters", "paused_at": await clock(tx)}]
    await tx.execute(sa.insert(tx.tables.queue).values(rows))


COMMANDS = {
    "limit queue mail --concurrency 3": "row mail of task_queue",
    "limit handler mail.send --rate 5/s": "row mail.send of task_handler",
    "pause mail": "row mail of task_queue",
    "pause --handler mail.send": "row mail.send of task_handler",
    "resume letters": "row letters of task_queue",
    "limit handler mail.send --breaker open": "row mail.send of task_handler",
    "schedules edit nightly --queue mail": "row nightly of task_schedule",
    "schedules pause nightly": "row nightly of task_schedule",
    "schedules run nightly": "row nightly of task_schedule",
    "schedules delete nightly": "row nightly of task_schedule",
    "runners drain 1": "row 1 of task_runner",
    "runners resize 1 --concurrency 3": "row 1 of task_runner",
}
"""Commands that change the row of a registry, and that row."""


@pytest.mark.representatives(2)
@on_postgresql
@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_names_the_session_that_locks_the_row_of_a_registry(
    cli: Call, store: Store, migrated_url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "MAX_ATTEMPTS", 2)  # of half a second each
    place = COMMANDS[words]
    store.write(fill_registries)
    assert cli("schedules", "add", "nightly", "mail.send", "--cron", "0 3 * * *").code == Exit.OK
    with psycopg.connect(migrated_url, application_name="psql") as session:
        session.execute(f"SELECT FROM {place.split()[-1]} FOR UPDATE")
        answer = cli(*words.split())
        assert answer.code == Exit.LOCKED, answer.out + answer.err
        line, pid = " ".join(answer.err.split()), session.info.backend_pid
        assert line.startswith("runner: Nothing was changed: 55P03 canceling statement due to lock timeout: ")
        assert f"{place} is locked, held by process {pid} (psql, user " in line
        assert line.endswith(f"or run SELECT pg_terminate_backend({pid}), which rolls back its changes, then retry.")
        session.rollback()
    assert cli(*words.split()).code == Exit.OK


@pytest.mark.slow
@on_sqlite
def test_commands_and_the_check_name_the_program_that_locks_a_file(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.2)
    (id,) = store.submit(NewTask("a.b"))
    with locked_by_program(store.url) as fact:
        for words in (("pause", "mail"), ("terminate", id), ("submit", "a.b"), ("check",)):
            answer = cli(*words)
            text = " ".join(f"{answer.out} {answer.err}".split())
            assert (fact in text, answer.code) == (True, Exit.LOCKED if words == ("check",) else Exit.DATABASE), text
    assert cli("pause", "mail").code == Exit.OK
