"""Unique until it starts, and debounced: no update is lost, and the last submit within a window wins."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Retry
from runner.model.task import NewTask, OnDuplicate, Scope, SubmitResult, UniqueKey
from runner.store.submit import submit_with_result
from tests.conftest import on_postgresql
from tests.store.rows import stored
from tests.store.runners import Runner
from tests.store.table import edit
from tests.store.unique_tasks import begin, once, put

pytestmark = pytest.mark.one_database

WINDOW, LONGEST = 5.0, 60.0


def update(key: str = "k", **values: Any) -> NewTask:
    return once(key, scope=Scope.UNTIL_STARTED, **values)


def debounced(**values: Any) -> NewTask:
    unique = UniqueKey("k", Scope.UNTIL_STARTED, None, OnDuplicate.REPLACE, LONGEST)
    return NewTask("work", unique_key=unique, delay=WINDOW, **values)


async def foreign(database: Database) -> int:
    """The number of committed tasks of another handler."""
    task = database.tables.task
    async with database.reading() as tx:
        return int(await tx.scalar(sa.select(sa.func.count()).where(task.c.handler == "foreign")))


async def test_a_submit_is_a_duplicate_only_until_the_task_starts(database: Database, runner: Runner) -> None:
    first = await put(database, update())
    assert await put(database, update()) == SubmitResult(first.ids, frozenset({0}))
    (running,) = await runner.claim()
    second = await put(database, update())
    assert second.duplicates == frozenset()
    assert await put(database, update()) == SubmitResult(second.ids, frozenset({0}))
    await runner.end(running)
    assert [task.id for task in await runner.claim()] == second.ids


async def test_a_task_that_waits_for_its_retry_holds_its_key_again(database: Database, runner: Runner) -> None:
    first = await put(database, update())
    await runner.end((await runner.claim())[0], Retry("1h"))
    assert (await put(database, update())).ids == first.ids, "the retry reads the latest data"


@pytest.mark.both_databases
@pytest.mark.parametrize("record", ["step", "checkpoint"])
async def test_a_task_that_continues_from_a_step_or_a_checkpoint_has_started(
    database: Database, runner: Runner, record: str
) -> None:
    first = await put(database, update())
    await begin(runner, record)
    second = await put(database, update())
    assert second.duplicates == frozenset(), "the first one continues from data that it has read before"
    assert await put(database, update()) == SubmitResult(second.ids, frozenset({0}))
    assert [task.id for task in await runner.claim()] == second.ids != first.ids


async def test_a_batch_mixes_scopes(database: Database, runner: Runner) -> None:
    first = await put(database, update("a"), once("b"), update("c"))
    await runner.claim(2)
    again = await put(database, update("a"), update("b"), update("c"), update("a"))
    assert again.duplicates == {1, 2, 3}
    assert again.ids[1:3] == first.ids[1:]
    assert again.ids[0] == again.ids[3] != first.ids[0]


@on_postgresql
@pytest.mark.parametrize("commits", [True, False])
async def test_the_waiting_task_does_not_start_before_the_submitter_commits(
    database: Database, rival: Database, commits: bool
) -> None:
    runner = await Runner.enter(rival)
    first = await put(database, update())
    with contextlib.suppress(KeyboardInterrupt):
        async with database.writing() as tx:
            assert (await submit_with_result(tx, [update()])).duplicates
            assert await runner.claim() == [], "it would miss the changes of this transaction"
            if not commits:
                raise KeyboardInterrupt
    assert [task.id for task in await runner.claim()] == first.ids


async def test_no_update_is_lost_under_concurrent_submits_and_claims(database: Database, rival: Database) -> None:
    """A handler that reads the number of committed submits has read all of them when the queue is empty."""
    runner = await Runner.enter(rival)
    submits, number_read = 40, 0
    done = asyncio.Event()

    async def produce() -> None:
        for number in range(submits):
            async with database.writing() as tx:
                await submit_with_result(tx, [NewTask("foreign", key=str(number)), update()])
        done.set()

    async def consume() -> None:
        nonlocal number_read
        while True:
            last = done.is_set()
            claimed = await runner.claim(1)
            for task in claimed:
                number_read = await foreign(rival)
                await runner.end(task)
            if last and not claimed:
                return

    await asyncio.gather(produce(), consume())
    assert number_read == submits


async def test_each_duplicate_of_a_debounced_task_replaces_it_and_starts_its_window_again(database: Database) -> None:
    first = await put(database, debounced(payload='{"a": 1}'))
    (id,) = first.ids
    before = await stored(database, id)
    assert before.run_at - before.submitted_at == timedelta(seconds=WINDOW)
    await edit(database, id, run_at=before.submitted_at)
    assert await put(database, debounced(payload='{"a": 2}')) == SubmitResult(first.ids, frozenset({0}), frozenset({0}))
    after = await stored(database, id)
    assert after.run_at >= before.run_at
    assert '"a": 2' in str(after.payload).replace("'", '"')


async def test_duplicates_delay_a_debounced_task_up_to_a_limit(database: Database) -> None:
    (id,) = (await put(database, debounced())).ids
    submitted_at = (await stored(database, id)).submitted_at - timedelta(seconds=LONGEST - 1)
    await edit(database, id, submitted_at=submitted_at)
    await put(database, debounced())
    assert (await stored(database, id)).run_at == submitted_at + timedelta(seconds=LONGEST)


async def test_a_debounced_submit_that_is_rolled_back_leaves_the_task_as_it_was(database: Database) -> None:
    (id,) = (await put(database, debounced(payload='{"a": 1}'))).ids
    before = await stored(database, id)
    with contextlib.suppress(KeyboardInterrupt):
        async with database.writing() as tx:
            await submit_with_result(tx, [debounced(payload='{"a": 2}')])
            raise KeyboardInterrupt
    assert await stored(database, id) == before
