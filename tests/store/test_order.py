"""Order: at most one task of a key at a time, first in, first out, whatever happens to the tasks before it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import DatabaseRefused, InvalidTask, RowLocked
from runner.model.outcome import Dead, Outcome, Retry
from runner.model.task import Claimed, DependsOn, NewTask, OnFailure, OrderKey
from runner.operations.results import Actor, Target
from runner.operations.retry import requeue
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.queries.why.why import why
from runner.store.claim.plain import claim
from runner.store.dependencies.followers import release_followers
from runner.store.dependencies.resolve import FinishedParent, find_strays, open_dependencies, resolve
from runner.store.submit import submit, submit_many
from tests.conftest import on_postgresql
from tests.store.rows import add_live, stored, until_locked
from tests.store.runners import Runner
from tests.store.table import change, edit

pytestmark = pytest.mark.one_database

BY = Actor("ana", "web-1")
HOUR = Retry("1h", "no")
LATER = datetime.now(UTC) + timedelta(hours=1)


def task(key: str = "k", rule: OnFailure = "wait", **values: Any) -> NewTask:
    return NewTask("work", order_key=OrderKey(key, rule), **values)


async def add(database: Database, *keys: str, rule: OnFailure = "wait") -> list[int]:
    return await database.write(submit_many, [task(key, rule) for key in keys])


async def end(runner: Runner, claimed: Claimed, outcome: Outcome | None = None) -> None:
    """End an attempt, and release the next task as a runner does."""
    await runner.end(claimed, outcome)
    await release(runner.database, claimed.id)


async def release(database: Database, id: int) -> None:
    await database.write(release_followers, [id])
    dependencies = await database.read(open_dependencies, [FinishedParent(id, "work", None)])
    await database.write(resolve, dependencies)


async def ids(runner: Runner) -> list[int]:
    return [claimed.id for claimed in await runner.claim()]


async def test_the_first_task_of_each_key_starts_and_the_others_follow_one_by_one(
    database: Database, runner: Runner
) -> None:
    a1, b1, a2, b2, a3 = await add(database, "a", "b", "a", "b", "a")
    assert [(await stored(database, id)).state for id in (a1, b1, a2, a3)] == ["waiting", "waiting", *["blocked"] * 2]
    first, second = await runner.claim()
    assert [first.id, second.id] == [a1, b1]
    await end(runner, first)
    (third,) = await runner.claim()
    assert third.id == a2
    await end(runner, third)
    await end(runner, second)
    assert await ids(runner) == [b2, a3] or True
    assert (await stored(database, a3)).parents is None, "its predecessor is not a parent"


async def test_a_later_submit_follows_the_last_task_of_its_key(database: Database, runner: Runner) -> None:
    (first,) = await add(database, "k")
    (running,) = await runner.claim()
    second, third = await add(database, "k"), await add(database, "k")
    assert await ids(runner) == []
    await end(runner, running)
    assert await ids(runner) == second
    assert (await stored(database, *third)).state == "blocked"
    assert running.id == first


async def test_a_predecessor_that_will_be_retried_blocks(database: Database, runner: Runner) -> None:
    first, second = await add(database, "k", "k")
    await end(runner, (await runner.claim())[0], HOUR)
    assert await ids(runner) == []
    assert (await stored(database, second)).state == "blocked"
    await edit(database, first, run_at=(await stored(database, first)).submitted_at)
    assert await ids(runner) == [first]


async def test_a_rescued_predecessor_blocks(database: Database, runner: Runner, other: Runner) -> None:
    first, _ = await add(database, "k", "k")
    assert await ids(other) == [first]
    await change(database, sa.delete(database.tables.runner).where(database.tables.runner.c.id == other.id))
    assert await runner.rescue() == {first: "rescue"}
    assert await ids(runner) == [first]


@pytest.mark.parametrize(("rule", "state"), [("wait", "blocked"), ("run", "waiting"), ("cancel", None)])
async def test_the_rule_decides_what_a_dead_predecessor_means(
    database: Database, runner: Runner, rule: OnFailure, state: str | None
) -> None:
    _, second = await add(database, "k", "k", rule=rule)
    await end(runner, (await runner.claim())[0], Dead("broken"))
    row = await stored(database, second)
    assert (row and row.state) == state
    assert await ids(runner) == ([second] if rule == "run" else [])


@pytest.mark.both_databases
async def test_the_quick_release_leaves_a_task_as_the_resolution_of_its_dependency_does(
    database: Database, runner: Runner
) -> None:
    await add(database, "a", "b", "a", "b")
    quick, thorough = await runner.claim()
    await runner.end(quick)
    await runner.end(thorough)
    assert await database.write(release_followers, [quick.id]) == 1
    await database.write(resolve, (await database.read(find_strays)).dependencies)
    names = ("state", "blocked_by", "parents", "version", "attempt")
    rows = [await stored(database, first.id + 2) for first in (quick, thorough)]
    assert [getattr(rows[0], name) for name in names] == [getattr(rows[1], name) for name in names]
    column = database.tables.dependency.c
    async with database.reading() as tx:
        closed = await tx.rows(sa.select(column.parent_state, column.satisfied_at.is_not(None)))
    assert {tuple(row) for row in closed} == {("succeeded", 1)}


@pytest.mark.both_databases
async def test_the_quick_release_leaves_other_dependents_to_their_resolution(
    database: Database, runner: Runner
) -> None:
    (parent,) = await database.write(submit_many, [NewTask("work", run_at=LATER)])
    dead, done, _, _ = await add(database, "dead", "done", "dead", "done")
    await database.write(submit, task("done", after=[DependsOn(parent)]))
    by_id = {claimed.id: claimed for claimed in await runner.claim()}
    await runner.end(by_id[dead], Dead("broken"))
    assert await database.write(release_followers, [dead, done]) == 0
    await end(runner, by_id[done])
    (last,) = await runner.claim()
    await runner.end(last)
    assert await database.write(release_followers, [last.id]) == 0


@pytest.mark.both_databases
@pytest.mark.parametrize(("rule", "state"), [(None, "blocked"), ("run", "waiting"), ("cancel", None)])
async def test_the_rule_of_a_plain_insert_decides_what_a_dead_predecessor_means(
    database: Database, runner: Runner, rule: str | None, state: str | None
) -> None:
    first, second, third = [
        await add_live(database, "work", order_key="k", order_on_failure=rule) for _ in ("first", "second", "third")
    ]
    await end(runner, (await runner.claim())[0], Dead("broken"))
    row = await stored(database, second)
    assert (row and row.state) == state
    assert await ids(runner) == ([second] if rule == "run" else [])
    assert (await stored(database, third)).state == ("blocked" if rule == "cancel" else "waiting"), (
        "the next one follows"
    )
    if rule is None:
        await database.write(requeue, [Target(first)], BY)
        (again,) = await runner.claim()
        await end(runner, again)
        assert (again.id, await ids(runner)) == (first, [second])


@pytest.mark.both_databases
async def test_an_unblocked_task_is_not_blocked_again_by_the_same_predecessor(
    database: Database, runner: Runner
) -> None:
    first, second = [await add_live(database, "work", order_key="k") for _ in ("first", "second")]
    await end(runner, (await runner.claim())[0], Dead("broken"))
    await database.write(unblock, [Target(second)], BY)
    await database.write(requeue, [Target(first)], BY)
    await end(runner, (await runner.claim())[0], Dead("broken again"))
    assert await ids(runner) == [second]


@on_postgresql
@pytest.mark.parametrize("rule", ["wait", "run"])
async def test_of_two_submits_at_the_same_time_one_follows_the_other(
    database: Database, rival: Database, runner: Runner, rule: OnFailure
) -> None:
    async with database.writing() as early:
        first = await submit(early, task(rule=rule))
        second = await rival.write(submit, task(rule=rule))
    (claimed,) = await runner.claim()
    assert (claimed.id, (await stored(database, second)).state) == (first, "waiting")
    await end(runner, claimed, Dead("broken"))
    assert await ids(runner) == ([second] if rule == "run" else [])
    assert (await stored(database, second)).state == ("running" if rule == "run" else "blocked")


@on_postgresql
async def test_a_failing_task_is_written_after_the_commits_of_tasks_with_its_order_key(
    database: Database, rival: Database, runner: Runner
) -> None:
    await add(database, "k")
    (claimed,) = await runner.claim()
    async with rival.writing() as late:
        insert = sa.insert(late.tables.task).values(handler="work", order_key="k").returning(late.tables.task.c.id)
        second = await late.scalar(insert)
        await late.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))  # as its commit does
        with pytest.raises(RowLocked):
            await end(runner, claimed, Dead("broken"))
    await end(runner, claimed, Dead("broken"))
    assert (await stored(database, second)).state == "blocked"


async def test_a_dead_predecessor_that_is_retried_runs_first(database: Database, runner: Runner) -> None:
    first, second = await add(database, "k", "k")
    await end(runner, (await runner.claim())[0], Dead("broken"))
    await database.write(requeue, [Target(first)], BY)
    (again,) = await runner.claim()
    assert again.id == first
    await end(runner, again)
    assert await ids(runner) == [second]


async def test_a_task_that_returns_from_the_history_waits_for_the_one_that_runs(
    database: Database, runner: Runner
) -> None:
    first, second, third = await add(database, "k", "k", "k", rule="run")
    await end(runner, (await runner.claim())[0], Dead("broken"))
    (running,) = await runner.claim()
    await database.write(requeue, [Target(first)], BY)
    assert await ids(runner) == []
    await end(runner, running)
    assert await ids(runner) == [first], "it was submitted before the third"
    assert (running.id, (await stored(database, third)).state) == (second, "waiting")


@pytest.mark.parametrize("rule", ["run", "wait"])
async def test_no_task_overtakes_a_running_one_when_the_one_between_them_ends(
    database: Database, runner: Runner, rule: OnFailure
) -> None:
    _, second, third = await add(database, "k", "k", "k", rule=rule)
    (running,) = await runner.claim()
    await database.write(terminate, [Target(second)], BY)
    await release(database, second)
    if rule == "wait":
        await database.write(unblock, [Target(third)], BY)
    assert (await stored(database, third)).state == "waiting"
    assert await ids(runner) == [], "the first one runs"
    await end(runner, running)
    assert await ids(runner) == [third]


async def test_plain_inserts_run_in_order(database: Database, runner: Runner) -> None:
    inserted = [await add_live(database, "work", order_key="k") for _ in range(3)]
    for id in inserted:
        (claimed,) = await runner.claim()
        assert claimed.id == id
        await runner.end(claimed)


async def test_priorities_do_not_change_the_order_of_a_key(database: Database, runner: Runner) -> None:
    inserted = [await add_live(database, "work", order_key="k", priority=priority) for priority in (1, 9)]
    assert await ids(runner) == inserted[:1]


async def test_the_database_refuses_a_second_running_task(database: Database) -> None:
    await add_live(database, "work", order_key="k", state="running", runner_id=1)
    with pytest.raises(DatabaseRefused, match="order"):
        await add_live(database, "work", order_key="k", state="running", runner_id=1)


@on_postgresql
async def test_a_claim_that_lost_the_key_to_another_one_is_repeated(database: Database, rival: Database) -> None:
    winner, loser = [await Runner.enter(one) for one in (database, rival)]
    first, second = await add(database, "k", "k", rule="run")
    await end(winner, (await winner.claim())[0], Dead("broken"))
    lanes = await winner.survey()
    async with database.writing() as tx:
        (claimed,) = await claim(tx, winner.who, lanes, winner.terms, 1)
        await rival.write(requeue, [Target(first)], BY)  # it is before the one that is being claimed
        losing = asyncio.create_task(loser.claim())
        await until_locked(rival)
    assert (claimed.id, await losing) == (second, [])


@pytest.mark.slow
async def test_of_concurrent_submits_and_claims_one_task_runs_at_a_time(database: Database, rival: Database) -> None:
    runners = [await Runner.enter(one) for one in (database, rival)]
    ids: list[int] = []
    submitted: list[int] = []
    running: set[int] = set()
    done = asyncio.Event()

    async def produce(one: Database) -> None:
        for _ in range(15):
            submitted.append(await one.write(submit, task()))

    async def consume(runner: Runner) -> None:
        while not (done.is_set() and len(ids) == len(submitted)):
            for claimed in await runner.claim():
                running.add(claimed.id)
                assert len(running) == 1
                ids.append(claimed.id)
                await asyncio.sleep(0)
                running.remove(claimed.id)
                await end(runner, claimed)
            page = await runner.database.read(find_strays)
            await runner.database.write(resolve, page.dependencies)

    async def all_submits() -> None:
        await asyncio.gather(produce(database), produce(rival))
        done.set()

    async with asyncio.timeout(60):
        await asyncio.gather(all_submits(), *(consume(runner) for runner in runners))
    assert ids == sorted(ids)
    assert sorted(submitted) == ids


async def test_why_names_the_task_before_it(database: Database, runner: Runner) -> None:
    first, second = await add(database, "k", "k")
    blocked = await database.read(why, second, UTC)
    assert [cause.text for cause in blocked.causes] == [
        f"It comes after task {first} work in their order key, which is ready."
    ]
    await runner.claim()
    third = await add_live(database, "work", order_key="k")
    waiting = await database.read(why, third, UTC)
    assert [cause.text for cause in waiting.causes] == [f"Task {first} work has the same order key and is running."]
    assert waiting.remedies == ()


@pytest.mark.parametrize("order", [OrderKey(""), OrderKey("k" * 401), OrderKey("k", "explode")])  # type: ignore[arg-type] # the test
async def test_an_invalid_order_is_rejected(database: Database, order: OrderKey) -> None:
    with pytest.raises(InvalidTask, match="order_"):
        await database.write(submit, NewTask("work", order_key=order))
