from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import NewTask
from runner.policy.lanes import Head, Lane
from runner.store.claim.survey import DENSE, SurveyScope, survey
from runner.store.submit import submit_many
from tests.conftest import on_postgresql
from tests.store.plans import watch
from tests.store.runners import Runner
from tests.store.table import change, edit, make_due, pause, put, put_many

pytestmark = pytest.mark.one_database


async def heads(database: Database) -> dict[Lane, Head]:
    rows = await database.write(survey)
    assert len({head.lane for head in rows}) == len(rows)
    return {head.lane: head for head in rows}


async def test_an_empty_table_has_no_lanes(database: Database) -> None:
    assert await database.write(survey) == []


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
    lane_heads = await heads(database)
    assert lane_heads.keys() == lanes
    assert all(90 < head.wait <= 100 for head in lane_heads.values())


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


async def surveyed(database: Database, *handlers: str, queues: tuple[str, ...] = (), **scope: Any) -> list[Lane]:
    rows = await database.read(survey, SurveyScope(handlers or ("work",), queues, **({"limit": 100} | scope)))
    assert not any(head.paused for head in rows)
    return [head.lane for head in rows]


async def test_a_scope_selects_the_lanes_of_a_runner(database: Database) -> None:
    for queue in ("a", "b", "c"):
        for handler in ("work", "other"):
            await put(database, handler, queue=queue)
    await pause(database, database.tables.queue, "c")
    assert {lane[:2] for lane in await surveyed(database)} == {("a", "work"), ("b", "work")}
    assert {lane[:2] for lane in await surveyed(database, "work", "other", queues=("b", "c"))} == {
        ("b", "work"),
        ("b", "other"),
    }
    await pause(database, database.tables.handler, "other")
    assert await surveyed(database, "other") == []


async def test_a_scope_returns_the_first_lanes_in_the_order_of_claims(database: Database) -> None:
    late = await put(database, queue="a", priority=5)
    early = await put(database, queue="b", priority=5)
    await put(database, queue="c", priority=9)
    await put(database, queue="d", priority=9, delay=600)
    await put(database, queue="e", priority=1, delay=300)
    await make_due(database, late)
    await make_due(database, early)
    await edit(database, early, run_at=db_later(db_now(), -60))
    everything = ["c", "b", "a", "e", "d"]
    assert [lane.queue for lane in await surveyed(database)] == everything
    assert [lane.queue for lane in await surveyed(database, limit=2)] == everything[:2]
    assert [lane.queue for lane in await surveyed(database, limit=2, skip=2)] == everything[2:4]
    assert await surveyed(database, skip=5) == []


@pytest.mark.parametrize("dense", [1, 2, 7, 30, DENSE])
async def test_reading_and_skipping_entries_find_the_same_lanes(database: Database, dense: int) -> None:
    tasks = [
        NewTask("work", queue=f"q{number % 5}", priority=1 + number % 3, delay=float(number * 7 % 11))
        for number in range(60)
    ]
    await database.write(submit_many, tasks)
    walked = await database.read(survey, SurveyScope(["work"], (), 100))
    read = await database.read(survey, SurveyScope(["work"], (), 100, dense=dense))
    assert len(walked) == 15
    assert {head.lane: head.run_at for head in read} == {head.lane: head.run_at for head in walked}


async def test_a_survey_searches_the_index_once_for_each_lane(database: Database, migrated_url: str) -> None:
    """Five searches made a survey of 200,000 queues take eight seconds."""
    lanes = 300
    await database.write(submit_many, [NewTask("work", queue=f"q{number}") for number in range(lanes)])
    opened = Database.open(migrated_url)
    looking = watch(opened)
    try:
        await opened.read(survey, SurveyScope(["work"], (), 1))  # opens the connection
        for dense, most in ((0, 11), (DENSE, 15)):
            async with looking.seeing() as cost:
                assert len(await opened.read(survey, SurveyScope(["work"], (), 10, dense=dense))) == 10
            assert cost.pages < 5 * lanes  # a search of the index touches three
            assert cost.rows < (5 if cost.pages else most) * lanes  # on SQLite in steps of ten; five searches took 17
            assert cost.statements == 1
    finally:
        await opened.dispose()


@on_postgresql
@pytest.mark.usefixtures("new_database")
async def test_a_survey_passes_the_dead_entries_of_a_lane_once(
    database: Database, rival: Database, migrated_url: str
) -> None:
    dead, opened = 5_000, Database.open(migrated_url)
    looking = watch(opened)
    try:
        await opened.read(survey, SurveyScope(["work"], (), 1))  # opens the connection
        async with rival.reading() as tx:
            await tx.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            await tx.execute(sa.select(sa.func.now()))
            await put_many(database, dead)
            await change(database, sa.delete(database.tables.task))
            await put(database)
            async with looking.seeing() as cost:
                assert len(await opened.read(survey, SurveyScope(["work"], (), 10))) == 1
    finally:
        await opened.dispose()
    assert 100 < cost.pages < 250  # two passes touch 328
