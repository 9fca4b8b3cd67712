"""A claim on PostgreSQL that also reports when the next task beside its own is due."""

from math import inf
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import Claimed, Priority
from runner.policy.lanes import Lane
from runner.store.claim.next_due import MAX_LANES, claim_with_next_due
from tests.store.runners import Runner, settlement
from tests.store.table import change, edit, expire, put, put_many

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)


async def claim_next(
    runner: Runner, limit: int = 10, queues: tuple[str, ...] = ("default",)
) -> tuple[list[Claimed], float]:
    lanes = {Lane(queue, "work", Priority.DEFAULT): runner.start for queue in queues}
    return await runner.database.write(claim_with_next_due, runner.who, lanes, runner.terms, limit)


@pytest.mark.parametrize("queues", [("default",), ("default", "mail")])
async def test_nothing_else_is_due(database: Database, runner: Runner, queues: tuple[str, ...]) -> None:
    ids = [await put(database, queue=queue) for queue in queues for _ in range(3)]
    claimed, wait = await claim_next(runner, queues=queues)
    assert sorted(task.id for task in claimed) == ids
    assert wait == inf
    assert await claim_next(runner, queues=queues) == ([], inf)


async def test_it_claims_as_a_claim_does(database: Database, runner: Runner) -> None:
    await put_many(database, 5, payload='{"a": "ä"}', tags='["a"]')
    (task, *_), wait = await claim_next(runner, 2)
    assert wait == inf  # those in its own lanes are for the next claim
    (other, *_) = await runner.claim(1)
    assert task._replace(id=0, address=None, claimed_at=0) == other._replace(id=0, address=None, claimed_at=0)
    assert (await runner.end(task)).verbs == {task.id: "succeed"}


@pytest.mark.parametrize(
    "other", [{"queue": "mail"}, {"priority": 7}, {"handler": "of.others"}, {"hosts": "elsewhere"}], ids=str
)
async def test_a_due_task_in_another_lane_is_seen(database: Database, runner: Runner, other: dict[str, Any]) -> None:
    await put(database)
    await put(database, **other)
    claimed, wait = await claim_next(runner)
    assert len(claimed) == 1
    assert wait <= 0


async def test_a_task_to_be_retried_is_in_another_lane(database: Database, runner: Runner) -> None:
    task_id = await put(database)
    await edit(database, task_id, attempt=1)
    assert (await claim_next(runner))[1] <= 0


@pytest.mark.parametrize("queue", ["default", "mail"])
async def test_the_first_later_task_is_seen_in_each_lane(database: Database, runner: Runner, queue: str) -> None:
    await put(database)
    later = await put(database, queue=queue, delay=60)
    await put(database, queue=queue, delay=3_600)
    claimed, wait = await claim_next(runner)
    assert later not in {task.id for task in claimed}
    assert 0 < wait <= 60


async def test_many_lanes_count_as_due(database: Database, runner: Runner) -> None:
    for number in range(MAX_LANES):
        await put(database, queue=f"q{number}", delay=60)
    assert 0 < (await claim_next(runner))[1] <= 60
    await put(database, queue="one more", delay=60)
    assert (await claim_next(runner))[1] == 0


async def test_a_paused_lane_is_not_claimed_and_counts_as_due(database: Database, runner: Runner) -> None:
    await put(database)
    queue = database.tables.queue
    await change(database, sa.insert(queue).values(name="default", paused_at=db_later(db_now(), -1)))
    assert (await claim_next(runner))[0] == []
    assert (await claim_next(runner))[1] <= 0


async def test_a_runner_without_a_lease_claims_nothing(database: Database, runner: Runner) -> None:
    await put(database)
    await expire(database, runner.id)
    assert (await claim_next(runner))[0] == []


async def test_each_task_is_claimed_once(database: Database, runner: Runner) -> None:
    await put_many(database, 20)
    other = await Runner.enter(database)
    tasks = [task for who in (runner, other) * 3 for task in (await claim_next(who, 4))[0]]
    assert len({task.id for task in tasks}) == 20
    settled = await runner.settle(*(settlement(task) for task in tasks))
    assert len(settled.verbs) == 12
