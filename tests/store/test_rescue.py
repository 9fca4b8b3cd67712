import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.outcome import Retry
from runner.model.task import Claimed
from runner.store.attempts import Start, mark_started
from runner.store.claim.plain import HandlerDefaults
from runner.store.registration import leave
from runner.store.rescue import CHUNK, LOST, OVERDUE, UNSTARTED, Rescuer, any_lost, rescue
from tests.conftest import on_postgresql, on_sqlite
from tests.store.runners import GRACE, LEASE, Runner
from tests.store.table import attempts, change, count, edit, expire, live, past, put, put_many, row_of


async def its_lease_runs_out(runner: Runner, _: Claimed) -> None:
    await expire(runner.database, runner.id)


async def its_entry_is_deleted(runner: Runner, _: Claimed) -> None:
    await runner.database.write(leave, runner.id)


async def the_deadline_passes(runner: Runner, task: Claimed) -> None:
    await edit(runner.database, task.id, deadline_at=db_later(db_now(), -GRACE - 1))


LOSSES = [its_lease_runs_out, its_entry_is_deleted, the_deadline_passes]


async def lost(runner: Runner, database: Database, **options: Any) -> Claimed:
    """A task whose runner is lost."""
    await put(database, **options)
    (task,) = await runner.claim()
    await expire(database, runner.id)
    return task


@pytest.mark.parametrize("lose", LOSSES, ids=[case.__name__ for case in LOSSES])
async def test_a_task_is_rescued_when(
    database: Database, runner: Runner, other: Runner, lose: Callable[[Runner, Claimed], Awaitable[None]]
) -> None:
    task_id = await put(database)
    (task,) = await runner.claim()
    await lose(runner, task)
    before = await live(database, task_id) or {}
    assert await other.rescue() == {task_id: "rescue"}
    row = await live(database, task_id) or {}
    why = OVERDUE if lose is the_deadline_passes else LOST
    assert (row["state"], row["attempt"], row["rescues"], row["error"]) == ("waiting", 1, 1, why.reason)
    assert (row["fence"], row["version"]) == (task.fence + 1, before["version"] + 1)
    assert row["runner_id"] is row["claimed_at"] is row["deadline_at"] is None
    assert [(again.id, again.attempt, again.fence) for again in await other.claim()] == [(task_id, 2, task.fence + 2)]


async def test_a_healthy_runner_keeps_its_tasks(database: Database, runner: Runner, other: Runner) -> None:
    task_id = await put(database, timeout=60.0)
    (task,) = await runner.claim()
    assert await other.rescue() == {}
    await edit(database, task_id, deadline_at=db_later(db_now(), 30 - GRACE))
    assert await other.rescue() == {}
    assert (await runner.end(task)).verbs == {task_id: "succeed"}


async def test_a_deadline_that_passed_leaves_the_runner_its_other_tasks(database: Database, runner: Runner) -> None:
    overdue, fine = await put_many(database, 2)
    await runner.claim()
    await edit(database, overdue, deadline_at=db_later(db_now(), -GRACE - 1))
    assert await runner.rescue() == {overdue: "rescue"}
    assert (await live(database, fine) or {})["state"] == "running"


async def test_a_rescue_returns_the_values_of_the_task(database: Database, runner: Runner, other: Runner) -> None:
    task = await lost(runner, database, tenant="acme", tags='["red"]', headers='{"a": "1"}')
    (rescued,) = (await database.write(rescue, Rescuer(other.id, 0.0), GRACE)).values()
    assert (rescued.max_attempts, rescued.tenant, rescued.runner_id) == (task.max_attempts, "acme", runner.id)
    assert (rescued.tags, rescued.headers) == ('["red"]', '{"a": "1"}')


