"""Unique keys of tasks that run again."""

import asyncio
from typing import Any

import pytest

from runner.db.database import Database
from runner.model.task import OnDuplicate, Scope, State
from runner.operations.preview import preview
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.retry import retry_now
from runner.operations.terminate import terminate
from runner.operations.undo.undo import undo
from runner.queries.audit import audit
from runner.store.submit import submit_with_result
from tests.conftest import on_postgresql
from tests.store.rows import add_past, filtered, until_locked
from tests.store.runners import Runner
from tests.store.table import count, live
from tests.store.unique_tasks import key_row, let_time_pass, once, put

BY = Actor("ana", "desk")
HOUR: dict[str, Any] = {"scope": Scope.FOR_A_TIME, "seconds": 3_600.0}


async def end(database: Database, *ids: int) -> None:
    await database.write(terminate, [Target(id) for id in ids], BY)


async def again(database: Database, *ids: int) -> Result:
    return await database.write(retry_now, [Target(id) for id in ids], BY)


async def dead(database: Database, key: str = "k", **options: Any) -> int:
    """A task that had a key and has ended."""
    (id,) = (await put(database, once(key, **options))).ids
    await end(database, id)
    return id


async def test_a_retried_task_holds_its_key_again(database: Database) -> None:
    first = await dead(database)
    assert (await again(database, first)).changed == [first]
    assert (await put(database, once())).ids == [first]


async def test_a_task_whose_key_another_holds_is_skipped_as_previewed(database: Database) -> None:
    first = await dead(database)
    (second,) = (await put(database, once())).ids
    other = await dead(database, "other")
    before = await database.read(preview, filtered("state:cancelled"), "retry_now")
    assert (before.eligible, dict(before.skipped)) == (1, {"another task has its unique key": 1})
    answer = await again(database, first, other)
    assert (answer.changed, answer.skipped) == ([other], [Skipped(first, f"task {second} has its unique key")])
    assert await live(database, first) is None
    await end(database, second)
    assert (await again(database, first)).changed == [first]


async def test_of_two_tasks_with_one_key_the_later_is_retried(database: Database) -> None:
    first, second = await dead(database), await dead(database)
    before = await database.read(preview, filtered("state:cancelled"), "requeue")
    assert (before.eligible, [task.id for task in before.samples]) == (1, [second])
    answer = await again(database, first, second)
    assert (answer.changed, answer.skipped) == ([second], [Skipped(first, f"task {second} has its unique key")])


async def test_a_key_held_for_a_time_prevents_the_retry_of_another_task(database: Database) -> None:
    first = await dead(database, **HOUR)
    await let_time_pass(database)
    second = await dead(database, **HOUR)
    assert (await again(database, first)).skipped == [Skipped(first, f"task {second} has its unique key")]
    assert (await again(database, second)).changed == [second]
    assert (await key_row(database)).scope == Scope.FOR_A_TIME


async def test_an_expired_key_of_a_retried_task_is_held_until_it_finishes(database: Database) -> None:
    first = await dead(database, **HOUR)
    await let_time_pass(database)
    await again(database, first)
    assert (await put(database, once())).ids == [first]
    await end(database, first)
    assert (await put(database, once())).ids != [first]


@pytest.mark.both_databases
async def test_an_expired_key_stays_free_after_the_undo_of_a_termination(database: Database) -> None:
    (first,) = (await put(database, once(**HOUR))).ids
    await let_time_pass(database)
    await end(database, first)
    (entry,) = await database.read(audit, task_id=first)
    assert (await database.write(undo, [entry.id], BY)).changed == [first]
    assert (await put(database, once())).ids != [first]


async def test_a_key_held_forever_stays_held(database: Database) -> None:
    first = await dead(database, scope=Scope.FOREVER)
    await again(database, first)
    await end(database, first)
    assert (await put(database, once())).ids == [first]


@pytest.mark.parametrize("undone", [False, True], ids=["a retry", "the undo of a termination"])
async def test_a_key_until_started_is_free_again_when_the_task_starts(
    database: Database, runner: Runner, undone: bool
) -> None:
    first = await dead(database, scope=Scope.UNTIL_STARTED)
    if undone:
        (entry,) = await database.read(audit, task_id=first)
        assert (await database.write(undo, [entry.id], BY)).changed == [first]
    else:
        await again(database, first)
    assert (await put(database, once())).ids == [first]
    assert [task.id for task in await runner.claim()] == [first]
    assert (await put(database, once())).ids != [first]


async def test_an_unused_key_is_taken(database: Database) -> None:
    await add_past(database, 70, State.DEAD, handler="work", unique_key="k")
    assert (await again(database, 70)).changed == [70]
    assert (await put(database, once())).ids == [70]


async def test_a_conflict_leaves_no_row_for_its_key(database: Database) -> None:
    await add_past(database, 70, State.DEAD, handler="work", unique_key="k")
    answer = await database.write(retry_now, [Target(70, version=99)], BY)
    assert answer.changed == []
    assert await count(database, database.tables.unique) == 0


async def test_a_retry_and_a_concurrent_submit_leave_one_task(database: Database, rival: Database) -> None:
    for _ in range(10):
        first = await dead(database)
        answer, result = await asyncio.gather(again(database, first), put(rival, once()))
        assert bool(answer.changed) == bool(result.duplicates)
        assert await count(database, database.tables.task) == 1
        await end(database, *result.ids)


@on_postgresql
async def test_a_retry_waits_for_the_submit_that_has_its_key(database: Database, rival: Database) -> None:
    first = await dead(database)
    async with database.writing() as tx:
        (second,) = (await submit_with_result(tx, [once(on_duplicate=OnDuplicate.ERROR)])).ids
        trying = asyncio.create_task(again(rival, first))
        await until_locked(rival)
    assert (await trying).skipped == [Skipped(first, f"task {second} has its unique key")]
