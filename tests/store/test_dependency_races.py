"""A parent that ends during the submit of its child: the child is released in every order of the steps."""

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import combinations

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Done
from runner.model.task import Claimed, NewTask, State
from runner.store.dependencies.resolve import FinishedParent, open_dependencies, resolve
from runner.store.settle import settle
from runner.store.submit import submit, submit_steps
from tests.conftest import on_postgresql
from tests.store.dependencies import after, dependencies_of, put_after, resolve_parents, sweep
from tests.store.runners import Runner, settlement
from tests.store.table import count, put, row_of

WAIT_SECONDS = 90.0
"""Seconds after which one side counts as blocked by the other."""

SUBMITTING, ENDING = 5, 3
"""The number of steps of each side."""

ORDERS = [
    "".join("p" if place in ends else "c" for place in range(SUBMITTING + ENDING))
    for ends in combinations(range(SUBMITTING + ENDING), ENDING)
]
"""Every interleaving of the steps of a parent's end and of a child's submit."""


async def submitting(database: Database, task: NewTask, ids: list[int]) -> AsyncIterator[None]:
    """Submit a task, one statement at a time: mark, look-up, the task, its dependencies, commit."""
    async with database.writing() as tx:
        steps = submit_steps(tx, [task], False)
        rows = None
        while True:
            try:
                step = next(steps) if rows is None else steps.send(rows)
            except StopIteration as end:
                ids += end.value.ids
                break
            rows = await tx.run(step.prepared, step.parameters)
            yield
    yield


async def ending(runner: Runner, task: Claimed) -> AsyncIterator[None]:
    """End a task: the settle, the commit, and the notification of its dependents."""
    async with runner.database.writing() as tx:
        await settle(tx, runner.id, [settlement(task)])
        yield
    yield
    dependencies = await runner.database.write(open_dependencies, [FinishedParent(task.id, task.handler, task.key)])
    if dependencies:
        await runner.database.write(resolve, dependencies)
    yield


@pytest.mark.slow
@on_postgresql
@pytest.mark.parametrize("named", ["by id", pytest.param("by key", marks=pytest.mark.slow)])
async def test_every_order_of_steps_has_the_same_result(
    database: Database, rival: Database, runner: Runner, named: str
) -> None:
    for order in ORDERS:
        parent = await put(database, key=order, priority=9)
        (task,) = await runner.claim(1)
        ids: list[int] = []
        child = submitting(rival, after(parent if named == "by id" else ("work", order)), ids)
        steps = {"c": child, "p": ending(runner, task)}
        async with asyncio.timeout(WAIT_SECONDS):
            for whose in order:
                await anext(steps[whose])
            for left in steps.values():
                with pytest.raises(StopAsyncIteration):
                    await anext(left)
            await sweep(database)
        assert (await row_of(database, ids[0]))["state"] == State.WAITING, order
        (dependency,) = await dependencies_of(database, ids[0])
        assert (dependency["parent_id"], dependency["parent_state"]) == (parent, State.SUCCEEDED), order


@on_postgresql
async def test_the_orders_include_one_that_only_a_sweep_resolves(
    database: Database, rival: Database, runner: Runner
) -> None:
    parent = await put(database)
    (task,) = await runner.claim()
    async with rival.writing() as tx:
        child = await submit(tx, after(parent))
        await runner.end(task)
        assert (await resolve_parents(database, parent)).unblocked == []
        assert (await sweep(database)).unblocked == []
    assert (await row_of(database, child))["state"] == State.BLOCKED
    assert (await sweep(database)).unblocked == [child]


@on_postgresql
async def test_locked_tasks_are_skipped_and_resolved_later(database: Database, rival: Database, runner: Runner) -> None:
    parent = await put(database)
    locked, free = [await put_after(database, parent) for _ in range(2)]
    (task,) = await runner.claim()
    await runner.end(task)
    async with asyncio.timeout(WAIT_SECONDS), rival.writing() as tx:
        rows = rival.tables.task
        await tx.execute(sa.update(rows).where(rows.c.id == locked).values(priority=9))
        resolved = await resolve_parents(database, parent)
        assert (resolved.unblocked, [dependency.task_id for dependency in resolved.skipped]) == ([free], [locked])
    assert (await resolve_parents(database, parent)).unblocked == [locked]


@on_postgresql
async def test_parents_that_end_concurrently_release_their_child_once(
    database: Database, rival: Database, runner: Runner, other: Runner
) -> None:
    for _ in range(20):
        parents = [await put(database) for _ in range(2)]
        child = await put_after(database, *parents)
        tasks = await runner.claim(1), await other.claim(1)
        await asyncio.gather(runner.end(tasks[0][0]), other.end(tasks[1][0]))
        results = await asyncio.gather(
            resolve_parents(database, tasks[0][0].id), resolve_parents(rival, tasks[1][0].id)
        )
        freed = [id for result in results for id in result.unblocked]
        freed += (await sweep(database)).unblocked
        assert freed == [child]
        (last,) = await runner.claim()
        await runner.end(last)


@pytest.mark.slow
async def test_many_concurrent_submits_and_ends_leave_no_task_blocked(
    database: Database, rival: Database, runner: Runner, other: Runner
) -> None:
    """Dependencies are submitted while their tasks are executed; the sweep runs only at the end."""
    submitters, each = 4, 15
    ids = [await put(database, key=str(number)) for number in range(4)]
    growing = submitters

    async def grow(who: Database, seed: int) -> None:
        nonlocal growing
        chance = random.Random(seed)
        for number in range(each):
            ids_of_parents = {chance.choice(ids[-12:]) for _ in range(chance.randint(1, 3))}
            named = chance.choice(["0", "1", f"{seed}-{number - 1}"])
            parents = [*ids_of_parents, ("work", named)] if number % 4 == 1 else [*ids_of_parents]
            async with who.writing() as tx:
                child = await submit(tx, after(*parents, key=f"{seed}-{number}"))
                await asyncio.sleep(chance.random() * 0.01)
            ids.append(child)
        growing -= 1

    async def work(who: Runner, chance: random.Random) -> None:
        while growing or await who.survey():
            for task in await who.claim(5):
                await who.end(task, Done())
                if chance.random() < 0.8:
                    await resolve_parents(who.database, task.id)
            if not growing:
                await sweep(who.database)
            await asyncio.sleep(0.001)

    async with asyncio.timeout(60):
        growers = [grow(database if seed % 2 else rival, seed) for seed in range(submitters)]
        await asyncio.gather(*growers, work(runner, random.Random(1)), work(other, random.Random(2)))
        while (await sweep(database)).unblocked:
            await work(runner, random.Random(3))
    assert await count(database, database.tables.task) == 0
    assert await count(database, database.tables.history) == 4 + submitters * each
