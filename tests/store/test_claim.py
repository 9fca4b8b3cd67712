import asyncio
from collections import Counter

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import NewTask
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.operations.resume import resume
from runner.policy import suspicion
from runner.policy.claim_conditions import AttemptsLeft, used_up
from runner.policy.claim_facts import ClaimScope
from runner.policy.claim_policy import ISOLATION
from runner.policy.lanes import Lane
from runner.store.claim.plain import HandlerDefaults
from runner.store.heartbeat import heartbeat
from runner.store.registration import leave
from runner.store.submit import submit_many
from tests.conftest import on_postgresql
from tests.store.runners import Runner
from tests.store.table import change, edit, expire, live, make_due, put, put_many


async def put_in_disorder(database: Database) -> list[int]:
    """Submit due tasks of many lanes, and return their ids in claim order."""
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
    ids: list[int] = []
    while claimed := await runner.claim_on(limit):
        assert len(claimed) <= limit
        ids += [task.id for task in claimed]
    assert ids == expected


async def test_a_higher_priority_is_claimed_before_older_tasks(database: Database, runner: Runner) -> None:
    low, high = await put(database, priority=1), await put(database, priority=9)
    await edit(database, low, run_at=db_later(db_now(), -3_600))
    assert [task.id for task in await runner.claim(1)] == [high]
    assert [task.id for task in await runner.claim(1)] == [low]


async def test_no_task_is_claimed_early_by_the_databases_clock(database: Database, runner: Runner) -> None:
    await put(database, delay=30)
    due = await put(database)
    lanes = await runner.survey()
    assert list(lanes) == [Lane("default", "work", 1)]
    assert [task.id for task in await runner.claim_on()] == [due]
    assert await runner.claim() == []


async def test_a_task_is_claimed_once_it_is_due(database: Database, runner: Runner) -> None:
    later = await put(database, delay=30)
    assert await runner.claim() == []
    await make_due(database, later)
    assert [task.id for task in await runner.claim()] == [later]


async def test_tasks_of_unknown_handlers_are_not_claimed(database: Database, runner: Runner) -> None:
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


async def test_unset_limits_come_from_the_handler(database: Database) -> None:
    silent, telling = await put(database), await put(database, max_attempts=9, timeout=7.5)
    runner = await Runner.enter(database, terms=HandlerDefaults(4, 60.0))
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
        claimed_ids = []
        while claimed := await one.claim(13):
            claimed_ids += [task.id for task in claimed]
        return claimed_ids

    mine, theirs = await asyncio.gather(take(runner), take(other))
    assert Counter(mine + theirs) == Counter(ids)


async def test_concurrent_claims_share_no_task(runner: Runner) -> None:
    ids = await put_many(runner.database, 120)
    await runner.survey()
    claims = await asyncio.gather(*(runner.claim_on(20) for _ in range(6)))
    assert all(len(claimed) <= 20 for claimed in claims)
    assert Counter(task.id for claimed in claims for task in claimed) <= Counter(ids)


@on_postgresql
async def test_locked_tasks_are_skipped_without_waiting(database: Database, runner: Runner) -> None:
    ids = await put_many(database, 10)
    task = database.tables.task
    async with database.writing() as tx:
        await tx.rows(sa.select(task.c.id).where(task.c.id.in_(ids[:4])).with_for_update())
        claiming = asyncio.ensure_future(runner.claim(100))
        done, _ = await asyncio.wait([claiming], timeout=90)
    assert done, "it waited"
    assert [task.id for task in await claiming] == ids[4:]


async def test_a_runner_whose_lease_ran_out_gets_nothing(database: Database, runner: Runner) -> None:
    await put(database)
    await expire(database, runner.id)
    assert await runner.claim() == []
    assert await runner.claim_suspect() == []


async def test_a_removed_runner_gets_no_tasks(database: Database, runner: Runner) -> None:
    await put(database)
    await database.write(leave, runner.id)
    assert await runner.claim() == []


