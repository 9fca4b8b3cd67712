"""Dependencies: a task is released exactly when the rules of all its parents are met."""

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import InvalidTask
from runner.model.outcome import Cancelled, Dead, Done, Outcome
from runner.model.task import BatchMember, DependsOn, NewTask, NewWorkflow, OrderKey, State, UniqueKey
from runner.operations.results import Actor, Target
from runner.operations.retry import requeue
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.policy.retention import Retention
from runner.queries.audit import audit
from runner.queries.task.detail import task_detail
from runner.store.dependencies.resolve import any_open
from runner.store.retention import prune
from runner.store.submit import submit, submit_many
from tests.conftest import on_postgresql
from tests.databases import database_at
from tests.store.dependencies import after, dependencies_of, put_after, resolve_parents, sweep
from tests.store.runners import Runner
from tests.store.table import change, count, edit, live, past, put, put_many, row_of

pytestmark = pytest.mark.one_database

ANA, BEN = Actor("ana", "desk"), Actor("ben", "desk")
ENDS: dict[str, Outcome] = {State.SUCCEEDED: Done(), State.DEAD: Dead("no"), State.CANCELLED: Cancelled("enough")}


async def end(runner: Runner, task_id: int, state: str = State.SUCCEEDED) -> None:
    """Bring the only due task into a final state, without notifying its dependents."""
    (task,) = await runner.claim()
    assert task.id == task_id
    if state == State.CANCELLED:
        await edit(runner.database, task_id, cancel_requested=True)
    await runner.end(task, ENDS[state])
    assert (await row_of(runner.database, task_id))["state"] == state


async def state(database: Database, task_id: int) -> str:
    return str((await row_of(database, task_id))["state"])


async def test_a_task_waits_until_its_parent_has_succeeded(database: Database, runner: Runner) -> None:
    parent = await put(database)
    child = await put_after(database, parent)
    row = await row_of(database, child)
    assert (row["state"], row["blocked_by"]) == (State.BLOCKED, 1)
    assert (await resolve_parents(database, parent)).unblocked == []
    await end(runner, parent)
    assert (await resolve_parents(database, parent)).unblocked == [child]
    freed = await row_of(database, child)
    assert (freed["state"], freed["blocked_by"], freed["version"]) == (State.WAITING, 0, row["version"] + 1)
    assert freed["run_at"] > row["run_at"]
    assert [task.id for task in await runner.claim()] == [child]
    (dependency,) = await dependencies_of(database, child)
    assert (dependency["parent_state"], dependency["satisfied_by"]) == (State.SUCCEEDED, None)
    assert dependency["satisfied_at"] is not None


RULES = [
    (rule, end_state, expected)
    for rule, expected in (("wait", State.BLOCKED), ("cancel", State.CANCELLED), ("run", State.WAITING))
    for end_state in (State.DEAD, State.CANCELLED)
]


@pytest.mark.parametrize(("rule", "end_state", "expected"), RULES)
async def test_each_dependency_determines_the_effect_of_a_failed_parent(
    database: Database, runner: Runner, rule: Any, end_state: str, expected: str
) -> None:
    parent = await put(database)
    child = await put_after(database, parent, on_failure=rule)
    await end(runner, parent, end_state)
    await resolve_parents(database, parent)
    row = await row_of(database, child)
    assert row["state"] == expected
    assert row["error"] == (f"parent {parent} is {end_state}" if rule == "cancel" else None)
    assert await database.write(any_open) is (rule == "wait")


@pytest.mark.parametrize("end_state", list(ENDS))
@pytest.mark.parametrize("rule", ["wait", "cancel", "run"])
async def test_a_parent_that_has_ended_already_means_the_same(
    database: Database, runner: Runner, rule: Any, end_state: str
) -> None:
    parent = await put(database)
    await end(runner, parent, end_state)
    child = await put_after(database, parent, on_failure=rule)
    met = end_state == State.SUCCEEDED or rule == "run"
    assert await state(database, child) == (State.WAITING if met else State.BLOCKED)
    await sweep(database)
    failed = State.CANCELLED if rule == "cancel" else State.BLOCKED
    assert await state(database, child) == (State.WAITING if met else failed)


