"""A retention of zero: a success leaves no row, unless something refers to its task."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Cancelled, Done, Outcome
from runner.model.task import Claimed, DependsOn, OrderSpec, Scope, UniqueSpec
from runner.operations.results import Actor, Target
from runner.operations.unblock import unblock
from runner.store.settle import Settlement, settle, settle_done
from tests.store.runners import Runner, settlement
from tests.store.table import change, count, edit, live, past, put, put_many

Case = Callable[[Runner], Awaitable[Settlement]]


async def minutes(database: Database) -> tuple[int, int, int]:
    """The submitted and succeeded tasks, and the ones that succeeded at once, in the minute statistics."""
    minute = database.tables.minute.c
    sums = sa.select(*(sa.func.sum(minute[name]) for name in ("submitted", "succeeded", "first_try")))
    async with database.reading() as tx:
        ((submitted, succeeded, first),) = await tx.rows(sums)
    return submitted, succeeded, first


async def test_successes_are_counted_and_leave_no_row(database: Database, runner: Runner) -> None:
    await put_many(database, 3)
    batch = [settlement(task) for task in await runner.claim()]
    assert await database.write_single(settle_done, runner.id, batch, False) == {item.id for item in batch}
    assert await count(database, database.tables.task) == await count(database, database.tables.history) == 0
    assert await minutes(database) == (3, 3, 3)


async def test_a_success_that_another_runner_has_changes_nothing(database: Database, runner: Runner) -> None:
    task = await claimed(runner)
    assert await database.write_single(settle_done, runner.id + 1, [settlement(task)], False) == set()
    assert await database.write_single(settle_done, runner.id, [settlement(task)._replace(fence=2)], False) == set()
    assert (await live(database, task.id) or {})["state"] == "running"


async def claimed(runner: Runner, **options: Any) -> Claimed:
    """Submit a task and claim it."""
    await put(runner.database, **options)
    return await only(runner)


async def only(runner: Runner) -> Claimed:
    """Claim the only due task."""
    (task,) = await runner.claim()
    return task


async def with_a_result(runner: Runner) -> Settlement:
    return settlement(await claimed(runner), Done('{"sent": true}'))


async def with_a_log(runner: Runner) -> Settlement:
    return settlement(await claimed(runner))._replace(noted=True)


async def in_its_second_attempt(runner: Runner) -> Settlement:
    await runner.settle(settlement(await claimed(runner), Cancelled()))
    return settlement(await only(runner))


async def after_an_edit(runner: Runner) -> Settlement:
    task_id = await put(runner.database)
    await edit(runner.database, task_id, version=1)
    return settlement(await only(runner))


async def with_a_unique_key(runner: Runner) -> Settlement:
    return settlement(await claimed(runner, unique=UniqueSpec("k", Scope.UNTIL_FINISHED)))


async def with_an_order_key(runner: Runner) -> Settlement:
    return settlement(await claimed(runner, order=OrderSpec("k")))


async def of_a_schedule(runner: Runner) -> Settlement:
    return settlement(await claimed(runner, submitted_by="schedule mail"))


async def with_a_dependent(runner: Runner) -> Settlement:
    parent = await put(runner.database)
    await put(runner.database, after=(DependsOn(parent),))
    return settlement(await only(runner))


async def with_a_dependent_that_an_operator_unblocked(runner: Runner) -> Settlement:
    """An undo blocks the dependent again."""
    parent = await put(runner.database)
    dependent = await put(runner.database, after=(DependsOn(parent),), run_at=datetime(2099, 1, 1, tzinfo=UTC))
    await runner.database.write(unblock, [Target(dependent)], Actor("ana", "desk-1"))
    return settlement(await only(runner))


REFERRED = [
    with_a_result,
    with_a_log,
    in_its_second_attempt,
    after_an_edit,
    with_a_unique_key,
    with_an_order_key,
    of_a_schedule,
    with_a_dependent,
    with_a_dependent_that_an_operator_unblocked,
]


@pytest.mark.parametrize("case", REFERRED, ids=[case.__name__ for case in REFERRED])
async def test_a_task_to_which_something_refers_moves_to_the_history(
    database: Database, runner: Runner, case: Case
) -> None:
    item = await case(runner)
    assert await database.write_single(settle_done, runner.id, [item], False) == {item.id}
    assert await live(database, item.id) is None
    assert (await past(database, item.id) or {})["state"] == "succeeded"


@pytest.mark.parametrize("outcome", [Done(), Cancelled()], ids=["done", "cancelled"])
async def test_a_success_without_a_row_is_known_after_a_lost_answer(
    database: Database, runner: Runner, outcome: Outcome
) -> None:
    task = await claimed(runner)
    await database.write_single(settle_done, runner.id, [settlement(task)], False)
    settled = await database.write(settle, runner.id, [settlement(task, outcome)], False)
    written = {task.id: "succeed"} if isinstance(outcome, Done) else {}
    assert (settled.verbs, settled.written, settled.fenced) == ({}, written, {task.id} - written.keys())


async def test_a_success_whose_task_still_exists_is_fenced(database: Database, runner: Runner) -> None:
    task = await claimed(runner)
    await change(database, sa.update(database.tables.task).values(runner_id=runner.id + 1))
    settled = await database.write(settle, runner.id, [settlement(task)], False)
    assert (settled.verbs, settled.written, settled.fenced) == ({}, {}, {task.id})
