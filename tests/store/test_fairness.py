"""Aged order in claims: a low priority starts under a flood of high ones."""

from datetime import UTC, timedelta

import pytest

from runner.db.database import Database
from runner.policy.claim_order import STRICT, AgedOrder
from runner.queries.why.why import why
from tests.store.rows import add_live, add_runner, ahead
from tests.store.runners import Runner
from tests.store.table import put_many
from tests.store.test_limits import limit, take, tasks_of

pytestmark = pytest.mark.one_database

AGED = AgedOrder(timedelta(seconds=10))
LEVEL = 80
"""Seconds by which a task of priority 9 comes before one of priority 1."""


@pytest.fixture
async def aged(database: Database) -> Runner:
    runner = await Runner.enter(database)
    runner.who = runner.who._replace(order=AGED)
    runner.lanes.order = AGED
    return runner


async def add(database: Database, age: float, priority: int) -> int:
    return await add_live(database, "work", run_at=ahead(-age), priority=priority)


async def test_a_task_is_claimed_before_those_of_higher_priority_that_are_due_long_after_it(
    database: Database, aged: Runner
) -> None:
    new, old, middle = await add(database, 0, 9), await add(database, LEVEL + 20, 1), await add(database, 45, 5)
    recent = await add(database, LEVEL - 20, 1)
    assert [task.id for task in await aged.claim()] == [old, middle, new, recent]


@pytest.mark.slow
async def test_the_lowest_priority_starts_under_a_flood_of_the_highest(database: Database, aged: Runner) -> None:
    low, batch, step = await add(database, 0, 1), 5, 10
    claimed: list[int] = []
    while low not in claimed and len(claimed) < 200:
        await put_many(database, 2 * batch, priority=9)  # twice as many as are claimed
        claimed += [task.id for task in await aged.claim(batch)]
        await age_by(database, step)
    assert low in claimed
    assert len(claimed) <= 2 * batch * (LEVEL / step + 1) + batch, "the tasks due within 8 steps of it"


async def test_a_limited_queue_has_the_order_of_the_runner(database: Database, aged: Runner) -> None:
    await add(database, 0, 9)
    old = await add(database, LEVEL + 20, 1)
    await limit(database, "queue", "default", concurrency="1")
    assert tasks_of(await take(aged)) == [old]


async def age_by(database: Database, seconds: float) -> None:
    task = database.tables.task
    async with database.writing() as tx:
        for id, run_at in await tx.rows(task.select().with_only_columns(task.c.id, task.c.run_at)):
            await tx.execute(task.update().where(task.c.id == id).values(run_at=run_at - timedelta(seconds=seconds)))


async def test_a_strict_runner_takes_the_highest_priority_first(database: Database, runner: Runner) -> None:
    assert runner.who.order is STRICT
    old, new = await add(database, 3_600, 1), await add(database, 0, 9)
    assert [task.id for task in await runner.claim()] == [new, old]


async def test_why_counts_the_tasks_before_it_in_the_order_of_its_runners(database: Database) -> None:
    running = await add_runner(database, handlers='["work"]', capacity=1, claim_order="aged:10s")
    await add_live(database, "work", state="running", runner_id=running, attempt=1)
    low = await add(database, LEVEL + 20, 1)
    await add(database, LEVEL + 30, 1)
    await add(database, 45, 5)
    await add(database, 30, 9)
    await add(database, 10, 9)
    answer = await database.read(why, low, UTC)
    behind = [cause.text for cause in answer.causes if cause.kind == "behind"]
    assert [text.split(";")[0] for text in behind] == ["2 tasks are ahead of it (tasks rise by one priority every 10s)"]
