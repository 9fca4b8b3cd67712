"""A row at the bound of a column stops no others, is visible, and runs again after a retry."""

from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Release
from runner.model.task import HIGHEST_FENCE, MOST_ATTEMPTS
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.operations.undo.undo import undo
from runner.queries.audit import audit
from runner.queries.why.why import why
from tests.store.dependencies import put_after, resolve_parents
from tests.store.runners import Runner
from tests.store.table import attempts, change, expire, live, past, put, put_many

pytestmark = pytest.mark.one_database

BY = Actor("ana", "desk", "a script wrote the fence")
AT_BOUND: dict[str, dict[str, Any]] = {
    "attempt": {"attempt": MOST_ATTEMPTS},
    "fence": {"fence": HIGHEST_FENCE},
    "both": {"attempt": MOST_ATTEMPTS, "fence": HIGHEST_FENCE},
}
UNCLAIMED = pytest.mark.parametrize("values", AT_BOUND.values(), ids=AT_BOUND.keys())


async def set_row(database: Database, task_id: int, **values: Any) -> None:
    task = database.tables.task
    await change(database, sa.update(task).where(task.c.id == task_id).values(values))


@UNCLAIMED
@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_task_at_a_bound_stops_no_claim(
    database: Database, runner: Runner, values: dict[str, Any], lanes: int
) -> None:
    bad = await put(database)
    await set_row(database, bad, **values)
    others = await put_many(database, 3)
    others += [await put(database, queue=f"q{number}") for number in range(lanes - 1)]
    assert sorted(task.id for task in await runner.claim()) == others


@UNCLAIMED
async def test_a_suspect_at_a_bound_stops_no_other_suspect(
    database: Database, runner: Runner, values: dict[str, Any]
) -> None:
    bad, other = await put(database), await put(database)
    for task_id in (bad, other):
        await set_row(database, task_id, rescues=2)
    await set_row(database, bad, **values)
    assert [task.id for task in await runner.claim_suspect(limit=4)] == [other]


async def test_a_version_or_a_count_at_its_bound_stops_nothing(database: Database, runner: Runner) -> None:
    ids = await put_many(database, 2)
    await set_row(database, ids[0], version=HIGHEST_FENCE, releases=MOST_ATTEMPTS)
    first, _ = await runner.claim()
    row = await live(database, ids[0])
    assert row is not None
    assert row["version"] == 1
    assert (await runner.end(first, Release("no slot"))).verbs == {ids[0]: "release"}
    row = await live(database, ids[0])
    assert row is not None
    assert (row["state"], row["releases"]) == ("waiting", MOST_ATTEMPTS)


@pytest.mark.parametrize("began", [True, False], ids=["started", "prefetched"])
async def test_a_lost_task_with_the_highest_fence_stops_no_rescue_and_is_dead(
    database: Database, runner: Runner, began: bool
) -> None:
    bad, other = await put_many(database, 2)
    victim = await Runner.enter(database)
    claimed = {task.id: task for task in await (victim.claim() if began else victim.prefetch())}
    await set_row(database, bad, fence=HIGHEST_FENCE, version=HIGHEST_FENCE, rescues=MOST_ATTEMPTS)
    await expire(database, victim.id)
    assert await runner.rescue() == {bad: "die", other: "rescue"}
    row = await past(database, bad)
    assert row is not None
    assert (row["state"], row["fence"]) == ("dead", HIGHEST_FENCE)
    assert row["error"] == "runner lost, and its fence is 1,000,000,000,000,000,000, the highest possible value"
    assert len(await attempts(database, bad)) == began
    late = claimed[bad]._replace(fence=HIGHEST_FENCE)
    assert (await victim.end(late)).fenced == {bad}


