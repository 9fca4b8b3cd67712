"""An application reads the status of its tasks and changes them: cancel, retry, reschedule, find."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context, TaskHandle, find, find_async, handle, handler
from runner.client.operations import author_name
from runner.db.database import Database
from runner.engine.runner import Engine
from runner.errors import InvalidEdit, InvalidTask, TaskCancelled, TaskFailed, TaskNotFound, TaskUnchanged, WouldBlock
from runner.model.task import State
from runner.operations.results import Actor
from runner.operations.undo.undo import undo
from runner.settings import Settings
from runner.urls import parse_url
from tests.client.external.applications import with_driver
from tests.engine.harness import QUICK, at_work, until

pytestmark = [pytest.mark.both_databases, pytest.mark.usefixtures("connected")]
WAIT_SECONDS = 90


@pytest.fixture
def export(own_handlers: None) -> Any:
    """A handler that reports its progress, and runs until it is cancelled or fails."""

    @handler("test.export", retry="never")
    async def export(ctx: Context, fails: bool = False) -> None:
        ctx.progress(3, 10, unit="rows")
        if fails:
            raise LookupError("no such shop")
        await asyncio.sleep(WAIT_SECONDS)

    return export


def engine(url: str, export: Any) -> Engine:
    return Engine(Settings(url=parse_url(url), **QUICK), {export.name: export})


async def entries(database: Database) -> list[Any]:
    audit = database.tables.audit.c
    async with database.reading() as tx:
        return [*await tx.rows(sa.select(audit.id, audit.verb, audit.operator, audit.reason).order_by(audit.id))]


async def test_the_status_of_a_task_follows_its_life(export: Any, migrated_url: str) -> None:
    task = await export.options(delay="1h").submit_async()
    waiting = await task.status_async()
    assert (waiting.state, waiting.attempt, waiting.progress, waiting.finished) == (State.WAITING, 0, None, False)
    assert (waiting.run_at - waiting.submitted_at, waiting.claimed_at) == (timedelta(hours=1), None)
    await task.retry_async()
    async with at_work(engine(migrated_url, export)):

        async def has_progress() -> bool:
            return (await task.status_async()).progress is not None

        await until(has_progress)
        running = await task.status_async()
        assert (running.state, running.attempt, running.finished_at) == (State.RUNNING, 1, None)
        assert (running.progress.done, running.progress.total, running.progress.unit) == (3, 10, "rows")
        assert running.claimed_at is not None
        await task.cancel_async("no longer needed")
        with pytest.raises(TaskCancelled, match=r"terminated by .+: no longer needed"):
            await task.wait(timeout=WAIT_SECONDS)
    cancelled = await task.status_async()
    assert (cancelled.state, cancelled.finished, cancelled.handler) == (State.CANCELLED, True, "test.export")
    assert cancelled.finished_at >= cancelled.claimed_at
    assert (await asyncio.to_thread(task.status)) == cancelled


async def test_the_status_of_a_dead_task_has_its_error(export: Any, migrated_url: str) -> None:
    task = await export.submit_async(fails=True)
    async with at_work(engine(migrated_url, export)):
        with pytest.raises(TaskFailed):
            await task.wait(timeout=WAIT_SECONDS)
    status = await task.status_async()
    assert (status.state, status.error) == (State.DEAD, "LookupError: no such shop")


async def test_a_running_task_that_is_to_stop_shows_it(export: Any, database: Database) -> None:
    task = await export.submit_async()
    async with database.writing() as tx:
        rows = database.tables.task
        await tx.execute(sa.update(rows).values(state=State.RUNNING, runner_id=1, cancel_requested=True))
    assert (await task.status_async()).cancel_requested
    with pytest.raises(TaskUnchanged, match=r"its termination is already requested"):
        await task.cancel_async()


async def test_the_audit_log_names_the_author_and_the_reason(
    export: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/srv/shop/.venv/bin/gunicorn"])
    task = await export.submit_async()
    await task.reschedule_async("10m", "the bank is closed", by="ana@example.org")
    await task.cancel_async("the order was cancelled", by="ana@example.org")
    await task.retry_async()
    log = await entries(database)
    assert [(row.verb, row.reason) for row in log] == [
        ("edit", "the bank is closed"),
        ("terminate", "the order was cancelled"),
        ("retry_now", None),
    ]
    assert [row.operator for row in log[:2]] == ["ana@example.org via gunicorn"] * 2
    assert log[2].operator.endswith(" via gunicorn")


async def test_a_change_by_an_application_can_be_undone(export: Any, database: Database) -> None:
    task = await export.submit_async()
    await task.cancel_async()
    (entry,) = await entries(database)
    await database.write(undo, [entry.id], Actor("ops", "desk"))
    assert (await task.status_async()).state is State.WAITING


async def test_a_task_is_rescheduled_to_a_time_or_by_a_delay(export: Any) -> None:
    task = await export.submit_async()
    due = datetime(2100, 1, 1, tzinfo=UTC)
    await task.reschedule_async(due)
    assert (await task.status_async()).run_at == due
    await asyncio.to_thread(task.reschedule, timedelta(hours=2))
    status = await task.status_async()
    assert timedelta(hours=2) <= status.run_at - status.submitted_at < timedelta(hours=2, seconds=WAIT_SECONDS)
    with pytest.raises(InvalidEdit, match="time zone"):
        await task.reschedule_async(due.replace(tzinfo=None))


async def test_a_change_that_does_not_apply_is_refused_with_the_reason(export: Any) -> None:
    task = await export.submit_async()
    await asyncio.to_thread(task.cancel)
    with pytest.raises(TaskUnchanged, match=rf"Task {task} was not changed: it is cancelled, not waiting"):
        await task.cancel_async()
    with pytest.raises(TaskUnchanged, match="it is cancelled: only an edit that retries it"):
        await task.reschedule_async("1m")
    await asyncio.to_thread(task.retry)
    assert (await task.status_async()).state is State.WAITING


async def test_a_status_in_a_transaction_is_one_statement(export: Any, database: Database, migrated_url: str) -> None:
    task = await export.submit_async()
    own = sa.create_engine(with_driver(migrated_url, "psycopg" if database.dialect.row_locks else "pysqlite"))
    sent: list[str] = []
    sa.event.listen(own, "before_cursor_execute", lambda _connection, _cursor, statement, *_: sent.append(statement))
    with own.connect() as connection:
        connection.begin()
        assert task.status(tx=connection).state is State.WAITING
    own.dispose()
    assert len([statement for statement in sent if not statement.startswith("BEGIN")]) == 1


@pytest.mark.parametrize("call", ["status_async", "cancel_async", "retry_async"])
@pytest.mark.parametrize("id", [4711, 0, 2**63, 10**30])
async def test_an_unknown_task_is_not_found(call: str, id: int) -> None:
    with pytest.raises(TaskNotFound, match=f"Task {id} does not exist"):
        await getattr(handle(id), call)()


@pytest.mark.parametrize("call", ["status", "cancel", "retry"])
async def test_a_blocking_call_on_an_event_loop_is_rejected(call: str) -> None:
    with pytest.raises(WouldBlock, match=f"await {call}_async"):
        getattr(handle(17), call)()


def test_a_handle_is_made_from_an_id() -> None:
    assert handle("17") == handle(17) == TaskHandle(17)
    with pytest.raises(InvalidTask, match="a task id is a whole number"):
        handle("seventeen")


async def test_the_newest_task_of_a_key_is_found_live_or_finished(export: Any) -> None:
    assert await find_async(export, "user-7") is None
    first = await export.options(key="user-7").submit_async()
    second = await export.options(key="user-7").submit_async()
    await export.options(key="user-8").submit_async()
    assert await find_async(export, "user-7") == second
    await second.cancel_async()
    assert await find_async("test.export", "user-7") == second
    assert await asyncio.to_thread(find, "test.export", "user-7") == second > first
    assert await find_async("test.other", "user-7") is None


@pytest.mark.parametrize(
    ("argument", "program"),
    [("/srv/bin/uvicorn", "uvicorn"), ("/lib/flask/__main__.py", "flask"), ("-c", "python"), ("", "python")],
)
def test_the_author_names_the_program(argument: str, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    assert author_name("ana") == f"ana via {program}"
