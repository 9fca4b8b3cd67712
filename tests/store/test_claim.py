import asyncio
from collections import Counter

import pytest
import sqlalchemy as sa

from runner.columns import db_later, db_now
from runner.policy.selection import Lane
from runner.store.claim import Terms
from runner.store.database import Database
from runner.store.intervene import By, Kind, Place, pause, resume
from runner.store.runners import beat, leave
from runner.store.submit import submit_many
from runner.task import NewTask
from tests.store.conftest import ON_POSTGRESQL
from tests.store.runners import Runner
from tests.store.table import change, edit, expire, live, make_due, put, put_many


async def put_in_disorder(database: Database) -> list[int]:
    """Submit due tasks of many lanes, and return their ids in the order in which they are needed."""
    tasks = [
        NewTask(f"h{number % 3}", queue=f"q{number % 2}", priority=1 + number % 4, delay=float(number * 7 % 11))
        for number in range(60)
    ]
    ids = await database.write(submit_many, tasks)
    task = database.tables.task
    await change(database, sa.update(task).values(run_at=db_later(task.c.run_at, -3_600)))
    async with database.reading() as tx:
        rows = {row.id: row for row in await tx.rows(sa.select(task.c.id, task.c.priority, task.c.run_at))}
    return sorted(ids, key=lambda id: (-rows[id].priority, rows[id].run_at, id))


async def rescue_again(runner: Runner, task_id: int, times: int) -> None:
    """Let a task lose its runner, several times."""
    for _ in range(times):
        victim = await Runner.enter(runner.database, *runner.terms)
        assert task_id in {task.id for task in [*await victim.claim(), *await victim.claim_suspect()]}
        await expire(runner.database, victim.id)
        await runner.rescue()


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_tasks_come_in_order_of_need_across_queues_and_handlers(database: Database, limit: int) -> None:
    expected = await put_in_disorder(database)
    runner = await Runner.enter(database, "h0", "h1", "h2")
    await runner.survey()
    found: list[int] = []
    while claimed := await runner.claim_on(limit):
        assert len(claimed) <= limit
        found += [task.id for task in claimed]
    assert found == expected


async def test_a_higher_priority_goes_first_however_late_it_came(database: Database, runner: Runner) -> None:
    low, high = await put(database, priority=1), await put(database, priority=9)
    await edit(database, low, run_at=db_later(db_now(), -3_600))
    assert [task.id for task in await runner.claim(1)] == [high]
    assert [task.id for task in await runner.claim(1)] == [low]


async def test_nothing_is_handed_out_early_by_the_databases_clock(database: Database, runner: Runner) -> None:
    await put(database, delay=30)
    due = await put(database)
    lanes = await runner.survey()
    assert list(lanes) == [Lane("default", "work", 1)]
    assert [task.id for task in await runner.claim_on()] == [due]
    assert await runner.claim() == []


async def test_a_task_is_handed_out_once_it_is_due(database: Database, runner: Runner) -> None:
    later = await put(database, delay=30)
    assert await runner.claim() == []
    await make_due(database, later)
    assert [task.id for task in await runner.claim()] == [later]


async def test_handlers_that_a_runner_does_not_know_are_left_alone(database: Database, runner: Runner) -> None:
    foreign = await put(database, "foreign", priority=9)
    ours = await put(database)
    before = await live(database, foreign)
    assert [task.id for task in await runner.claim()] == [ours]
    assert await live(database, foreign) == before


async def test_a_claim_counts_the_attempt_and_raises_fence_and_version(database: Database, runner: Runner) -> None:
    task_id = await put(database, key="k", payload='{"a": 1}')
    before = await live(database, task_id) or {}
    (task,) = await runner.claim()
    row = await live(database, task_id) or {}
    assert (task.attempt, task.fence) == (row["attempt"], row["fence"]) == (1, before["fence"] + 1)
    assert row["version"] == before["version"] + 1
    assert (row["state"], row["runner_id"], row["host"]) == ("running", runner.id, "here")
    assert row["claimed_at"] >= before["submitted_at"]
    assert (task.queue, task.handler, task.key, task.payload) == ("default", "work", "k", '{"a": 1}')