async def test_a_task_waits_for_all_of_its_parents(database: Database, runner: Runner) -> None:
    parents = [await put(database, run_at=None) for _ in range(3)]
    child = await put_after(database, *parents)
    for left, parent in zip((2, 1, 0), parents, strict=True):
        (task,) = await runner.claim(1)
        await runner.end(task)
        freed = (await resolve_parents(database, parent)).unblocked
        row = await row_of(database, child)
        assert (freed, row["blocked_by"]) == ([child] if not left else [], left)
    assert json.loads(row["parents"]) == {"total": 3, "succeeded": 3, "dead": 0, "cancelled": 0}


async def test_a_cancelled_child_cancels_its_own_children(database: Database, runner: Runner) -> None:
    parent = await put(database)
    child = await put_after(database, parent, on_failure="cancel")
    grandchild = await put_after(database, child, on_failure="cancel")
    patient = await put_after(database, child)
    await end(runner, parent, State.DEAD)
    (cancelled,) = (await resolve_parents(database, parent)).cancelled
    assert cancelled.id == child
    assert [entry.id for entry in (await resolve_parents(database, child)).cancelled] == [grandchild]
    assert (await row_of(database, grandchild))["error"] == f"parent {child} is cancelled"
    assert await state(database, patient) == State.BLOCKED


async def test_a_retried_parent_that_succeeds_releases_its_dependents(database: Database, runner: Runner) -> None:
    parent = await put(database)
    child = await put_after(database, parent)
    await end(runner, parent, State.DEAD)
    assert (await resolve_parents(database, parent)).unblocked == []
    (dependency,) = await dependencies_of(database, child)
    assert (dependency["parent_state"], dependency["satisfied_at"]) == (State.DEAD, None)
    assert (await sweep(database)).skipped == []
    await database.write(requeue, [Target(parent)], ANA)
    await end(runner, parent)
    assert (await sweep(database)).unblocked == [child]


async def test_a_handler_and_a_key_may_be_submitted_later(database: Database, runner: Runner) -> None:
    child = await put_after(database, ("pay", "order-17"), on_failure="cancel")
    payer = await Runner.enter(database, "pay")
    others = [await put(database, handler="pay", key="order-18"), await put(database, handler="work", key="order-17")]
    for other, who in zip(others, (payer, runner), strict=True):
        await end(who, other)
        assert (await resolve_parents(database, other)).unblocked == []
    parent = await put(database, handler="pay", key="order-17")
    assert (await sweep(database)).unblocked == []
    await end(payer, parent)
    assert (await resolve_parents(database, parent)).unblocked == [child]
    (dependency,) = await dependencies_of(database, child)
    assert (dependency["parent_id"], dependency["parent_handler"], dependency["parent_key"]) == (
        parent,
        "pay",
        "order-17",
    )


async def test_a_dependency_by_key_means_the_latest_task(database: Database) -> None:
    payer = await Runner.enter(database, "pay")
    first = await put(database, handler="pay", key="k")
    await end(payer, first, State.DEAD)
    waits_for_first = await put_after(database, ("pay", "k"))
    second = await put(database, handler="pay", key="k", priority=9)
    third = await put(database, handler="pay", key="k")
    child = await put_after(database, ("pay", "k"))
    (task,) = await payer.claim(1)
    assert task.id == second
    await payer.end(task)
    assert (await resolve_parents(database, second)).unblocked == []
    await end(payer, third)
    assert set((await resolve_parents(database, third)).unblocked) == {waits_for_first, child}
    at_once = await put_after(database, ("pay", "k"))
    assert await state(database, at_once) == State.WAITING
    assert json.loads((await row_of(database, at_once))["parents"])["total"] == 1


async def test_an_unknown_parent_id_is_rejected(database: Database) -> None:
    parent = await put(database)
    with pytest.raises(InvalidTask, match=rf"value {parent + 5} for `after`: .* never submitted, was pruned"):
        await database.write(submit_many, [NewTask("work"), after(parent), after(parent + 5)])
    assert await count(database, database.tables.task) == 1


REFUSED: dict[str, DependsOn] = {
    "number zero": DependsOn(0),
    "a number that is none": DependsOn(2**63),
    "its own handler and key": DependsOn(("work", "me")),
    "NUL in the key": DependsOn(("work", "a\0")),
    "no handler": DependsOn(("", "k")),
    "an unknown rule": DependsOn(1, "explode"),  # type: ignore[arg-type] # it is what is refused
}


