"""Failure groups: their trend, the versions of runners, and their tasks as they are now."""

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.task import State
from runner.queries.failures import BUCKETS, deploys, failures, group_tasks, trends
from runner.store.registration import leave
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.store.table import change

pytestmark = pytest.mark.both_databases

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(("length", "age"), [(HOUR, 65.0), (timedelta(days=30), 40 * 3600.0)])
async def test_a_trend_counts_the_attempts_of_a_group_in_equal_parts(
    database: Database, length: timedelta, age: float
) -> None:
    for fence, seconds in enumerate((1.0, 2.0, age, length.total_seconds() - 90, length.total_seconds() + 90)):
        await add_attempt(database, 1, fence, ended_at=ahead(-seconds))
    await add_attempt(database, 2, ended_at=ahead(-1), fingerprint="f2")
    async with database.reading() as tx:
        until = await clock(tx)
        result = await trends(tx, until - length, until)
        latest_only = await trends(tx, until - length, until, window=3)
    assert [result["f1"][0], sum(result["f1"]), sum(result["f1"][-2:])] == [1, 4, 3]
    assert [sum(result["f2"]), len(result["f2"])] == [1, BUCKETS]
    assert sum(sum(parts) for parts in latest_only.values()) == 3


async def test_a_deploy_is_the_start_of_the_first_runner_of_a_version(database: Database) -> None:
    for version, seconds in (("4.12", 60), ("4.12", 300), ("4.11", 9_000), ("4.10", 9_999)):
        runner = await add_runner(database, version=version, started_at=ahead(-seconds))
        if version != "4.12":
            await database.write(leave, runner)
    ended = database.tables.ended_runner
    await change(database, sa.update(ended).where(ended.c.version == "4.10").values(ended_at=ahead(-7_200)))
    async with database.reading() as tx:
        now = await clock(tx)
        starts = await deploys(tx, now - HOUR)
    assert list(starts) == ["4.11", "4.12"]
    assert timedelta(seconds=300) <= now - starts["4.12"] < timedelta(seconds=360)


async def test_the_tasks_of_a_group_are_looked_up_by_state_the_last_failed_first(database: Database) -> None:
    tried: dict[str, Any] = {"attempt": 1, "fence": 1}
    soon = await add_live(database, run_at=ahead(300), **tried)
    later = await add_live(database, run_at=ahead(3_000), **tried)
    running = await add_live(database, state=State.RUNNING.value, runner_id=await add_runner(database), **tried)
    dead = await add_past(database, 900, State.DEAD)
    done = await add_past(database, 899, State.SUCCEEDED)
    stopped = await add_runner(database, host="web-2", pid=41)
    await database.write(leave, stopped)
    for index, id in enumerate((done, dead, running, later, soon)):
        runner = stopped if id == running else None
        await add_attempt(database, id, 1, ended_at=ahead(-100 + index), host=f"web-{index}", runner_id=runner)
        await add_attempt(database, id, 2, ended_at=ahead(-1000 + index), host="web-9")
    await add_attempt(database, 901, ended_at=ahead(-1), fingerprint="f2")
    async with database.reading() as tx:
        since = await clock(tx) - HOUR
        tasks = await group_tasks(tx, "f1", since, 3)
        some = await group_tasks(tx, "f1", since, 3, window=2)
    states = {"retrying": 2, "running": 1, "dead": 1, "succeeded": 1}
    assert (tasks.states, tasks.soon, tasks.more) == (states, 1, False)
    assert [(each.task.id, each.runner) for each in tasks.latest] == [
        (soon, "web-4"),
        (later, "web-3"),
        (running, "web-2:41"),
    ]
    assert (some.states, some.more) == ({"retrying": 2}, True)


async def test_the_rate_of_a_group_forgets_a_burst_after_two_minutes(database: Database) -> None:
    for fence in range(8):
        await add_attempt(database, 1, fence, ended_at=ahead(-150))
        await add_attempt(database, 2, fence, ended_at=ahead(-30), fingerprint="f2")
    async with database.reading() as tx:
        groups = await failures(tx)
    assert {group.fingerprint: (group.count.number, group.rate) for group in groups} == {"f1": (8, 0.0), "f2": (8, 4.0)}
