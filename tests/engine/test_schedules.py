"""Runners tick schedules: on time, once, and again after an outage."""

import logging
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from runner.client.handler import TaskHandler
from runner.client.schedules import schedule
from runner.db.types import db_now
from runner.handlers.context import Context
from runner.handlers.schedules import SCHEDULES
from tests.engine.harness import Harness, until


@pytest.fixture(autouse=True)
def no_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code has only the schedules of the test."""
    monkeypatch.setattr(SCHEDULES, "_schedules", {})


def scheduled(harness: Harness, handler: str, rule: str | None = None, **options: Any) -> None:
    """Give a handler of the harness a schedule, as @schedule does in code."""
    function: Any = harness.handlers[handler].function
    schedule(rule, **options)(TaskHandler(handler, function))


async def add(harness: Harness, **values: Any) -> None:
    """Insert a schedule with plain SQL."""
    table = harness.database.tables.schedule
    await harness.change(sa.insert(table).values(**{"id": "s", "handler": "work", "rule": "every 1s"} | values))


async def submitted(harness: Harness) -> list[Any]:
    tick = harness.database.tables.tick
    return list(await harness.rows(sa.select(tick).where(tick.c.task_id.is_not(None)).order_by(tick.c.tick)))


async def test_a_declared_schedule_runs_with_its_arguments(harness: Harness) -> None:
    runs: list[tuple[str | None, int]] = []

    @harness.handler("work")
    async def work(ctx: Context, size: int) -> None:
        runs.append((ctx.key, size))

    scheduled(harness, "work", every="1s", arguments={"size": 7})
    async with harness.running():
        await until(lambda: len(runs) >= 2)
    ticks = [row.tick.isoformat().replace("+00:00", "Z") for row in await submitted(harness)]
    assert [key for key, _ in runs] == ticks[: len(runs)]
    assert {size for _, size in runs} == {7}
    assert len(set(ticks)) == len(ticks)


async def test_runners_together_run_each_tick_once_and_miss_none(harness: Harness) -> None:
    @harness.handler("work")
    async def work(ctx: Context) -> None: ...

    await add(harness, overlap="allow", misfire="all 100")
    async with harness.running(), harness.running(), harness.running():
        await until(lambda: ticks_of(harness, 3))
    rows = await submitted(harness)
    gaps = {later.tick - earlier.tick for earlier, later in pairwise(rows)}
    assert gaps == {timedelta(seconds=1)}


async def ticks_of(harness: Harness, count: int) -> bool:
    return len(await submitted(harness)) >= count


async def test_a_broadcast_runs_on_every_runner(harness: Harness) -> None:
    runs: list[str | None] = []

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        runs.append(ctx.key)

    async with harness.running() as first, harness.running(queues=("mail",)) as second:
        await until(lambda: first.claimer.open and second.claimer.open)
        await add(harness, rule="every 1h", broadcast=True, next_at=db_now())
        await until(lambda: len(runs) == 2)
        rows = await submitted(harness)
        assert sorted(row.runner_id for row in rows) == sorted((first.lease.id, second.lease.id))
        holders = [(await harness.row(row.task_id)).runner_id for row in rows]
        assert holders == [row.runner_id for row in rows]


async def test_a_schedule_that_cannot_run_is_logged_with_the_reason(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work(ctx: Context) -> None: ...

    await add(harness, id="bad", rule="61 * * * *")
    with caplog.at_level(logging.ERROR, "runner.schedules"):
        async with harness.running():
            await until(lambda: "bad minute" in caplog.text)
    assert "schedule bad cannot run: Invalid value '61 * * * *' for `rule`" in caplog.text


async def test_a_rule_that_vanished_is_reported_and_paused(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    @harness.handler("work")
    async def work(ctx: Context) -> None: ...

    scheduled(harness, "work", "@daily")
    async with harness.running():
        await until(lambda: exists(harness))
    SCHEDULES._schedules.clear()
    with caplog.at_level(logging.WARNING, "runner.schedules"):
        async with harness.running():
            await until(lambda: "no longer in the code" in caplog.text)
    (row,) = await harness.rows(sa.select(harness.database.tables.schedule))
    assert row.paused_by == "runner"


async def exists(harness: Harness) -> bool:
    return await harness.count(harness.database.tables.schedule) == 1