async def test_a_runner_that_renewed_its_lease_in_time_gets_tasks_again(database: Database, runner: Runner) -> None:
    await put(database)
    await expire(database, runner.id)
    await database.write(heartbeat, runner.id, 60, 0, 60)
    assert len(await runner.claim()) == 1


async def test_nothing_is_claimed_for_no_lanes_or_no_room(database: Database, runner: Runner) -> None:
    await put(database)
    assert await runner.claim_on() == []
    assert await runner.claim(0) == []


async def test_a_claim_continues_after_the_last_one_until_a_survey(database: Database, runner: Runner) -> None:
    ids = await put_many(database, 6)
    await runner.survey()
    assert [task.id for task in await runner.claim_on(2)] == ids[:2]
    behind = await put(database)
    await edit(database, behind, run_at=db_later(db_now(), -3_600))
    assert [task.id for task in await runner.claim_on(2)] == ids[2:4]
    assert [task.id for task in await runner.claim(2)] == [behind, ids[4]]


async def test_equal_times_are_ordered_by_id(database: Database, runner: Runner) -> None:
    ids = await put_many(database, 5)
    task = database.tables.task
    await change(database, sa.update(task).values(run_at=db_later(task.c.submitted_at, -1)))
    await runner.survey()
    assert [[task.id for task in await runner.claim_on(2)] for _ in range(3)] == [ids[:2], ids[2:4], ids[4:]]


async def test_a_task_rescued_twice_runs_in_isolation(database: Database, runner: Runner) -> None:
    suspect = await put(database, max_attempts=9)
    await rescue_again(runner, suspect, 2)
    harmless = await put(database)
    assert [task.id for task in await runner.claim()] == [harmless]
    assert [task.id for task in await runner.claim_suspect()] == [suspect]


async def test_a_rescued_task_on_its_last_attempt_runs_in_isolation(database: Database, runner: Runner) -> None:
    suspect = await put(database, max_attempts=2)
    await rescue_again(runner, suspect, 1)
    assert await runner.claim() == []
    (task,) = await runner.claim_suspect()
    assert (task.id, task.attempt, task.rescues) == (suspect, 2, 1)


async def test_a_task_rescued_once_is_claimed_like_others(database: Database, runner: Runner) -> None:
    task_id = await put(database, max_attempts=9)
    await rescue_again(runner, task_id, 1)
    assert await runner.claim_suspect() == []
    assert [task.id for task in await runner.claim()] == [task_id]


async def test_a_rescued_task_without_a_maximum_is_claimed_like_others(database: Database, runner: Runner) -> None:
    task_id = await put(database)
    await rescue_again(runner, task_id, 1)
    await edit(database, task_id, max_attempts=None)
    assert [task.id for task in await runner.claim()] == [task_id]


async def test_suspects_come_one_at_a_time_and_only_of_known_handlers(database: Database, runner: Runner) -> None:
    foreign = await put(database, "foreign")
    ours = await put_many(database, 3)
    for task_id in (foreign, *ours):
        await edit(database, task_id, rescues=2, attempt=2, max_attempts=9)
    claims = [await runner.claim_suspect() for _ in range(4)]
    assert [[task.id for task in claimed] for claimed in claims] == [[id] for id in ours] + [[]]


SUSPECTS = {
    "alone": {"rescues": 4, "attempt": 4},
    "narrow": {"rescues": 3, "attempt": 3},
    "wide": {"rescues": 2, "attempt": 2},
}


async def put_suspects(database: Database, *names: str) -> list[int]:
    ids = await put_many(database, len(names), max_attempts=9)
    for task_id, name in zip(ids, names, strict=True):
        await edit(database, task_id, **SUSPECTS[name])
    return ids