@pytest.mark.parametrize("dependency", REFUSED.values(), ids=REFUSED)
async def test_invalid_dependencies_are_rejected(database: Database, dependency: DependsOn) -> None:
    with pytest.raises(InvalidTask, match="after"):
        await put(database, key="me", after=(dependency,))
    assert await count(database, database.tables.task) == 0


@pytest.mark.both_databases
async def test_a_cycle_over_a_key_is_rejected_with_its_path(database: Database) -> None:
    ship = await put_after(database, ("pay", "o-17"), handler="ship", key="o-17")
    bill = await put_after(database, ship, handler="bill", key="o-17")
    path = rf"pay o-17 -> task {bill} \(bill o-17\) -> task {ship} \(ship o-17\) -> pay o-17"
    with pytest.raises(InvalidTask, match=f"it would depend on itself: {path}"):
        await put_after(database, bill, handler="pay", key="o-17")
    assert await count(database, database.tables.task) == 2
    assert await put_after(database, bill, handler="pay", key="o-18")


async def test_a_cycle_within_one_batch_is_rejected(database: Database) -> None:
    circle = [
        after(("work", "b"), key="a"),
        after(("work", "c"), key="b"),
        after(("work", "a"), key="c"),
    ]
    with pytest.raises(InvalidTask, match=r"depend on itself: work (\w) -> .*work \1"):
        await database.write(submit_many, circle)
    assert len(await database.write(submit_many, circle[:2])) == 2


@pytest.mark.both_databases
async def test_a_cycle_over_an_order_key_is_rejected(database: Database) -> None:
    order = OrderKey("shop 7")
    first = await put_after(database, ("pay", "o-17"), handler="ship", order_key=order)
    with pytest.raises(InvalidTask, match=rf"depend on itself: pay o-17 -> task {first} \(ship\) -> pay o-17"):
        await put(database, "pay", key="o-17", order_key=order)
    assert await put(database, "pay", key="o-17")


@pytest.mark.both_databases
async def test_a_cycle_over_a_duplicate_is_rejected(database: Database) -> None:
    once = UniqueKey("o-17")
    first = await put_after(database, ("pay", "o-17"), handler="ship", unique_key=once)
    tasks = [
        NewTask("ship", unique_key=once),
        NewTask("pay", key="o-17", after=(DependsOn(BatchMember(0)),)),
    ]
    with pytest.raises(InvalidTask, match=rf"depend on itself: pay o-17 -> task {first} \(ship\) -> pay o-17"):
        await database.write(submit_many, tasks)
    assert await count(database, database.tables.task) == 1


async def test_a_rejected_cycle_leaves_no_task_in_a_transaction_that_commits(database: Database) -> None:
    await put_after(database, ("pay", "o-17"), handler="ship", key="o-17")
    async with database.writing() as tx:
        with pytest.raises(InvalidTask, match="depend on itself"):
            await submit(tx, NewTask("pay", key="o-17", after=(DependsOn(("ship", "o-17")),)))
    assert await count(database, database.tables.task) == 1


BY_KEY = NewTask("part", key="first", after=(DependsOn(("join", "k")),))
ADDED: dict[str, list[NewTask]] = {
    "by its id": [NewTask("part", after=(DependsOn(2),))],
    "by its key": [BY_KEY],
    "in its order key": [NewTask("part", order_key=OrderKey("shop 7"))],
    "as itself": [NewTask("join", unique_key=UniqueKey("u"))],
    "through a new task": [BY_KEY, NewTask("part", after=(DependsOn(("part", "first")),))],
}


@pytest.mark.both_databases
@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
async def test_a_task_that_joins_a_workflow_cannot_wait_for_one_that_waits_for_it(
    database: Database, runner: Runner, added: list[NewTask]
) -> None:
    flow = NewWorkflow("book")
    split = NewTask("work", workflow=flow)
    options: dict[str, Any] = {"key": "k", "order_key": OrderKey("shop 7"), "unique_key": UniqueKey("u")}
    join = NewTask("join", workflow=flow, after=(DependsOn(BatchMember(0)),), **options)
    assert await database.write(submit_many, [split, join]) == [1, 2]
    (task,) = await runner.claim()
    new = NewWorkflow(of=task.id)
    with pytest.raises(InvalidTask, match=r"depend on itself: .*task 2 \(join k\)"):
        await database.write(submit_many, [each._replace(workflow=new) for each in added])
    assert await count(database, database.tables.task) == 2


