"""Retries and terminations of a workflow, or of a part of one, run its tasks in order."""

import json
from datetime import timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Dead
from runner.model.task import BatchMember, DependsOn, NewTask, NewWorkflow, OnFailure, State
from runner.operations.results import Actor, Result, Target
from runner.operations.retry import retry_now
from runner.operations.terminate import terminate
from runner.operations.undo.undo import undo
from runner.policy.retention import Retention
from runner.queries.audit import audit
from runner.store.retention import prune
from runner.store.submit import submit, submit_many, submit_with_result
from tests.store.dependencies import dependencies_of, resolve_parents, sweep
from tests.store.rows import history_row
from tests.store.runners import Runner

pytestmark = pytest.mark.both_databases

ANA = Actor("ana", "desk")


async def failed_chain(database: Database, runner: Runner, rule: OnFailure = "cancel") -> list[int]:
    """A workflow of three tasks in a chain: the first is dead, and the others are cancelled."""
    own = NewWorkflow("w")
    tasks = [
        NewTask("work", workflow=own, after=(DependsOn(BatchMember(place - 1), rule),) if place else None)
        for place in range(3)
    ]
    ids = (await database.write(submit_with_result, tasks)).ids
    (first,) = await runner.claim(1)
    await runner.end(first, Dead("no"))
    await resolve_parents(database, ids[0])
    await resolve_parents(database, ids[1])
    return ids


async def retry(database: Database, *ids: int) -> Result:
    return await database.write(retry_now, [Target(id) for id in ids], ANA)


async def states(database: Database, ids: list[int]) -> list[State]:
    found = []
    for id in ids:
        async with database.reading() as tx:
            task = tx.tables.task.c
            live = await tx.scalar(sa.select(task.state).where(task.id == id))
        found.append(State(live or (await history_row(database, id)).state))
    return found


async def test_a_retried_task_waits_for_a_parent_that_is_not_submitted_yet(database: Database) -> None:
    waiting = NewTask("work", workflow=NewWorkflow("w"), after=(DependsOn(("work", "later"), "cancel"),))
    id = await database.write(submit, waiting)
    await database.write(terminate, [Target(id)], ANA)
    assert (await retry(database, id)).changed == [id]
    (dependency,) = await dependencies_of(database, id)
    assert (dependency["satisfied_at"], dependency["parent_state"]) == (None, None)


async def test_a_retried_part_of_a_workflow_runs_in_order(database: Database, runner: Runner) -> None:
    ids = await failed_chain(database, runner)
    assert await states(database, ids) == [State.DEAD, State.CANCELLED, State.CANCELLED]
    assert (await retry(database, *reversed(ids))).changed == ids
    assert await states(database, ids) == [State.WAITING, State.BLOCKED, State.BLOCKED]
    for id in ids:
        (task,) = await runner.claim(9)
        assert task.id == id
        await runner.end(task)
        await resolve_parents(database, id)
    assert await states(database, ids) == [State.SUCCEEDED] * 3


@pytest.mark.slow
async def test_a_part_that_fails_again_is_cancelled_again(database: Database, runner: Runner) -> None:
    ids = await failed_chain(database, runner)
    await retry(database, *ids)
    (task,) = await runner.claim(9)
    await runner.end(task, Dead("no"))
    await resolve_parents(database, ids[0])
    await resolve_parents(database, ids[1])
    assert await states(database, ids) == [State.DEAD, State.CANCELLED, State.CANCELLED]


async def test_dependents_that_are_retried_first_wait_for_the_retry_of_their_parent(
    database: Database, runner: Runner
) -> None:
    ids = await failed_chain(database, runner)
    await retry(database, *ids[1:])
    await sweep(database)
    assert await states(database, ids) == [State.DEAD, State.BLOCKED, State.BLOCKED]
    await retry(database, ids[0])
    (task,) = await runner.claim(9)
    await runner.end(task)
    await resolve_parents(database, ids[0])
    assert await states(database, ids) == [State.SUCCEEDED, State.WAITING, State.BLOCKED]


async def fail(database: Database, runner: Runner, id: int) -> None:
    (task,) = await runner.claim(1)
    assert task.id == id
    await runner.end(task, Dead("no"))
    await sweep(database)


async def test_dependents_that_are_retried_first_are_cancelled_when_their_parent_fails_again(
    database: Database, runner: Runner
) -> None:
    ids = await failed_chain(database, runner)
    await retry(database, *ids[1:])
    for _ in range(2):
        await retry(database, ids[0])
        await fail(database, runner, ids[0])
        await sweep(database)
        assert await states(database, ids) == [State.DEAD, State.CANCELLED, State.CANCELLED]
        await retry(database, *ids[1:])
        await sweep(database)
        assert await states(database, ids) == [State.DEAD, State.BLOCKED, State.BLOCKED]


async def test_an_undone_retry_of_a_parent_leaves_its_retried_dependents_blocked(
    database: Database, runner: Runner
) -> None:
    ids = await failed_chain(database, runner)
    await retry(database, *ids[1:])
    await retry(database, ids[0])
    (entry, *_) = await database.read(audit)
    assert (await database.write(undo, [entry.id], ANA)).changed == [ids[0]]
    await sweep(database)
    assert await states(database, ids) == [State.DEAD, State.BLOCKED, State.BLOCKED]
    await retry(database, ids[0])
    await fail(database, runner, ids[0])
    assert (await states(database, ids))[:2] == [State.DEAD, State.CANCELLED]


