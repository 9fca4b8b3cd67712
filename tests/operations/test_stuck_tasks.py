"""Operations on tasks whose rows are locked, or that the database refuses to change: each is named, others proceed."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runner.db.database import Database
from runner.errors import DatabaseRefused
from runner.model.stuck_row import StuckCause
from runner.model.task import State
from runner.operations.bulk import BulkOptions, Operation, to_all, to_each
from runner.operations.delay import delay
from runner.operations.edit import edit_all
from runner.operations.edit_values import Changes
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target, with_change_group
from runner.operations.resume import resume
from runner.operations.retry import retry_now
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.operations.undo.undo import undo, undo_all
from tests.conftest import examples, on_postgresql
from tests.store.rows import add_live, add_past, filtered
from tests.triggers import TEXT, accept, refuse

pytestmark = pytest.mark.both_databases

TASKS = 6
BY = Actor("ana", "desk", "relay is back")
subsets = st.sets(st.integers(0, TASKS - 1))
FEW = settings(
    max_examples=examples(2, 5),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


async def put_waiting(database: Database, number: int, key: str) -> int:
    return await add_live(database, "work", key=key)


async def put_blocked(database: Database, number: int, key: str) -> int:
    return await add_live(database, "work", key=key, state="blocked", blocked_by=1)


OPERATIONS: dict[str, tuple[Callable[[Database, int, str], Awaitable[int]], Operation]] = {
    "retry": (put_waiting, partial(retry_now, by=BY)),
    "spread": (put_waiting, partial(retry_now, by=BY, spread=60.0)),
    "delay": (put_waiting, partial(delay, seconds=60.0, by=BY)),
    "terminate": (put_waiting, partial(terminate, by=BY)),
    "edit": (put_waiting, partial(edit_all, changes=Changes(priority=7), by=BY)),
    "unblock": (put_blocked, partial(unblock, by=BY)),
}
operations = pytest.mark.parametrize("name", OPERATIONS)


async def clear(database: Database) -> None:
    async with database.writing() as tx:
        for table in (tx.tables.task, tx.tables.history, tx.tables.audit):
            await tx.execute(sa.delete(table))


async def audited(database: Database) -> set[int]:
    async with database.reading() as tx:
        return {row.task_id for row in await tx.rows(sa.select(tx.tables.audit.c.task_id))}


@pytest.mark.slow
@pytest.mark.representatives(2)
@operations
@FEW
@given(refused=subsets)
async def test_refused_tasks_are_named_and_all_others_change(database: Database, name: str, refused: set[int]) -> None:
    put, operation = OPERATIONS[name]
    await clear(database)
    ids = [await put(database, number, "bad" if number in refused else "good") for number in range(TASKS)]
    bad = {ids[number] for number in refused}
    await refuse(database, "UPDATE")
    try:
        result = await to_each(database, operation, [Target(id) for id in ids])
    finally:
        await accept(database)
    assert {stuck.id: stuck.cause for stuck in result.stuck} == dict.fromkeys(bad, StuckCause.REFUSED)
    assert all(TEXT in stuck.why for stuck in result.stuck)
    assert all("change the trigger" in reason for reason in result.reasons())
    assert set(result.changed) == set(ids) - bad == await audited(database)


@pytest.mark.representatives(2)
@operations
async def test_tasks_that_a_trigger_skips_silently_are_named_and_all_others_change(
    database: Database, name: str
) -> None:
    put, operation = OPERATIONS[name]
    ids = [await put(database, number, "bad" if number == 2 else "good") for number in range(TASKS)]
    await refuse(database, "UPDATE", silently=True)
    result = await to_each(database, operation, [Target(id) for id in ids])
    assert {stuck.id: stuck.cause for stuck in result.stuck} == {ids[2]: StuckCause.REFUSED}
    assert "trigger" in result.reasons()[0]
    assert set(result.changed) == {*ids} - {ids[2]} == await audited(database)


@pytest.mark.representatives(2)
@operations
async def test_tasks_without_their_audit_entries_are_named_and_all_others_change(database: Database, name: str) -> None:
    put, operation = OPERATIONS[name]
    ids = [await put(database, number, "good") for number in range(TASKS)]
    await refuse(database, "INSERT", "task_audit", when=f"{{row}}.task_id = {ids[2]}", silently=True)
    result = await to_each(database, operation, [Target(id) for id in ids])
    assert {stuck.id: stuck.cause for stuck in result.stuck} == {ids[2]: StuckCause.REFUSED}
    assert "rows of task_audit" in result.reasons()[0]
    assert set(result.changed) == {*ids} - {ids[2]} == await audited(database)


async def test_a_pause_that_a_trigger_skips_silently_is_refused(database: Database) -> None:
    target = PauseTarget(PauseKind.QUEUE, "mail")
    await database.write(pause, target, BY)
    await refuse(database, "UPDATE", "task_queue", when="true", silently=True)
    with pytest.raises(DatabaseRefused, match="task_queue, without an error: a trigger"):
        await database.write(resume, target, BY)


@pytest.mark.representatives(2)
@operations
@on_postgresql
async def test_locked_tasks_are_named_with_the_session_and_all_others_change(
    database: Database, migrated_url: str, name: str
) -> None:
    put, operation = OPERATIONS[name]
    ids = [await put(database, number, "good") for number in range(TASKS)]
    with psycopg.connect(migrated_url, application_name="psql") as connection:
        connection.execute("SELECT 1 FROM task WHERE id = ANY(%s) FOR UPDATE", (ids[1:3],))
        result = await to_each(database, operation, [Target(id) for id in ids], BulkOptions(chunk=4))
    assert {stuck.id: stuck.cause for stuck in result.stuck} == dict.fromkeys(ids[1:3], StuckCause.LOCKED)
    assert all("psql" in stuck.why for stuck in result.stuck)
    assert set(result.changed) == {*ids} - {*ids[1:3]} == await audited(database)
    assert str(result) == "4 changed, 2 locked"
    assert f"task {ids[1]} is locked: " in result.reasons()[0]


async def test_a_limit_counts_the_changed_tasks_only(database: Database) -> None:
    ids = [await add_live(database, "work", key="bad" if number == 1 else None) for number in range(4)]
    await refuse(database, "UPDATE", when="{row}.key = 'bad'")
    result = await to_all(database, partial(terminate, by=BY), filtered("handler:work"), BulkOptions(limit=3))
    assert (sorted(result.changed), [stuck.id for stuck in result.stuck]) == ([ids[0], ids[2], ids[3]], [ids[1]])


async def test_an_undo_names_the_changes_that_the_database_refuses(database: Database) -> None:
    ids = [await add_live(database, "work", key="bad" if number == 1 else "good") for number in range(3)]
    by = with_change_group(BY)
    await to_each(database, partial(delay, seconds=60.0, by=by), [Target(id) for id in ids])
    await refuse(database, "UPDATE")
    result = await undo_all(database, partial(undo, by=BY), str(by.change_group))
    assert sorted(result.changed) == [ids[0], ids[2]]
    assert [(stuck.subject, stuck.cause) for stuck in result.stuck] == [("change", StuckCause.REFUSED)]


@on_postgresql
async def test_an_undo_names_the_locked_tasks(database: Database, migrated_url: str) -> None:
    ids = [await add_live(database, "work") for _ in range(3)]
    by = with_change_group(BY)
    await to_each(database, partial(delay, seconds=60.0, by=by), [Target(id) for id in ids])
    with psycopg.connect(migrated_url) as connection:
        connection.execute("SELECT 1 FROM task WHERE id = %s FOR UPDATE", (ids[0],))
        result = await undo_all(database, partial(undo, by=BY), str(by.change_group))
    assert (sorted(result.changed), [stuck.id for stuck in result.stuck]) == (ids[1:], ids[:1])


@on_postgresql
async def test_a_locked_task_of_the_history_is_named(database: Database, migrated_url: str) -> None:
    id = await add_past(database, 10**12, State.DEAD)
    with psycopg.connect(migrated_url) as connection:
        connection.execute("SELECT 1 FROM task_history FOR UPDATE")
        result = await to_each(database, partial(retry_now, by=BY), [Target(id)])
    assert [stuck.id for stuck in result.stuck] == [id]


@on_postgresql
async def test_a_pause_does_not_wait_without_a_bound(database: Database, migrated_url: str) -> None:
    target: Any = PauseTarget(PauseKind.QUEUE, "mail")
    await database.write(pause, target, BY)
    with psycopg.connect(migrated_url) as connection:
        connection.execute("SELECT 1 FROM task_queue FOR UPDATE")
        with pytest.raises(DatabaseRefused, match="lock timeout"):
            await database.write(pause, target, BY)
