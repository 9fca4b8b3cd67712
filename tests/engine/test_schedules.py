"""Runners tick schedules: on time, once, and again after an outage."""

import json
import logging
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from runner.client.handler import TaskHandler
from runner.client.schedules import schedule
from runner.db.types import db_now
from runner.engine.periodic import schedules
from runner.handlers.context import Context
from runner.handlers.schedules import SCHEDULES
from runner.policy.lanes import RUNNER_QUEUE
from runner.policy.polling import Pace
from runner.store.claim.plain import claim
from tests.engine.harness import Harness, at_work, until
from tests.store.table import change
from tests.triggers import TEXT, accept, refuse


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


class InTheMiddle:
    """A database that does something before one of the claims."""

    def __init__(self, database: Any, claim_number: int, action: Callable[[], Awaitable[None]]) -> None:
        self._database, self._remaining, self._action = database, claim_number, action

    async def write(self, verb: Any, *arguments: Any) -> Any:
        self._remaining -= verb is claim
        if verb is claim and not self._remaining:
            await self._action()
        return await self._database.write(verb, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.mark.slow
async def test_an_urgent_tick_does_not_wait_for_a_backlog_or_for_the_next_survey(harness: Harness) -> None:
    starts: list[str] = []

    @harness.handler("work")
    async def work(name: str = "tick") -> None:
        starts.append(name)

    async def tick() -> None:
        await add(harness, options=json.dumps({"priority": 9}), rule="every 1h", run_requested_at=db_now())
        await runner.scheduler.look()

    tasks = [await harness.submit("work", {"name": "bulk"}) for _ in range(40)]
    runner = harness.runner(claim_batch_size=1, concurrency=1_000)  # its slots are never full, so its scan does not end
    runner.claimer._database = InTheMiddle(runner.database, 10, tick)  # type: ignore[assignment]
    runner.claimer.survey.pace = Pace(every=3600.0)
    async with at_work(runner):
        await harness.wait_for(*tasks)
        await until(lambda: "tick" in starts)
    assert starts.index("tick") < 15


async def test_a_broadcast_runs_on_every_runner(harness: Harness) -> None:
    runs: list[str | None] = []

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        runs.append(ctx.key)

    async with harness.running() as first, harness.running(queues=("mail",)) as second:
        await until(lambda: first.claimer.open and second.claimer.open)
        await add(harness, rule="every 36500d", broadcast=True, next_at=db_now())
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


async def test_a_runner_restores_its_schedule_and_ends_the_rounds_of_lost_runners(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    monkeypatch.setattr(schedules, "MAINTAIN_EVERY", 0.0)
    scheduled(harness, "work", every="1h")
    table = harness.database.tables.schedule

    async def is_stored() -> bool:
        return await harness.count(table) == 1

    async with harness.running():
        await until(is_stored)
        await harness.change(sa.delete(table))
        await until(is_stored)
        round_of_lost = await harness.submit("work", queue=f"{RUNNER_QUEUE}999")
        await harness.wait_for(round_of_lost)
    row = await harness.row(round_of_lost)
    assert (row.state, row.error) == ("cancelled", "its runner no longer exists")
    assert f"cancelled tasks of runners that no longer exist: {round_of_lost}" in caplog.text


async def test_schedules_whose_tasks_would_wait_for_each_other_stop_no_other(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    same_tick: dict[str, Any] = {"rule": "every 36500d", "next_at": datetime.now(UTC)}
    await add(harness, id="first", handler="first", options='{"after": {"second": "wait"}}', **same_tick)
    await add(harness, id="second", handler="second", options='{"after": {"first": "wait"}}', **same_tick)
    await add(harness, id="good")
    tick = harness.database.tables.tick

    async def has_ticked() -> bool:
        return await harness.count(tick, tick.c.schedule == "good") >= 2

    async with harness.running():
        await until(lambda: "cannot run" in caplog.text)
        await until(has_ticked)
    assert re.search("schedule (first|second) cannot run: .* it would depend on itself", caplog.text)


@pytest.mark.slow
async def test_a_schedule_whose_rows_the_database_refuses_stops_no_other(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    for id in ("bad", "good", "fine"):
        await add(harness, id=id, handler="work", rule="every 1s")
    await refuse(harness.database, "UPDATE", "task_schedule", when="{row}.id = 'bad' AND NEW.last_tick IS NOT NULL")
    tick, schedule = harness.database.tables.tick.c, harness.database.tables.schedule.c

    async def ticked(*ids: str) -> bool:
        return {row.schedule for row in await harness.rows(sa.select(tick.schedule))} >= set(ids)

    async with harness.running():
        await until(lambda: ticked("good", "fine"))
        await until(lambda: "schedule bad cannot run" in caplog.text)
        assert not await ticked("bad")
        await until(lambda: has_error(harness, schedule))
        await accept(harness.database, "task_schedule")
        await until(lambda: ticked("bad"))


async def test_a_schedule_whose_plan_the_database_refused_is_planned_later(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    await add(harness, id="bad", handler="work", rule="every 1s")
    await change(harness.database, sa.text("UPDATE task_schedule SET next_at = NULL"))
    await refuse(harness.database, "UPDATE", "task_schedule", when="NEW.next_at IS NOT NULL")
    async with harness.running():
        await until(lambda: "schedule bad cannot run" in caplog.text)
        await accept(harness.database, "task_schedule")
        await until(lambda: _has_ticked(harness))


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_schedule_has_no_error_while_the_server_refuses_all_of_them(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    if not harness.database.dialect.is_server:
        pytest.skip("SQLite reports a fault of the disk as such")

    @harness.handler("work")
    async def work() -> None: ...

    await add(harness, id="bad", handler="work", rule="every 1s")
    await _fail_like_a_disk(harness)
    schedule = harness.database.tables.schedule.c
    async with harness.running():
        await until(lambda: caplog.text.count("schedule bad cannot run: 58P01") == 2)
        assert [row.error for row in await harness.rows(sa.select(schedule.error))] == [None]
        await change(harness.database, sa.text("DROP TRIGGER broken ON task"))
        await until(lambda: _has_ticked(harness))


@pytest.mark.both_databases
@pytest.mark.parametrize("others", [(), ("good",)], ids=len)
async def test_a_schedule_has_the_error_that_only_its_own_tasks_meet(harness: Harness, others: tuple[str, ...]) -> None:
    past, text = datetime(2026, 11, 5, tzinfo=UTC), TEXT
    for id in ("bad", *others):
        await add(harness, id=id, handler=id, rule="every 1h", next_at=past)
    if others and harness.database.dialect.is_server:
        await _fail_like_a_disk(harness, "WHEN (NEW.handler = 'bad')")
        text = "58P01"
    else:
        await refuse(harness.database, "INSERT", when="{row}.handler = 'bad'")
    async with harness.running():
        await until(lambda: has_error(harness, harness.database.tables.schedule.c, text))


async def _fail_like_a_disk(harness: Harness, condition: str = "") -> None:
    """Refuse inserts of tasks with an SQLSTATE of class 58 that no trigger has raised."""
    body = "BEGIN PERFORM pg_read_file('/no/such/file'); RETURN NEW; END"
    await change(harness.database, sa.text(f"CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"))
    trigger = f"CREATE TRIGGER broken BEFORE INSERT ON task FOR EACH ROW {condition} EXECUTE FUNCTION broken()"
    await change(harness.database, sa.text(trigger))


async def _has_ticked(harness: Harness) -> bool:
    return bool(await harness.rows(sa.select(harness.database.tables.tick.c.schedule)))


async def has_error(harness: Harness, schedule: Any, text: str = TEXT) -> bool:
    (row,) = await harness.rows(sa.select(schedule.error).where(schedule.id == "bad"))
    return text in (row.error or "")
