"""Fresh order in claims: tasks that never failed before the retried ones of their priority."""

from datetime import UTC

import pytest

from runner.db.database import Database
from runner.policy.claim_order import AgedOrder, ClaimOrder, FreshOrder
from runner.queries.why.why import why
from tests.store.rows import add_live, add_runner, ahead
from tests.store.runners import Runner
from tests.store.test_limits import limit, take, tasks_of

RETRIED = {"attempt": 1, "fence": 1, "max_attempts": 5}


def use(runner: Runner, order: ClaimOrder) -> Runner:
    runner.who = runner.who._replace(order=order)
    runner.lanes.order = order
    return runner


async def add(database: Database, age: float, priority: int = 5, **values: object) -> int:
    return await add_live(database, "work", run_at=ahead(-age), priority=priority, **values)


async def test_fresh_tasks_come_before_retried_ones_of_their_priority(database: Database, runner: Runner) -> None:
    retried, low = await add(database, 90, **RETRIED), await add(database, 90, priority=1)
    new, old = await add(database, 10), await add(database, 60)
    urgent = await add(database, 5, priority=9, **RETRIED)
    assert [task.id for task in await use(runner, FreshOrder()).claim()] == [urgent, old, new, retried, low]


@pytest.mark.parametrize("order", [None, AgedOrder()])
async def test_other_orders_mix_both_by_time(database: Database, runner: Runner, order: ClaimOrder | None) -> None:
    retried = await add(database, 60, **RETRIED)
    new, old = await add(database, 10), await add(database, 90)
    if order is not None:
        use(runner, order)
    assert [task.id for task in await runner.claim()] == [old, retried, new]


async def test_a_release_without_a_counted_attempt_leaves_a_task_fresh(database: Database, runner: Runner) -> None:
    retried = await add(database, 60, **RETRIED)
    released = await add(database, 10, fence=1, releases=1)
    assert [task.id for task in await use(runner, FreshOrder()).claim()] == [released, retried]


async def test_a_limited_queue_has_the_fresh_order(database: Database, runner: Runner) -> None:
    await add(database, 60, **RETRIED)
    new = await add(database, 10)
    await limit(database, "queue", "default", concurrency="1")
    assert tasks_of(await take(use(runner, FreshOrder()))) == [new]


async def test_why_counts_the_fresh_tasks_before_a_retried_one(database: Database) -> None:
    running = await add_runner(database, handlers='["work"]', capacity=1, claim_order="fresh")
    await add_live(database, "work", state="running", runner_id=running, attempt=1)
    retried = await add(database, 60, **RETRIED)
    for _ in range(2):
        await add(database, 10)
    answer = await database.read(why, retried, UTC)
    behind = [cause.text.split(";")[0] for cause in answer.causes if cause.kind == "behind"]
    assert behind == ["2 tasks are ahead of it (fresh tasks come before retried ones of the same priority)"]