async def test_terms_are_written_where_the_task_says_nothing(database: Database) -> None:
    silent, telling = await put(database), await put(database, max_attempts=9, timeout=7.5)
    runner = await Runner.enter(database, terms=Terms(4, 60.0))
    claimed = {task.id: task for task in await runner.claim()}
    assert [(claimed[id].max_attempts, claimed[id].timeout) for id in (silent, telling)] == [(4, None), (9, 7.5)]
    for task_id, seconds in ((silent, 60), (telling, 7.5)):
        row = await live(database, task_id) or {}
        assert (row["deadline_at"] - row["claimed_at"]).total_seconds() == pytest.approx(seconds)


async def test_without_any_time_out_there_is_no_deadline(database: Database, runner: Runner) -> None:
    task_id = await put(database)
    await runner.claim()
    row = await live(database, task_id) or {}
    assert (row["deadline_at"], row["max_attempts"]) == (None, 3)


async def test_a_task_whose_attempts_are_used_up_stays(database: Database, runner: Runner) -> None:
    used, left = await put(database, max_attempts=2), await put(database, max_attempts=2)
    await edit(database, used, attempt=2)
    await edit(database, left, attempt=1)
    assert [task.id for task in await runner.claim()] == [left]


async def test_two_programs_never_share_a_task_and_together_take_all(runner: Runner, other: Runner) -> None:
    ids = await put_many(runner.database, 500)

    async def take(one: Runner) -> list[int]:
        found = []
        while claimed := await one.claim(13):
            found += [task.id for task in claimed]
        return found

    mine, theirs = await asyncio.gather(take(runner), take(other))
    assert Counter(mine + theirs) == Counter(ids)


async def test_claims_on_many_connections_at_once_share_nothing(runner: Runner) -> None:
    ids = await put_many(runner.database, 120)
    await runner.survey()
    taken = await asyncio.gather(*(runner.claim_on(20) for _ in range(6)))
    assert all(len(claimed) <= 20 for claimed in taken)
    assert Counter(task.id for claimed in taken for task in claimed) <= Counter(ids)


@ON_POSTGRESQL
async def test_what_somebody_else_holds_is_skipped_without_waiting(database: Database, runner: Runner) -> None:
    ids = await put_many(database, 10)
    task = database.tables.task
    async with database.writing() as tx:
        await tx.rows(sa.select(task.c.id).where(task.c.id.in_(ids[:4])).with_for_update())
        claiming = asyncio.ensure_future(runner.claim(100))
        done, _ = await asyncio.wait([claiming], timeout=30)
    assert done, "it waited"
    assert [task.id for task in await claiming] == ids[4:]


async def test_a_runner_whose_lease_ran_out_gets_nothing(database: Database, runner: Runner) -> None:
    await put(database)
    await expire(database, runner.id)
    assert await runner.claim() == []
    assert await runner.claim_suspect() == []


async def test_a_runner_that_was_struck_out_gets_nothing(database: Database, runner: Runner) -> None:
    await put(database)
    await database.write(leave, runner.id)
    assert await runner.claim() == []


async def test_a_runner_that_renewed_its_lease_in_time_gets_tasks_again(database: Database, runner: Runner) -> None:
    await put(database)
    await expire(database, runner.id)
    await database.state(beat, runner.id, 60, 0)
    assert len(await runner.claim()) == 1


async def test_nothing_is_claimed_for_no_lanes_or_no_room(database: Database, runner: Runner) -> None:
    await put(database)
    assert await runner.claim_on() == []
    assert await runner.claim(0) == []


async def test_a_claim_goes_on_behind_the_last_one_and_a_survey_starts_again(
    database: Database, runner: Runner
) -> None:
    ids = await put_many(database, 6)
    await runner.survey()
    assert [task.id for task in await runner.claim_on(2)] == ids[:2]
    behind = await put(database)
    await edit(database, behind, run_at=db_later(db_now(), -3_600))
    assert [task.id for task in await runner.claim_on(2)] == ids[2:4]
    assert [task.id for task in await runner.claim(2)] == [behind, ids[4]]