async def test_a_rescue_keeps_the_attempt_with_its_reason(database: Database, runner: Runner, other: Runner) -> None:
    task = await lost(runner, database)
    await other.rescue()
    (kept,) = await attempts(database, task.id)
    assert [kept[name] for name in ("fence", "attempt", "verb", "error_type", "runner_id", "host", "delay")] == [
        *(task.fence, 1, "rescue", "runner lost", runner.id, "here", None)
    ]
    assert kept["started_at"] <= kept["ended_at"]


async def test_a_task_without_attempts_left_is_dead(database: Database, runner: Runner, other: Runner) -> None:
    task = await lost(runner, database, max_attempts=1)
    assert await other.rescue() == {task.id: "die"}
    row = await past(database, task.id) or {}
    assert (row["state"], row["attempt"], row["fence"]) == ("dead", 1, task.fence + 1)
    assert row["error"].startswith("runner lost")
    assert [kept["verb"] for kept in await attempts(database, task.id)] == ["die"]
    assert await live(database, task.id) is None


async def test_an_attempt_granted_while_it_ran_saves_the_task(
    database: Database, runner: Runner, other: Runner
) -> None:
    task = await lost(runner, database, max_attempts=1)
    await edit(database, task.id, max_attempts=2)
    assert await other.rescue() == {task.id: "rescue"}


async def test_a_lost_task_with_a_termination_request_is_cancelled(
    database: Database, runner: Runner, other: Runner
) -> None:
    task = await lost(runner, database)
    await edit(database, task.id, cancel_requested=True)
    assert await other.rescue() == {task.id: "cancel"}
    assert (await past(database, task.id) or {})["state"] == "cancelled"


async def test_a_late_settle_is_refused(database: Database, runner: Runner, other: Runner) -> None:
    task = await lost(runner, database)
    await other.rescue()
    before = await row_of(database, task.id)
    assert (await runner.end(task)).fenced == {task.id}
    assert await row_of(database, task.id) == before


async def test_nothing_is_rescued_twice(database: Database, runner: Runner, other: Runner) -> None:
    await lost(runner, database)
    assert len(await other.rescue()) == 1
    assert await other.rescue() == {}


async def test_runners_that_rescue_at_the_same_time_take_each_task_back_once(
    database: Database, runner: Runner, other: Runner
) -> None:
    await put_many(database, 200)
    assert len(await runner.claim(200)) == 200
    await expire(database, runner.id)
    rescues = await asyncio.gather(*(one.rescue() for one in (runner, other) for _ in range(3)))
    assert sum(map(len, rescues)) == len({task_id for verbs in rescues for task_id in verbs}) == 200
    assert await count(database, database.tables.attempt) == 200
    task = database.tables.task
    async with database.reading() as tx:
        assert await tx.rows(sa.select(task.c.rescues, task.c.fence).distinct()) == [(1, 2)]


@on_postgresql
async def test_tasks_locked_by_another_rescue_are_skipped(database: Database, runner: Runner, other: Runner) -> None:
    task_id = await put(database)
    await runner.claim()
    await database.write(leave, runner.id)
    async with database.writing() as tx:
        assert [(task, back.verb) for task, back in (await rescue(tx, other.rescuer, GRACE)).items()] == [
            (task_id, "rescue")
        ]
        rescuing = asyncio.ensure_future(other.rescue())
        done, _ = await asyncio.wait([rescuing], timeout=90)
    assert done, "it waited"
    assert await rescuing == {}
    assert len(await attempts(database, task_id)) == 1


async def test_a_rescue_beyond_one_transaction_continues_in_the_next(
    database: Database, runner: Runner, other: Runner
) -> None:
    await put_many(database, CHUNK + 100)
    await runner.claim(CHUNK + 100)
    await expire(database, runner.id)
    assert [len(await other.rescue()) for _ in range(3)] == [CHUNK, 100, 0]


