from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import NewTask
from runner.policy.lanes import Head, Lane
from runner.store.lanes import survey
from runner.store.submit import submit_many
from tests.store.runners import Runner
from tests.store.table import change, edit, make_due, pause, put, put_many


async def heads(database: Database) -> dict[Lane, Head]:
    found = await database.write_single(survey)
    assert len({head.lane for head in found}) == len(found)
    return {head.lane: head for head in found}


async def test_an_empty_table_has_no_lanes(database: Database) -> None:
    assert await database.write_single(survey) == []


async def test_each_lane_is_found_once_with_its_first_time(database: Database) -> None:
    lanes = {
        Lane(queue, handler, priority)
        for queue in ("a", "b c", "é")
        for handler in ("x", "x.y", "X")
        for priority in (1, 9)
    }
    tasks = [
        NewTask(lane.handler, queue=lane.queue, priority=lane.priority, delay=delay)
        for delay in (300.0, 100.0, 200.0)
        for lane in lanes
    ]
    await database.write(submit_many, tasks)
    found = await heads(database)
    assert found.keys() == lanes
    assert all(90 < head.wait <= 100 for head in found.values())


async def test_a_due_lane_has_no_wait(database: Database) -> None:
    await put(database)
    (head,) = (await heads(database)).values()
    assert head.wait <= 0


async def test_lanes_without_waiting_tasks_are_not_found(database: Database, runner: Runner) -> None:
    await put_many(database, 2)
    await runner.claim()
    await edit(database, await put(database, "blocked"), state="blocked")
    assert await heads(database) == {}


@pytest.mark.parametrize("what", ["queue", "handler"])
async def test_paused_tasks_are_not_claimed(database: Database, runner: Runner, what: str) -> None:
    registry = {"queue": database.tables.queue, "handler": database.tables.handler}[what]
    task_id = await put(database, queue="slow")
    await pause(database, registry, {"queue": "slow", "handler": "work"}[what])
    assert [head.paused for head in (await heads(database)).values()] == [True]
    assert await runner.claim() == []
    await change(database, sa.update(registry).values(paused_at=None))
    assert [task.id for task in await runner.claim()] == [task_id]


@pytest.mark.parametrize("what", ["queue", "handler"])
async def test_suspects_of_paused_queues_are_not_claimed(database: Database, runner: Runner, what: str) -> None:
    registry = {"queue": database.tables.queue, "handler": database.tables.handler}[what]
    await edit(database, await put(database, queue="slow"), rescues=2)
    await pause(database, registry, {"queue": "slow", "handler": "work"}[what])
    assert await runner.claim_suspect() == []


@pytest.mark.parametrize(("until", "paused"), [(None, True), (60, True), (-60, False)])
async def test_a_pause_may_end_by_itself(database: Database, until: float | None, paused: bool) -> None:
    await put(database)
    moment: Any = None if until is None else db_later(db_now(), until)
    await pause(database, database.tables.queue, "default", paused_until=moment)
    assert [head.paused for head in (await heads(database)).values()] == [paused]


async def test_a_pause_of_one_queue_stops_no_other(database: Database, runner: Runner) -> None:
    await put(database, queue="slow")
    free = await put(database, queue="quick")
    await pause(database, database.tables.queue, "slow")
    assert [task.id for task in await runner.claim()] == [free]


async def test_a_survey_returns_when_the_next_lane_is_due(database: Database, runner: Runner) -> None:
    await put(database, delay=300)
    soon = await put(database, priority=9, delay=100)
    await put(database, "foreign", delay=10)
    assert await runner.survey() == {}
    assert runner.lanes.next_due is not None
    assert 90 < runner.lanes.next_due <= 100
    await make_due(database, soon)
    assert list(await runner.survey()) == [Lane("default", "work", 9)]