async def test_the_oldest_suspect_comes_first_and_only_if_its_group_allows_it(
    database: Database, runner: Runner
) -> None:
    """Otherwise a steady flow of new suspects would starve those that lost more runners."""
    alone, wide, narrow = await put_suspects(database, "alone", "wide", "narrow")
    assert await runner.claim_suspect(1, width=2) == [], "the oldest one runs alone, and no other one overtakes it"
    assert [task.id for task in await runner.claim_suspect(1)] == [alone]
    assert await runner.claim_suspect(1, width=17) == []
    assert [task.id for task in await runner.claim_suspect(1, width=2)] == [wide]
    assert [task.id for task in await runner.claim_suspect(1, width=4)] == [narrow]


async def test_only_suspects_of_wide_groups_are_claimed_beside_another(database: Database, runner: Runner) -> None:
    _, first, _, second = await put_suspects(database, "alone", "wide", "narrow", "wide")
    assert [task.id for task in await runner.claim_suspect(9, width=16, among=16)] == [first, second]


@pytest.mark.parametrize("max_attempts", [2, 3, 4, 5, 9])
async def test_the_database_and_the_policy_agree_on_suspects_and_widths(database: Database, max_attempts: int) -> None:
    ids = [(rescues, attempt) for rescues in range(7) for attempt in range(max_attempts)]
    tasks = await put_many(database, len(ids), max_attempts=max_attempts)
    for task_id, (rescues, attempt) in zip(tasks, ids, strict=True):
        await edit(database, task_id, rescues=rescues, attempt=attempt)
    task = database.tables.task
    async with database.reading() as tx:
        columns = (task.c.rescues, task.c.attempt, ISOLATION.is_suspect(task.c), ISOLATION.width(task.c))
        for rescues, attempt, suspect, width in await tx.rows(sa.select(*columns)):
            left = max_attempts - attempt
            assert (bool(suspect), width) == (
                suspicion.is_suspect(rescues, left, attempt),
                suspicion.width(rescues, left),
            )


@pytest.mark.parametrize("max_attempts", [None, 1, 2, 3])
async def test_the_database_and_the_policy_agree_on_attempts_left(database: Database, max_attempts: int | None) -> None:
    ids = await put_many(database, 4, max_attempts=max_attempts)
    for attempt, task_id in enumerate(ids):
        await edit(database, task_id, attempt=attempt)
    task = database.tables.task
    (left,) = AttemptsLeft().of_task(task.c, ClaimScope(database.tables))
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(task.c.attempt, left))
    assert len(rows) == len(ids)
    assert all(bool(has_left) is not used_up(attempt, max_attempts) for attempt, has_left in rows)


async def test_a_suspect_that_is_not_due_yet_waits(database: Database, runner: Runner) -> None:
    task_id = await put(database, delay=30)
    await edit(database, task_id, rescues=2)
    assert await runner.claim_suspect() == []


@pytest.mark.parametrize(
    "target", [PauseTarget(PauseKind.QUEUE, "mail"), PauseTarget(PauseKind.HANDLER, "work")], ids=str
)
async def test_tasks_are_claimed_again_when_a_pause_ends(database: Database, target: PauseTarget) -> None:
    task = await put(database, queue="mail")
    runner, ana = await Runner.enter(database), Actor("ana", "desk", "relay is down")
    await runner.survey()
    await database.write(pause, target, ana)
    assert await runner.claim_on() == []  # by the lanes of its last survey
    assert await runner.claim() == []
    registry = database.tables.queue if target.kind is PauseKind.QUEUE else database.tables.handler
    await change(database, sa.update(registry).values(paused_until=db_later(db_now(), -1)))
    assert [claimed.id for claimed in await runner.claim()] == [task]


@pytest.mark.parametrize(
    "target", [PauseTarget(PauseKind.QUEUE, "mail"), PauseTarget(PauseKind.HANDLER, "work")], ids=str
)
async def test_resumed_tasks_are_claimed_again(database: Database, target: PauseTarget) -> None:
    task = await put(database, queue="mail")
    runner, ana = await Runner.enter(database), Actor("ana", "desk")
    await database.write(pause, target, ana)
    assert await runner.claim() == []
    await database.write(resume, target, ana)
    assert [claimed.id for claimed in await runner.claim()] == [task]