async def test_a_task_that_kills_its_runners_is_dead_after_three_and_its_neighbours_finish(
    database: Database, other: Runner
) -> None:
    killer, *neighbours = await put_many(database, 10)
    starts = 0
    for _ in range(30):
        runner = await Runner.enter(database, terms=HandlerDefaults(3, None))
        claimed = await runner.claim() or await runner.claim_suspect()
        if killer in {task.id for task in claimed}:
            starts += 1
            await expire(database, runner.id)
            await other.rescue()
        else:
            for task in claimed:
                await runner.end(task)
    assert starts == 3
    assert (await past(database, killer) or {})["state"] == "dead"
    assert {(await past(database, task_id) or {})["state"] for task_id in neighbours} == {"succeeded"}


async def test_waiting_and_finished_tasks_are_never_rescued(database: Database, runner: Runner, other: Runner) -> None:
    await put(database)
    (task,) = await runner.claim()
    await runner.end(task, Retry("0s"))
    await change(database, sa.update(database.tables.task).values(deadline_at=db_later(db_now(), -60)))
    await expire(database, runner.id)
    assert await other.rescue() == {}


async def test_a_runner_with_an_expired_lease_rescues_no_tasks(
    database: Database, runner: Runner, other: Runner
) -> None:
    await lost(runner, database)
    assert await database.write(any_lost, other.rescuer, GRACE)
    await expire(database, other.id)
    assert not await database.write(any_lost, other.rescuer, GRACE)


async def registered(database: Database, runner: Runner, ago: float) -> None:
    """Let a runner have registered a while ago."""
    await change(
        database,
        sa.update(database.tables.runner)
        .where(database.tables.runner.c.id == runner.id)
        .values(available_since=db_later(db_now(), -ago)),
    )


async def test_a_newcomer_strikes_out_no_runner_before_one_lease_has_passed(
    database: Database, runner: Runner, other: Runner
) -> None:
    task = await lost(runner, database)
    newcomer = Rescuer(other.id, LEASE)
    await registered(database, other, LEASE - 5)
    assert not await database.write(any_lost, newcomer, GRACE)
    assert await other.rescue(available_for=LEASE) == {}
    assert await count(database, database.tables.runner) == 2, "it may renew yet"
    await registered(database, other, LEASE + 1)
    assert await database.write(any_lost, newcomer, GRACE)
    assert await other.rescue(available_for=LEASE) == {task.id: "rescue"}


async def test_a_rescue_keeps_the_lost_runners_with_their_tasks(
    database: Database, runner: Runner, other: Runner
) -> None:
    await put_many(database, 2)
    assert len(await runner.claim()) == 2
    idle = await Runner.enter(database, host="web-9")
    await expire(database, runner.id, idle.id)
    assert len(await other.rescue()) == 2
    table = database.tables.ended_runner.c
    columns = (table.runner_id, table.host, table.pid, table.version, table.lost, table.tasks)
    lost_before_now = (table.heartbeat_at <= table.ended_at) & (table.ended_at <= db_now())
    async with database.reading() as tx:
        rows = [tuple(row) for row in await tx.rows(sa.select(*columns).where(lost_before_now).order_by(*columns))]
    assert rows == [(runner.id, "here", 1, "test", True, 2), (idle.id, "web-9", 1, "test", True, 0)]
    assert await count(database, database.tables.runner) == 1
    await other.rescue()
    assert await count(database, database.tables.ended_runner) == 2


async def test_a_runner_that_left_is_not_lost(database: Database, runner: Runner, other: Runner) -> None:
    await database.write(leave, runner.id)
    await other.rescue()
    ended = database.tables.ended_runner.c
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(ended.runner_id, ended.host, ended.pid, ended.lost, ended.tasks))
    assert [tuple(row) for row in rows] == [(runner.id, "here", 1, False, 0)]
    assert await count(database, database.tables.runner) == 1


@on_sqlite
async def test_a_runner_row_that_python_cannot_read_stops_no_rescue(
    database: Database, runner: Runner, other: Runner
) -> None:
    task = await lost(runner, database)
    async with database.writing() as tx:
        values = "heartbeat_at = 'soon', pid = 'x', host = x'ff'"
        await tx.execute(sa.text(f"UPDATE {tx.tables.runner.name} SET {values} WHERE id = {runner.id}"))
    assert await other.rescue() == {task.id: "rescue"}


