from datetime import timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import InvalidSettings
from runner.model.task import Scope, State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.policy.retention import Retention
from runner.settings.loading import load
from runner.settings.queue_retention import parse_queue_retention, require_different_queues
from runner.store import retention
from runner.store.retention import Pruned, enforce, prune
from runner.store.submit import submit_with_result
from tests.store.rows import add_attempt, add_live, add_past, ahead, history_row
from tests.store.table import change
from tests.store.unique_tasks import let_time_pass, once

pytestmark = pytest.mark.one_database

DAY = timedelta(days=1)
KEEPING = Retention({State.SUCCEEDED: 7 * DAY, State.DEAD: 180 * DAY})


def days_ago(days: float) -> object:
    return ahead(-86_400 * days)


async def number_of(database: Database, name: str) -> int:
    async with database.reading() as tx:
        return int(await tx.scalar(sa.select(sa.func.count()).select_from(getattr(tx.tables, name))))


async def test_each_state_is_kept_for_its_own_time(database: Database) -> None:
    for id, state, days in (
        (1, State.SUCCEEDED, 8),
        (2, State.SUCCEEDED, 6),
        (3, State.DEAD, 8),
        (4, State.DEAD, 181),
        (5, State.CANCELLED, 1_000),
    ):
        await add_past(database, id, state, finished_at=days_ago(days))
    pruned = await database.write(prune, KEEPING)
    assert pruned == Pruned({State.SUCCEEDED: 1, State.DEAD: 1}, 0, False)
    assert [id for id in range(1, 6) if await history_row(database, id)] == [2, 3, 5]


async def test_attempts_and_audit_go_with_their_task_and_no_others(database: Database) -> None:
    by = Actor("ana", "desk-1")
    live = await add_live(database)
    await database.write(edit, live, None, Changes(priority=5), by)
    for id, days in ((100, 9), (101, 1)):
        await add_past(database, id, finished_at=days_ago(days))
        await add_attempt(database, id, 1)
        await add_attempt(database, id, 2)
        async with database.writing() as tx:
            audit_values = {"operator": "ana", "host": "desk-1", "verb": "edit", "task_id": id}
            await tx.execute(sa.insert(tx.tables.audit).values(**audit_values))
    await add_attempt(database, live)
    await database.write(prune, KEEPING)
    assert await number_of(database, "attempt") == 3
    assert await number_of(database, "audit") == 2


async def test_rows_are_deleted_in_small_chunks_to_the_end(database: Database) -> None:
    for id in range(1, 8):
        await add_past(database, id, State.DEAD if id % 2 else State.SUCCEEDED, finished_at=days_ago(200))
    rounds = []
    while True:
        pruned = await database.write(prune, KEEPING, 3)
        rounds.append(sum(pruned.tasks.values()))
        if not pruned.more:
            break
    assert rounds == [3, 3, 1]
    assert await number_of(database, "history") == 0


async def test_other_records_are_deleted_with_the_first_and_the_last_tasks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHUNK", 2)
    for id in range(1, 6):
        await add_past(database, id, finished_at=days_ago(200))
    async with database.writing() as tx:
        for runner_id in range(1, 4):
            values = {"queue": "q", "handler": "h", "runner_id": runner_id, "minute": days_ago(31)}
            await tx.execute(sa.insert(tx.tables.minute).values(**values))
    rounds = [pruned async for pruned in enforce(database, KEEPING, statistics=30 * DAY)]
    assert [sum(pruned.tasks.values()) for pruned in rounds if pruned.tasks] == [2, 2, 1]
    assert [pruned.minutes for pruned in rounds if pruned.tasks] == [2, 0, 1]


async def test_statistics_have_a_retention_of_their_own(database: Database) -> None:
    async with database.writing() as tx:
        for runner_id, days in ((1, 10), (2, 31), (3, 31), (4, 400)):
            values = {"queue": "q", "handler": "h", "runner_id": runner_id, "minute": days_ago(days)}
            await tx.execute(sa.insert(tx.tables.minute).values(**values))
    assert await database.write(prune, Retention({State.SUCCEEDED: DAY})) == Pruned({State.SUCCEEDED: 0})
    rounds: list[Pruned] = []
    while not rounds or rounds[-1].more:
        rounds.append(await database.write(prune, Retention(), 2, statistics=30 * DAY))
    assert [pruned.minutes for pruned in rounds] == [2, 1]
    assert await number_of(database, "minute") == 1