async def test_equal_times_are_told_apart_by_the_id(database: Database, runner: Runner) -> None:
    ids = await put_many(database, 5)
    task = database.tables.task
    await change(database, sa.update(task).values(run_at=db_later(task.c.submitted_at, -1)))
    await runner.survey()
    assert [[task.id for task in await runner.claim_on(2)] for _ in range(3)] == [ids[:2], ids[2:4], ids[4:]]


async def test_a_task_that_saw_two_runners_die_is_handed_out_apart(database: Database, runner: Runner) -> None:
    suspect = await put(database, max_attempts=9)
    await rescue_again(runner, suspect, 2)
    harmless = await put(database)
    assert [task.id for task in await runner.claim()] == [harmless]
    assert [task.id for task in await runner.claim_suspect()] == [suspect]


async def test_a_task_at_its_last_chance_after_a_lost_runner_is_handed_out_apart(
    database: Database, runner: Runner
) -> None:
    suspect = await put(database, max_attempts=2)
    await rescue_again(runner, suspect, 1)
    assert await runner.claim() == []
    (task,) = await runner.claim_suspect()
    assert (task.id, task.attempt, task.rescues) == (suspect, 2, 1)


async def test_a_task_that_saw_one_runner_die_is_handed_out_as_others_are(database: Database, runner: Runner) -> None:
    task_id = await put(database, max_attempts=9)
    await rescue_again(runner, task_id, 1)
    assert await runner.claim_suspect() == []
    assert [task.id for task in await runner.claim()] == [task_id]


async def test_a_rescued_task_without_a_maximum_is_handed_out_as_others_are(database: Database, runner: Runner) -> None:
    task_id = await put(database)
    await rescue_again(runner, task_id, 1)
    await edit(database, task_id, max_attempts=None)
    assert [task.id for task in await runner.claim()] == [task_id]


async def test_suspects_come_one_at_a_time_and_only_of_known_handlers(database: Database, runner: Runner) -> None:
    foreign = await put(database, "foreign")
    ours = await put_many(database, 3)
    for task_id in (foreign, *ours):
        await edit(database, task_id, rescues=2, attempt=2, max_attempts=9)
    taken = [await runner.claim_suspect() for _ in range(4)]
    assert [[task.id for task in claimed] for claimed in taken] == [[id] for id in ours] + [[]]


async def test_a_suspect_that_is_not_due_yet_waits(database: Database, runner: Runner) -> None:
    task_id = await put(database, delay=30)
    await edit(database, task_id, rescues=2)
    assert await runner.claim_suspect() == []


@pytest.mark.parametrize("place", [Place(Kind.QUEUE, "mail"), Place(Kind.HANDLER, "work")], ids=str)
async def test_what_an_operator_paused_is_handed_out_when_that_is_over(database: Database, place: Place) -> None:
    task = await put(database, queue="mail")
    runner, ana = await Runner.enter(database), By("ana", "desk", "relay is down")
    await runner.survey()
    await database.write(pause, place, ana)
    assert await runner.claim_on() == []  # by the lanes that it knew before
    assert await runner.claim() == []
    registry = database.tables.queue if place.kind is Kind.QUEUE else database.tables.handler
    await change(database, sa.update(registry).values(paused_until=db_later(db_now(), -1)))
    assert [claimed.id for claimed in await runner.claim()] == [task]


@pytest.mark.parametrize("place", [Place(Kind.QUEUE, "mail"), Place(Kind.HANDLER, "work")], ids=str)
async def test_what_is_resumed_is_handed_out_again(database: Database, place: Place) -> None:
    task = await put(database, queue="mail")
    runner, ana = await Runner.enter(database), By("ana", "desk")
    await database.write(pause, place, ana)
    assert await runner.claim() == []
    await database.write(resume, place, ana)
    assert [claimed.id for claimed in await runner.claim()] == [task]