@pytest.mark.both_databases
async def test_an_older_task_with_the_same_key_closes_no_cycle(database: Database) -> None:
    first = await put_after(database, ("pay", "o-17"), handler="ship", key="o-17")
    paid = await put_after(database, first, handler="pay", key="o-18")
    assert await put(database, "ship", key="o-17")
    assert await put_after(database, ("ship", "o-17"), handler="pay", key="o-17") > paid


async def test_a_fan_out_and_a_fan_in_over_many_chunks(
    database: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("submit", "dependencies.submit"):
        monkeypatch.setattr(f"runner.store.{module}.CHUNK", 100)
    root = await put(database)
    members = await database.write(submit_many, [after(root)] * 450)
    last = await database.write(submit_many, [NewTask("work", after=tuple(DependsOn(id, "run") for id in members))])
    await end(runner, root)
    freed: list[int] = []
    while more := (await resolve_parents(database, root, limit=100)).unblocked:
        freed += more
    assert sorted(freed) == members
    await edit(database, members[0], max_attempts=1)
    while claimed := await runner.claim(200):
        finished = [task for task in claimed if task.id not in last]
        for task in finished[:1]:
            await runner.end(task, Dead("no"))
        for first in range(1, len(finished), 50):
            await runner.settle(*map(_done, finished[first : first + 50]))
    while (await sweep(database)).unblocked == [] and await state(database, last[0]) == State.BLOCKED:
        pass
    row = await row_of(database, last[0])
    counts = json.loads(row["parents"])
    assert (row["state"], counts["total"]) == (State.WAITING, 450)
    assert counts["succeeded"] + counts["dead"] == 450
    assert counts["dead"] >= 1


def _done(task: Any) -> Any:
    from tests.store.runners import settlement

    return settlement(task)


async def test_tasks_without_dependencies_write_no_dependency_rows(database: Database) -> None:
    await put_many(database, 10)
    assert await count(database, database.tables.dependency) == 0
    assert not await database.write(any_open)


async def test_dependencies_of_a_task_that_was_ended_while_it_waited_are_closed(
    database: Database, runner: Runner
) -> None:
    parent = await put(database)
    child = await put_after(database, parent)
    await database.write(terminate, [Target(child)], ANA)
    assert await state(database, child) == State.CANCELLED
    await sweep(database)
    assert not await database.write(any_open)
    await end(runner, parent)
    assert (await resolve_parents(database, parent)).unblocked == []
    assert await live(database, child) is None


async def test_a_deleted_parent_counts_as_failed(database: Database) -> None:
    task = database.tables.task
    parents = [await put(database) for _ in range(2)]
    patient = await put_after(database, parents[0])
    eager = await put_after(database, parents[1], on_failure="run")
    doomed = await put_after(database, parents[1], on_failure="cancel")
    await change(database, sa.delete(task).where(task.c.id.in_(parents)))
    await sweep(database)
    assert [await state(database, id) for id in (patient, eager, doomed)] == [
        State.BLOCKED,
        State.WAITING,
        State.CANCELLED,
    ]
    assert (await past(database, doomed) or {})["error"] == f"parent {parents[1]} is gone"


async def test_a_blocked_row_from_a_foreign_client_is_released(database: Database, runner: Runner) -> None:
    parent = await put(database)
    async with database.writing() as tx:
        task, dependency = tx.tables.task, tx.tables.dependency
        child = await tx.scalar(sa.insert(task).values(handler="work", state="blocked").returning(task.c.id))
        await tx.execute(sa.insert(dependency).values(task_id=child, parent_id=parent))
    await end(runner, parent)
    assert (await resolve_parents(database, parent)).unblocked == [child]


async def test_a_task_that_is_due_later_stays_due_later(database: Database, runner: Runner) -> None:
    parent = await put(database)
    child = await put_after(database, parent, delay=3_600.0)
    before = (await row_of(database, child))["run_at"]
    await end(runner, parent)
    assert (await resolve_parents(database, parent)).unblocked == [child]
    assert (await row_of(database, child))["run_at"] == before


async def test_an_operator_unblocks_a_task(database: Database) -> None:
    parents = [await put(database) for _ in range(2)]
    child = await put_after(database, *parents, ("pay", "k"))
    version = (await row_of(database, child))["version"]
    first, _, keyed = await dependencies_of(database, child)
    answer = await database.write(unblock, [Target(child, version)], ANA, dependency_id=first["id"])
    assert answer.changed == [child]
    row = await row_of(database, child)
    assert (row["state"], row["blocked_by"], row["version"]) == (State.BLOCKED, 2, version + 1)
    late = await database.write(unblock, [Target(child, version)], ANA)
    assert [entry.id for entry in late.conflicts] == [child]
    assert (await database.write(unblock, [Target(child)], BEN)).changed == [child]
    row = await row_of(database, child)
    assert (row["state"], row["blocked_by"], row["version"]) == (State.WAITING, 0, version + 2)
    assert json.loads(row["parents"]) == {"total": 3, "succeeded": 0, "dead": 0, "cancelled": 0}
    assert [dependency["satisfied_by"] for dependency in await dependencies_of(database, child)] == [
        "ana",
        "ben",
        "ben",
    ]
    async with database.reading() as tx:
        first_entry, second_entry = reversed(await audit(tx, task_id=child))
    assert json.loads(first_entry.before or "")["waited_for"] == [f"task {parents[0]}"]
    assert json.loads(second_entry.before or "")["waited_for"] == ["pay k", f"task {parents[1]}"]
    assert json.loads(second_entry.after or "")["state"] == State.WAITING
    assert keyed["parent_key"] == "k"


async def test_only_open_dependencies_of_the_task_can_be_removed(database: Database) -> None:
    parent = await put(database)
    child, other = [await put_after(database, parent) for _ in range(2)]
    ((dependency,), (foreign,)) = await dependencies_of(database, child), await dependencies_of(database, other)
    refused = (await database.write(unblock, [Target(child)], ANA, dependency_id=foreign["id"])).skipped
    assert [(entry.id, entry.why) for entry in refused] == [(child, f"it has no open dependency {foreign['id']}")]
    (refusal,) = (await database.write(unblock, [Target(parent)], ANA)).skipped
    assert refusal.why == "it is waiting, not blocked"
    assert (await database.write(unblock, [Target(child)], ANA, dependency_id=dependency["id"])).changed == [child]
    assert await state(database, child) == State.WAITING


async def test_a_task_blocked_without_dependencies_can_be_unblocked(database: Database) -> None:
    child = await put(database)
    await edit(database, child, state="blocked")
    assert (await sweep(database)).unblocked == []
    assert (await database.write(unblock, [Target(child)], ANA)).changed == [child]
    assert await state(database, child) == State.WAITING


async def test_dependencies_are_pruned_with_their_task_and_awaited_parents_stay(
    database: Database, runner: Runner
) -> None:
    parent, done = await put(database), await put(database, priority=9)
    child = await put_after(database, parent, done)
    (first, second) = await runner.claim()
    await runner.end(first)
    await runner.end(second, Dead("no"))
    await resolve_parents(database, parent, done)
    at_once = Retention(dict.fromkeys((State.SUCCEEDED, State.DEAD, State.CANCELLED), timedelta(0)))
    pruned = await database.write(prune, at_once)
    assert pruned.tasks == {State.SUCCEEDED: 1, State.DEAD: 0, State.CANCELLED: 0}
    assert await past(database, parent)
    await database.write(terminate, [Target(child)], ANA)
    await sweep(database)
    pruned = await database.write(prune, at_once)
    assert pruned.tasks == {State.SUCCEEDED: 0, State.DEAD: 1, State.CANCELLED: 1}
    assert await count(database, database.tables.dependency) == 0


@on_postgresql
async def test_a_prefix_and_a_schema_have_their_own_dependencies(new_database: None, migrated_url: str) -> None:
    async with database_at(migrated_url, prefix="x_", schema="user") as database:
        await database.migrate()
        runner = await Runner.enter(database)
        parent = await put(database, key="k")
        children = [await put_after(database, parent), await put_after(database, ("work", "k"), on_failure="cancel")]
        await end(runner, parent, State.DEAD)
        resolved = await resolve_parents(database, parent)
        assert (resolved.unblocked, [child.id for child in resolved.cancelled]) == ([], children[1:])
        assert (await database.write(unblock, [Target(children[0])], ANA)).changed == children[:1]
        assert [
            kin.task.id for kin in (await database.read(task_detail, parent)).dependencies.below if kin.task
        ] == children
        assert not await database.write(any_open)