async def test_a_runner_whose_lease_expired_after_it_asked_rescues_nothing(
    database: Database, runner: Runner, other: Runner
) -> None:
    await lost(runner, database)
    assert await database.write(any_lost, other.rescuer, GRACE)
    await expire(database, other.id)
    assert await other.rescue() == {}
    assert await count(database, database.tables.runner) == 2


async def test_a_prefetched_task_that_is_not_marked_as_started_gets_its_attempt_back(
    database: Database, runner: Runner, other: Runner
) -> None:
    task_id = await put(database, max_attempts=1)
    (task,) = await runner.prefetch()
    assert (await live(database, task_id) or {})["started_at"] is None
    await expire(database, runner.id)
    assert await other.rescue() == {task_id: "rescue"}
    row = await live(database, task_id) or {}
    assert (row["state"], row["attempt"], row["rescues"], row["fence"]) == ("waiting", 0, 1, task.fence + 1)
    assert row["error"] == UNSTARTED
    assert await attempts(database, task_id) == [], "an attempt that does not count leaves no row"
    assert [(again.id, again.attempt) for again in await other.claim()] == [(task_id, 1)], "it is no suspect"


async def test_a_prefetched_task_that_is_marked_as_started_spends_its_attempt(
    database: Database, runner: Runner, other: Runner
) -> None:
    marked, other_task = await put_many(database, 2, max_attempts=1)
    first, second = await runner.prefetch()
    stale = Start(second.id, second.fence - 1, -0.2)
    await database.write(mark_started, runner.id, [Start(first.id, first.fence, -0.2), stale])
    row = await live(database, marked) or {}
    assert row["claimed_at"] is not None
    assert row["started_at"] is not None
    assert (await live(database, other_task) or {})["started_at"] is None
    await database.write(mark_started, other.id, [Start(second.id, second.fence, -0.2)])
    assert (await live(database, other_task) or {})["started_at"] is None, "another runner has it"
    await expire(database, runner.id)
    assert await other.rescue() == {marked: "die", other_task: "rescue"}


async def test_a_claim_into_free_slots_marks_its_tasks_as_started(database: Database, runner: Runner) -> None:
    task_id = await put(database)
    await runner.claim()
    row = await live(database, task_id) or {}
    assert row["started_at"] == row["claimed_at"] is not None


async def test_a_prefetched_task_that_was_to_be_terminated_is_cancelled_by_a_rescue(
    database: Database, runner: Runner, other: Runner
) -> None:
    task_id = await put(database)
    await runner.prefetch()
    await edit(database, task_id, cancel_requested=True)
    await expire(database, runner.id)
    assert await other.rescue() == {task_id: "cancel"}
    assert (await past(database, task_id) or {})["attempt"] == 0


async def test_a_maximum_that_was_cut_while_a_task_was_prefetched_still_counts(
    database: Database, runner: Runner, other: Runner
) -> None:
    task = await put(database, max_attempts=3)
    (claimed,) = await runner.claim()
    await runner.end(claimed, Retry("0s"))
    await runner.prefetch()
    await edit(database, task, max_attempts=1)
    await expire(database, runner.id)
    assert await other.rescue() == {task: "die"}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_task_that_kills_its_runners_before_it_is_marked_starts_twice_more_than_its_attempts(
    database: Database, other: Runner, most: int
) -> None:
    killer = await put(database, max_attempts=most)
    starts = 0
    while await past(database, killer) is None:
        runner = await Runner.enter(database)
        claimed = await runner.prefetch() or await runner.claim_suspect()
        assert [task.id for task in claimed] == [killer]
        starts += 1
        await expire(database, runner.id)
        await other.rescue()
    assert starts == most + 2
    row = await past(database, killer) or {}
    assert (row["state"], row["attempt"]) == ("dead", most)
    assert row["error"] == LOST.reason