async def test_ended_runners_are_kept_as_long_as_statistics(database: Database) -> None:
    async with database.writing() as tx:
        for runner_id, days in ((1, 10), (2, 31), (3, 31), (4, 400)):
            values = {"runner_id": runner_id, "host": "h", "pid": 1, "version": "1", "lost": True, "tasks": 0}
            times = dict.fromkeys(("started_at", "heartbeat_at", "ended_at"), days_ago(days))
            await tx.execute(sa.insert(tx.tables.ended_runner).values(**values, **times))
    await database.write(prune, Retention({State.SUCCEEDED: DAY}))
    assert await number_of(database, "ended_runner") == 4
    rounds = [await database.write(prune, Retention(), 2, statistics=30 * DAY) for _ in range(2)]
    assert [pruned.more for pruned in rounds] == [True, False]
    assert await number_of(database, "ended_runner") == 1


async def test_a_workflow_is_kept_as_long_as_a_task_of_it(database: Database) -> None:
    async with database.writing() as tx:
        for days in (8, 8, 8, 1):
            await tx.execute(sa.insert(tx.tables.workflow).values(submitted_at=days_ago(days)))
    await add_live(database, workflow=1)
    await add_past(database, 100, finished_at=days_ago(1), workflow=2)
    await add_past(database, 101, finished_at=days_ago(9), workflow=3)
    await database.write(prune, Retention({State.SUCCEEDED: 7 * DAY}))
    async with database.reading() as tx:
        ids = await tx.rows(sa.select(tx.tables.workflow.c.id).order_by(tx.tables.workflow.c.id))
    assert [id for (id,) in ids] == [1, 2, 4]


async def test_live_tasks_and_runners_are_never_pruned(database: Database) -> None:
    await add_live(database, submitted_at=days_ago(9_000), run_at=days_ago(9_000))
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.runner).values(host="h", pid=1, version="1", lease_until=days_ago(999)))
    at_once = Retention(dict.fromkeys((State.SUCCEEDED, State.DEAD, State.CANCELLED), timedelta(0)))
    await database.write(prune, at_once)
    assert await number_of(database, "task") == 1
    assert await number_of(database, "runner") == 1


async def test_without_a_retention_everything_stays(database: Database) -> None:
    await add_past(database, 1, finished_at=days_ago(9_000))
    assert await database.write(prune, Retention()) == Pruned()
    assert await number_of(database, "history") == 1


async def test_keys_go_with_their_tasks_or_with_their_time_but_not_those_held_forever(database: Database) -> None:
    hour = once("hour", scope=Scope.FOR_A_TIME, seconds=3_600.0)
    batch = [once("finished"), once("forever", scope=Scope.FOREVER), hour, once("live")]
    ids = (await database.write(submit_with_result, batch)).ids
    await database.write(terminate, [Target(id) for id in ids[:3]], Actor("ana", "desk-1"))
    (newer,) = (await database.write(submit_with_result, [once("finished")])).ids
    policy = Retention({State.CANCELLED: timedelta(0)})
    await change(database, sa.update(database.tables.history).values(finished_at=days_ago(1)))

    pruned = await database.write(prune, policy)
    assert (pruned.tasks[State.CANCELLED], pruned.keys) == (3, 0)
    assert await keys(database) == {"finished": newer, "forever": ids[1], "hour": ids[2], "live": ids[3]}
    await let_time_pass(database)
    assert (await database.write(prune, Retention(), 1)) == Pruned({}, 0, True, 1)
    assert await keys(database) == {"finished": newer, "forever": ids[1], "live": ids[3]}

    await database.write(terminate, [Target(newer)], Actor("ana", "desk-1"))
    await change(database, sa.update(database.tables.history).values(finished_at=days_ago(1)))
    await database.write(prune, policy)
    assert await keys(database) == {"forever": ids[1], "live": ids[3]}
    assert (await database.write(submit_with_result, [once("forever")])).ids == [ids[1]]