async def test_a_lost_task_with_many_rescues_returns_to_the_queue(database: Database, runner: Runner) -> None:
    task_id = await put(database)
    victim = await Runner.enter(database)
    await victim.claim()
    await set_row(database, task_id, version=HIGHEST_FENCE, rescues=MOST_ATTEMPTS)
    await expire(database, victim.id)
    assert await runner.rescue() == {task_id: "rescue"}
    row = await live(database, task_id)
    assert row is not None
    assert (row["rescues"], row["version"]) == (MOST_ATTEMPTS, 1)


@UNCLAIMED
async def test_why_names_the_bound_and_a_retry_lets_the_task_run(
    database: Database, runner: Runner, values: dict[str, Any]
) -> None:
    task_id = await put(database)
    await set_row(database, task_id, **values)
    answer = await database.read(why, task_id, UTC)
    (cause,) = answer.causes
    name = "attempts are 1,000,000,000" if "attempt" in values else "fence is 1,000,000,000,000,000,000"
    assert cause.text == f"Its {name}, the highest possible value, which only a change by another program can reach."
    assert cause.advice == f"runner retry {task_id}"
    assert [chance.commands for chance in answer.remedies] == [f"runner retry {task_id}"]
    result = await database.write(retry_now, [Target(task_id, None)], BY)
    assert result.changed == [task_id]
    (task,) = await runner.claim()
    assert task.id == task_id
    assert task.attempt == 1
    assert task.fence < HIGHEST_FENCE
    if "fence" in values:
        assert task.fence > HIGHEST_FENCE // 10


@UNCLAIMED
async def test_a_retry_keeps_the_rest_of_the_row_and_its_dependents(
    database: Database, runner: Runner, values: dict[str, Any]
) -> None:
    parent = await put(database)
    task_id = await put_after(database, parent)
    child = await put_after(database, task_id)
    (task,) = await runner.claim()
    await runner.end(task)
    await resolve_parents(database, parent)
    await set_row(database, task_id, error="the relay was down", priority=7, retry="1m", max_attempts=None, **values)
    before = await live(database, task_id)
    await database.write(retry_now, [Target(task_id, None)], BY)
    after = await live(database, task_id)
    assert before is not None
    assert after is not None
    assert before["parents"] is not None
    changes = {name for name in before if before[name] != after[name]}
    assert changes <= {"attempt", "retried", "fence", "run_at", "version"}
    assert await past(database, task_id) is None
    (task,) = await runner.claim()
    await runner.end(task)
    assert (await resolve_parents(database, task_id)).unblocked == [child]


async def test_a_dead_task_with_the_highest_fence_runs_after_a_retry(database: Database, runner: Runner) -> None:
    task_id = await put(database)
    victim = await Runner.enter(database)
    await victim.claim()
    await set_row(database, task_id, fence=HIGHEST_FENCE, version=HIGHEST_FENCE)
    await expire(database, victim.id)
    await runner.rescue()
    assert (await database.write(retry_now, [Target(task_id, None)], BY)).changed == [task_id]
    assert [task.id for task in await runner.claim()] == [task_id]


async def test_a_blocked_task_with_the_highest_version_is_unblocked(database: Database, runner: Runner) -> None:
    parent = await put(database)
    children = [await put_after(database, parent) for _ in range(2)]
    await set_row(database, children[0], version=HIGHEST_FENCE)
    (task,) = await runner.claim()
    await runner.end(task)
    assert sorted((await resolve_parents(database, parent)).unblocked) == children


async def test_an_undo_of_a_retry_that_reset_a_fence_buries_the_task_again(database: Database, runner: Runner) -> None:
    task_id = await put(database)
    victim = await Runner.enter(database)
    await victim.claim()
    await set_row(database, task_id, fence=HIGHEST_FENCE)
    await expire(database, victim.id)
    await runner.rescue()
    await database.write(retry_now, [Target(task_id, None)], BY)
    (entry,) = await database.read(audit, task_id=task_id)
    assert (await database.write(undo, [entry.id], BY)).changed == [task_id]
    row = await past(database, task_id)
    assert row is not None
    assert row["state"] == "dead"
