"""Order with many runners: keys in parallel, tasks of one key one by one, through failures."""

import asyncio
import random
from collections import defaultdict

import pytest
import sqlalchemy as sa

from runner.model.task import NewTask, OrderKey
from runner.store.submit import submit_many
from tests.engine.harness import Harness, at_work

KEYS, RUNNERS = 12, 3


@pytest.mark.parametrize("tasks_per_key", [3, pytest.param(8, marks=pytest.mark.slow)])
async def test_runners_keep_the_order_of_every_key(harness: Harness, tasks_per_key: int) -> None:
    numbers: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()
    chance = random.Random(7)

    @harness.handler("work", max_attempts=100)
    async def work(key: str, number: int) -> None:
        assert key not in running
        running.add(key)
        try:
            await asyncio.sleep(chance.random() / 200)
            if chance.random() < 0.2:
                raise ValueError("no")
            numbers[key].append(number)
        finally:
            running.remove(key)

    calls = [(f"key-{key}", number) for number in range(tasks_per_key) for key in range(KEYS)]
    tasks = [
        NewTask("work", f'{{"key": "{key}", "number": {number}}}', order_key=OrderKey(key), max_attempts=100)
        for key, number in calls
    ]
    half = len(tasks) // 2
    ids = [id for part in (tasks[:half], tasks[half:]) for id in await harness.database.write(submit_many, part)]
    runners = [harness.runner(poll_interval="20ms") for _ in range(RUNNERS)]
    async with at_work(runners[0]), at_work(runners[1]), at_work(runners[2]):
        await harness.wait_for(*ids)
    assert numbers == {f"key-{key}": [*range(tasks_per_key)] for key in range(KEYS)}
    assert [await harness.state(id) for id in ids] == ["succeeded"] * len(ids)


async def test_the_next_task_of_a_key_starts_without_a_poll_after_plain_inserts(harness: Harness) -> None:
    numbers: dict[str, list[int]] = defaultdict(list)

    @harness.handler("work")
    async def work(key: str, number: int) -> None:
        await asyncio.sleep(0)
        numbers[key].append(number)

    table = harness.database.tables.task
    for number in range(5):
        for key in ("a", "b"):
            payload = f'{{"key": "{key}", "number": {number}}}'
            await harness.change(sa.insert(table).values(handler="work", payload=payload, order_key=key))
    ids = [row.id for row in await harness.rows(sa.select(table.c.id))]
    async with at_work(harness.runner(poll_interval="1h")):
        await harness.wait_for(*ids)
    assert numbers == {"a": [*range(5)], "b": [*range(5)]}