async def keys(database: Database) -> dict[str, int]:
    unique = database.tables.unique
    async with database.reading() as tx:
        return {row.unique_key: row.task_id for row in await tx.rows(sa.select(unique))}


async def test_a_queue_with_its_own_retention_is_pruned_by_it(database: Database) -> None:
    for id, queue, state, days in (
        (1, "mail", State.SUCCEEDED, 8),
        (2, "audit", State.SUCCEEDED, 8),
        (3, "audit", State.SUCCEEDED, 400),
        (4, "chat", State.SUCCEEDED, 2),
        (5, "mail", State.SUCCEEDED, 2),
        (6, "audit", State.DEAD, 181),
        (7, "mail", State.DEAD, 181),
        (8, "laws", State.DEAD, 9_000),
    ):
        await add_past(database, id, state, queue=queue, finished_at=days_ago(days))
    succeeded, dead = {"audit": 365 * DAY, "chat": DAY}, {"laws": None}
    retention = Retention(KEEPING.states, {State.SUCCEEDED: succeeded, State.DEAD: dead})
    pruned = await database.write(prune, retention)
    assert pruned.tasks == {State.SUCCEEDED: 3, State.DEAD: 2}
    assert [id for id in range(1, 9) if await history_row(database, id)] == [2, 5, 8]


async def test_a_queue_is_pruned_by_its_own_retention_where_the_others_are_kept(database: Database) -> None:
    for id, queue in ((1, "chat"), (2, "mail")):
        await add_past(database, id, queue=queue, finished_at=days_ago(9_000))
    pruned = await database.write(prune, Retention(queues={State.SUCCEEDED: {"chat": DAY}}))
    assert pruned.tasks == {State.SUCCEEDED: 1}
    assert await history_row(database, 2)


async def test_a_look_for_old_tasks_of_a_queue_goes_on_where_the_last_ended(database: Database) -> None:
    retention = Retention(queues={State.SUCCEEDED: {"chat": DAY}})
    for id in range(1, 6):
        await add_past(database, id, queue="chat", finished_at=days_ago(10 - id))
    first = await database.write(prune, retention, 2)
    assert (first.tasks, first.more) == ({State.SUCCEEDED: 2}, True)
    await add_past(database, 6, queue="chat", finished_at=days_ago(10))
    rounds = [pruned async for pruned in enforce(database, retention, reached=first.reached)]
    assert [pruned.tasks for pruned in rounds] == [{State.SUCCEEDED: 3}]
    assert await history_row(database, 6)
    assert [each.tasks async for each in enforce(database, retention)] == [{State.SUCCEEDED: 1}]


async def test_a_task_whose_settle_commits_after_a_look_is_found_by_the_next(database: Database) -> None:
    retention = Retention(queues={State.SUCCEEDED: {"chat": timedelta(0)}})
    looked = await database.write(prune, retention)
    await add_past(database, 1, queue="chat", finished_at=ahead(-30))
    pruned = await database.write(prune, retention, reached=looked.reached)
    assert pruned.tasks == {State.SUCCEEDED: 1}


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("audit",), "audit is no retention of a queue: write QUEUE=AGE, such as audit=365d"),
        (("audit=soon",), "queue audit: 'soon' is not a duration"),
        (("audit=-1d",), "queue audit: '-1d' is not a duration: it must not be negative"),
        (("a=1d", "a:dead=2d"), "queue a has two retentions of dead tasks"),
    ],
)
def test_a_retention_of_a_queue_that_is_not_valid_is_refused(texts: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        require_different_queues(texts)


def test_a_queue_name_may_contain_the_signs_of_its_retention() -> None:
    assert parse_queue_retention("a:b=c:succeeded=0s") == ("a:b=c", (State.SUCCEEDED,), timedelta())
    assert parse_queue_retention("a:b=never").queue == "a:b"


def test_a_queue_keeps_no_succeeded_tasks_beside_a_retention_of_zero() -> None:
    with pytest.raises(InvalidSettings, match="queue audit keeps its succeeded tasks, but retention_succeeded is 0s"):
        load(retention_succeeded="0s", retention_queues="audit=1d")
    assert load(retention_succeeded="0s", retention_queues="audit:dead=1d").retention_queues == ("audit:dead=1d",)
