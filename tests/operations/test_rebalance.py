"""Waiting tasks move to the shards of their routes, and a crash loses or doubles none."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.headers import write_headers
from runner.model.task import DependsOn, NewTask, NewWorkflow, OrderKey, Scope, UniqueKey
from runner.operations.rebalance import (
    DEPENDENCY,
    ORDER,
    UNIQUE,
    WORKFLOW,
    Rebalance,
    held_copies,
    hold,
    release,
    scan,
    take,
)
from runner.operations.results import Actor
from runner.policy.shard_rule import by_hash
from runner.store.submit import submit, submit_many
from tests.shards import EACH_PAIR, Sharded
from tests.store.rows import add_attempt
from tests.store.runners import Runner

EU, US = "customer-3", "customer-0"
"""Routes of each shard."""

BY = Actor("ana", "desk", "a new shard")


@pytest.fixture
async def databases(profile: Sharded) -> AsyncIterator[dict[str, Database]]:
    opened = {name: Database.open(url) for name, url in profile.urls.items()}
    yield opened
    for database in opened.values():
        await database.dispose()


def rule(route: str) -> str:
    return by_hash(route, ("eu", "us"))


def task(route: str | None, **values: Any) -> NewTask:
    return NewTask("work", headers=write_headers({} if route is None else {"route": route}), **values)


async def rows(database: Database, table: str = "task", by: str = "id") -> list[Any]:
    async with database.reading() as tx:
        source = getattr(tx.tables, table)
        return list(await tx.rows(sa.select(source).order_by(source.c[by])))


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

RELATED_ROWS: dict[str, dict[str, Any]] = {
    "checkpoint": {"number": 1, "fence": 4, "attempt": 1, "state": "{}"},
    "step": {"name": "pay", "kind": "function", "fence": 4, "attempt": 1},
    "signal": {"name": "paid"},
    "progress": {"fence": 4, "done": 1.0},
    "log": {
        "fence": 4,
        "number": 1,
        "attempt": 1,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "level": "info",
        "line": "x",
    },
}
"""A row of each table whose rows move with their task."""


def values_of(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row._mapping.items() if name not in ("id", "version")}


@EACH_PAIR
async def test_a_task_moves_to_the_shard_of_its_route_with_all_its_values(databases: dict[str, Database]) -> None:
    mine = task(US, payload='{"n": 1}', key="k", priority=7, delay=3600, tags='["red"]', tenant="t", bucket=7)
    await databases["eu"].write(submit_many, [task(EU), mine, task(None)])
    before = (await rows(databases["eu"]))[1]
    work = Rebalance(databases, rule, BY)
    await work.run()
    assert work.moved == {("eu", "us"): 1}
    assert [row.id for row in await rows(databases["eu"])] == [1, 3]
    (after,) = await rows(databases["us"])
    assert values_of(after) == values_of(before)
    (entry,) = await rows(databases["eu"], "audit")
    assert (entry.verb, entry.task_id, entry.after, entry.operator) == (
        "rebalance",
        2,
        f'{{"task": "us:{after.id}"}}',
        "ana",
    )


@EACH_PAIR
async def test_a_moved_task_leaves_no_dependency(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit, task(US, order_key=OrderKey("o")))
    async with databases["eu"].writing() as tx:
        closed = {"parent_id": 99, "on_failure": "run", "in_order": True, "satisfied_at": MOMENT}
        await tx.execute(sa.insert(tx.tables.dependency).values(task_id=1, **closed))
    work = Rebalance(databases, rule, BY)
    await work.run()
    assert (work.moved.total(), await rows(databases["eu"], "dependency")) == (1, [])


@pytest.mark.slow
async def test_a_second_run_moves_nothing(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit_many, [task(US)] * 1_200)
    first, second = Rebalance(databases, rule, BY), Rebalance(databases, rule, BY)
    await first.run(limit=700)
    assert first.moved.total() == 700
    await second.run()
    assert (second.moved.total(), len(await rows(databases["us"]))) == (500, 1_200)
    await second.run()
    assert (second.moved.total(), await rows(databases["eu"])) == (500, [])


async def test_a_dry_run_only_counts(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit_many, [task(US)] * 3)
    work = Rebalance(databases, rule, BY)
    await work.run(dry_run=True)
    assert (work.moved, len(await rows(databases["eu"]))) == ({("eu", "us"): 3}, 3)


@EACH_PAIR
async def test_tasks_that_hold_within_a_shard_stay(databases: dict[str, Database]) -> None:
    database = databases["eu"]
    parent = await database.write(submit, task(US, key="parent"))
    await database.write(
        submit_many,
        [
            task(US, order_key=OrderKey("o")),
            task(US, order_key=OrderKey("o")),
            task(US, after=(DependsOn(("work", "parent")),)),
            task(US, key="later"),
            task(US, after=(DependsOn(("work", "later")),)),
        ],
    )
    await database.write(submit, task(US, workflow=NewWorkflow("w")))
    work = Rebalance(databases, rule, BY)
    await work.run()
    assert (work.moved.total(), len(await rows(database)), parent) == (0, 7, 1)
    assert work.left == {("eu", ORDER): 2, ("eu", WORKFLOW): 1, ("eu", DEPENDENCY): 4}


async def test_a_task_stays_that_has_called_another_one(databases: dict[str, Database]) -> None:
    database = databases["eu"]
    caller = await database.write(submit, task(US))
    async with database.writing() as tx:
        called = {"task_id": caller, "parent_id": 7, "step": "invoice", "on_failure": "run"}
        await tx.execute(sa.insert(tx.tables.dependency).values(**called, satisfied_at=MOMENT))
    work = Rebalance(databases, rule, BY)
    await work.run()
    assert (work.moved.total(), work.left) == (0, {("eu", DEPENDENCY): 1})


@EACH_PAIR
async def test_a_task_moves_with_its_attempts_and_its_unique_key(databases: dict[str, Database]) -> None:
    eu, us = databases.values()
    id = await eu.write(submit, task(US, unique_key=UniqueKey("u", Scope.FOR_A_TIME, 3600), order_key=OrderKey("o")))
    await us.write(submit, task(US))  # takes the same id there
    async with eu.writing() as tx:
        row = tx.tables.task
        values = {"attempt": 2, "fence": 5, "error": "ValueError: no", "runner_id": 7}
        await tx.execute(sa.update(row).values(values))
    await add_attempt(eu, id, 4, message="no")
    for table, values in RELATED_ROWS.items():
        async with eu.writing() as tx:
            await tx.execute(sa.insert(getattr(tx.tables, table)).values(task_id=id, **values))
    (key,) = await rows(eu, "unique", "handler")
    work = Rebalance(databases, rule, BY)
    await work.run()
    moved = (await rows(us))[1]
    assert (moved.state, moved.attempt, moved.fence, moved.error, moved.runner_id) == (
        "waiting",
        2,
        5,
        "ValueError: no",
        None,
    )
    for table in ("attempt", *RELATED_ROWS):
        assert [each.task_id for each in await rows(us, table, "task_id")] == [moved.id]
        assert await rows(eu, table, "task_id") == []
    (there,) = await rows(us, "unique", "handler")
    assert (there.task_id, there.scope, await rows(eu, "unique", "handler")) == (moved.id, key.scope, [])
    again = await us.write(submit, task(US, unique_key=UniqueKey("u", Scope.FOR_A_TIME, 3600)))
    assert again == moved.id


@EACH_PAIR
async def test_a_task_stays_whose_keys_the_new_shard_has(databases: dict[str, Database]) -> None:
    for database in databases.values():
        await database.write(submit_many, [task(US, unique_key=UniqueKey("u")), task(US, order_key=OrderKey("o"))])
    work = Rebalance(databases, rule, BY)
    await work.run()
    assert (work.moved.total(), work.left) == (0, {("eu", UNIQUE): 1, ("eu", ORDER): 1})
    assert [len(await rows(database)) for database in databases.values()] == [2, 2]


@EACH_PAIR
async def test_a_task_stays_that_got_a_dependent_or_a_signal_meanwhile(databases: dict[str, Database]) -> None:
    eu, us = databases.values()
    ids = [await eu.write(submit, task(US)) for _ in range(3)]
    found = await eu.read(scan, 0, "eu", rule)
    copies = await us.write(hold, "eu", found.tasks)
    await eu.write(submit, task(EU, after=(DependsOn(ids[0]),)))
    async with eu.writing() as tx:
        await tx.execute(sa.insert(tx.tables.signal).values(task_id=ids[1], name="paid"))
    assert await eu.write(take, found.tasks, "us", copies, BY) == {ids[2]}


async def test_a_dropped_copy_leaves_no_row(databases: dict[str, Database]) -> None:
    eu, us = databases.values()
    id = await eu.write(submit, task(US, unique_key=UniqueKey("u")))
    await add_attempt(eu, id)
    found = await eu.read(scan, 0, "eu", rule)
    await us.write(hold, "eu", found.tasks)
    await Rebalance(databases, rule, BY).resolve()
    assert [await rows(us, table, column) for table, column in (("task", "id"), ("attempt", "task_id"))] == [[], []]
    assert await rows(us, "unique", "handler") == []
    assert len(await rows(eu, "attempt", "task_id")) == len(await rows(eu, "unique", "handler")) == 1


@pytest.mark.slow
@EACH_PAIR
async def test_a_rebalance_that_is_killed_again_and_again_loses_and_doubles_none(
    profile: Sharded, databases: dict[str, Database]
) -> None:
    eu, us = databases.values()
    count = 1_500
    await eu.write(
        submit_many, [task(US, key=str(number), unique_key=UniqueKey(str(number))) for number in range(count)]
    )
    command = [sys.executable, "-m", "runner", "rebalance", "--profile", "orders", "--config", str(profile.config)]
    for bound in (1, 400, 900):
        process = await asyncio.create_subprocess_exec(*command)
        while process.returncode is None and len(await rows(us)) < bound:
            await asyncio.sleep(0.01)
        if process.returncode is None:
            process.kill()
        await process.wait()
    work = Rebalance(databases, rule, BY)
    await work.resolve()
    await work.run()
    stored = await rows(us)
    assert (await rows(eu), await rows(eu, "unique", "handler")) == ([], [])
    assert sorted(int(row.key) for row in stored) == list(range(count))
    assert {row.state for row in stored} == {"waiting"}
    assert {each.task_id for each in await rows(us, "unique", "handler")} == {row.id for row in stored}


async def test_a_task_that_a_runner_has_claimed_stays(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit, task(US))
    found = await databases["eu"].read(scan, 0, "eu", rule)
    copies = await databases["us"].write(hold, "eu", found.tasks)
    runner = await Runner.enter(databases["eu"], "work")
    assert len(await runner.claim()) == 1
    assert await databases["eu"].write(take, found.tasks, "us", copies, BY) == set()


@EACH_PAIR
async def test_no_runner_takes_a_copy_that_is_held(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit, task(US))
    found = await databases["eu"].read(scan, 0, "eu", rule)
    await databases["us"].write(hold, "eu", found.tasks)
    assert await (await Runner.enter(databases["us"], "work")).claim() == []
    (copy,) = await databases["us"].read(held_copies)
    assert (copy.shard, copy.task) == ("eu", (1, 0, 0))


@EACH_PAIR
async def test_a_crash_before_the_move_leaves_the_task_where_it_was(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit, task(US))
    found = await databases["eu"].read(scan, 0, "eu", rule)
    copies = await databases["us"].write(hold, "eu", found.tasks)
    await Rebalance(databases, rule, BY).resolve()
    assert await rows(databases["us"]) == []
    # A rebalance that was only slow, and goes on now, moves nothing.
    assert await databases["eu"].write(take, found.tasks, "us", copies, BY) == set()
    await databases["us"].write(release, dict.fromkeys(copies.values()))
    assert (len(await rows(databases["eu"])), await rows(databases["us"])) == (1, [])


@EACH_PAIR
async def test_a_crash_after_the_move_is_finished_by_the_next_run(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit_many, [task(US)] * 2)
    found = await databases["eu"].read(scan, 0, "eu", rule)
    copies = await databases["us"].write(hold, "eu", found.tasks)
    await databases["eu"].write(take, found.tasks[:1], "us", copies, BY)
    work = Rebalance(databases, rule, BY)
    await work.resolve()
    assert work.moved == {("eu", "us"): 1}
    assert [row.state for row in await rows(databases["us"])] == ["waiting"]
    assert [row.id for row in await rows(databases["eu"])] == [2]
    await work.run()
    assert len(await (await Runner.enter(databases["us"], "work")).claim()) == 2


@pytest.mark.slow
async def test_two_runs_at_once_move_each_task_once(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit_many, [task(US, key=str(number)) for number in range(1_500)])

    async def run() -> None:
        work = Rebalance(databases, rule, BY)
        await work.resolve()
        await work.run()

    await asyncio.gather(*(run() for _ in range(3)))
    await Rebalance(databases, rule, BY).resolve()
    last = Rebalance(databases, rule, BY)
    await last.run()
    assert await rows(databases["eu"]) == []
    stored = await rows(databases["us"])
    assert sorted(int(row.key) for row in stored) == list(range(1_500))
    assert {row.state for row in stored} == {"waiting"}


async def test_a_copy_of_a_shard_that_the_profile_lacks_stays_held(databases: dict[str, Database]) -> None:
    await databases["eu"].write(submit, task(US))
    found = await databases["eu"].read(scan, 0, "eu", rule)
    await databases["us"].write(hold, "ap", found.tasks)
    work = Rebalance(databases, rule, BY)
    await work.resolve()
    assert (work.left.total(), len(await rows(databases["us"]))) == (1, 1)