async def test_a_retried_dependent_is_cancelled_when_its_restored_parent_is_terminated_again(
    database: Database,
) -> None:
    own = NewWorkflow("w")
    after = (DependsOn(BatchMember(0), "cancel"),)
    ids = await database.write(submit_many, [NewTask("work", workflow=own), NewTask("work", workflow=own, after=after)])
    await database.write(terminate, [Target(ids[0])], ANA)
    await sweep(database)
    await retry(database, ids[1])
    end = next(entry for entry in await database.read(audit) if entry.task_id == ids[0])
    assert (await database.write(undo, [end.id], ANA)).changed == [ids[0]]
    assert await states(database, ids) == [State.WAITING, State.BLOCKED]
    await database.write(terminate, [Target(ids[0])], ANA)
    await sweep(database)
    assert await states(database, ids) == [State.CANCELLED, State.CANCELLED]


async def test_a_dependent_that_is_retried_first_waits_for_the_latest_task_of_its_parents_key(
    database: Database, runner: Runner
) -> None:
    after = (DependsOn(("work", "k"), "cancel"),)
    child = await database.write(submit, NewTask("work", workflow=NewWorkflow("w"), after=after))
    parents = []
    for _ in range(2):
        parents.append(await database.write(submit, NewTask("work", key="k")))
        await fail(database, runner, parents[-1])
    await retry(database, child)
    await sweep(database)
    assert await states(database, [child]) == [State.BLOCKED]
    await retry(database, parents[0])
    await fail(database, runner, parents[0])
    assert await states(database, [child]) == [State.BLOCKED]
    await retry(database, parents[1])
    await fail(database, runner, parents[1])
    assert await states(database, [child]) == [State.CANCELLED]


async def test_the_retry_of_a_part_is_undone(database: Database, runner: Runner) -> None:
    ids = await failed_chain(database, runner)
    await retry(database, *ids)
    entries = await database.read(audit)
    assert {entry.task_id: json.loads(entry.after or "")["state"] for entry in entries} == dict(
        zip(ids, ("waiting", "blocked", "blocked"), strict=True)
    )
    result = await database.write(undo, [entry.id for entry in entries], ANA)
    assert sorted(result.changed) == ids
    assert await states(database, ids) == [State.DEAD, State.CANCELLED, State.CANCELLED]
    await sweep(database)
    assert await states(database, ids) == [State.DEAD, State.CANCELLED, State.CANCELLED]


async def test_dependents_wait_for_the_retry_of_their_parent_after_an_undone_retry(
    database: Database, runner: Runner
) -> None:
    ids = await failed_chain(database, runner)
    await retry(database, *ids)
    entries = [entry.id for entry in await database.read(audit)]
    assert sorted((await database.write(undo, entries, ANA)).changed) == ids
    await retry(database, *ids[1:])
    await sweep(database)
    assert await states(database, ids) == [State.DEAD, State.BLOCKED, State.BLOCKED]


async def test_a_dependent_that_was_terminated_before_its_parent_failed_waits_for_the_retry_of_that(
    database: Database, runner: Runner
) -> None:
    own = NewWorkflow("w")
    after = (DependsOn(BatchMember(0), "cancel"),)
    ids = await database.write(submit_many, [NewTask("work", workflow=own), NewTask("work", workflow=own, after=after)])
    await database.write(terminate, [Target(ids[1])], ANA)
    await sweep(database)
    (task,) = await runner.claim(9)
    await runner.end(task, Dead("no"))
    await retry(database, ids[1])
    await sweep(database)
    assert await states(database, ids) == [State.DEAD, State.BLOCKED]


async def test_a_retried_task_outside_of_workflows_runs_without_waiting(database: Database, runner: Runner) -> None:
    tasks = [NewTask("work"), NewTask("work", after=(DependsOn(BatchMember(0), "cancel"),))]
    ids = (await database.write(submit_with_result, tasks)).ids
    (first,) = await runner.claim(1)
    await runner.end(first, Dead("no"))
    await resolve_parents(database, ids[0])
    await retry(database, ids[1])
    assert await states(database, ids) == [State.DEAD, State.WAITING]


@pytest.mark.parametrize("rule", ["wait", "cancel"])
async def test_a_retried_task_waits_for_no_parent_that_was_pruned(
    database: Database, runner: Runner, rule: OnFailure
) -> None:
    own = NewWorkflow("w")
    parents = [NewTask("work", workflow=own, delay=float(delay)) for delay in (0, 3600)]
    after = tuple(DependsOn(BatchMember(place), rule) for place in range(2))
    first, second, child = await database.write(submit_many, [*parents, NewTask("work", workflow=own, after=after)])
    await database.write(terminate, [Target(child)], ANA)
    await sweep(database)
    (task,) = await runner.claim()
    await runner.end(task)
    await database.write(prune, Retention({State.SUCCEEDED: timedelta(seconds=-1)}, {}))
    await retry(database, child, second)
    await sweep(database)
    assert await states(database, [second, child]) == [State.WAITING, State.BLOCKED]
    (task,) = await runner.claim()
    await runner.end(task)
    await sweep(database)
    assert [task.id for task in await runner.claim()] == [child]
    assert await history_row(database, first) is None
