"""Tasks that wait for others: each is let go exactly when the rule of each of its parents is met."""

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.errors import InvalidTask
from runner.outcome import Cancelled, Dead, Done, Outcome
from runner.store.database import Database
from runner.store.dependencies import any_open
from runner.store.intervene import By, Target, requeue, terminate, unblock
from runner.store.observe import audit, story
from runner.store.prune import prune
from runner.store.submit import submit_many
from runner.task import After, NewTask, State
from tests.store.conftest import ON_POSTGRESQL
from tests.store.family import after, edges, put_after, sweep, tell
from tests.store.runners import Runner
from tests.store.table import change, count, edit, live, past, put, put_many, standing

ANA, BEN = By("ana", "desk"), By("ben", "desk")
ENDS: dict[str, Outcome] = {State.SUCCEEDED: Done(), State.DEAD: Dead("no"), State.CANCELLED: Cancelled("enough")}


async def end(runner: Runner, task_id: int, state: str = State.SUCCEEDED) -> None:
    """Let a task, the only one that is due, end in a state; nobody is told."""
    (task,) = await runner.claim()
    assert task.id == task_id
    if state == State.CANCELLED:
        await edit(runner.database, task_id, cancel_requested=True)
    await runner.end(task, ENDS[state])
    assert (await standing(runner.database, task_id))["state"] == state


async def state(database: Database, task_id: int) -> str:
    return str((await standing(database, task_id))["state"])


async def test_a_task_waits_until_its_parent_has_succeeded(database: Database, runner: Runner) -> None:
    parent = await put(database)
    child = await put_after(database, parent)
    row = await standing(database, child)
    assert (row["state"], row["blocked_by"]) == (State.BLOCKED, 1)
    assert (await tell(database, parent)).freed == []
    await end(runner, parent)
    assert (await tell(database, parent)).freed == [child]
    freed = await standing(database, child)
    assert (freed["state"], freed["blocked_by"], freed["version"]) == (State.WAITING, 0, row["version"] + 1)
    assert freed["run_at"] > row["run_at"]
    assert [task.id for task in await runner.claim()] == [child]
    (edge,) = await edges(database, child)
    assert (edge["parent_state"], edge["satisfied_by"]) == (State.SUCCEEDED, None)
    assert edge["satisfied_at"] is not None


RULES = [
    (rule, ended, expected)
    for rule, expected in (("wait", State.BLOCKED), ("cancel", State.CANCELLED), ("run", State.WAITING))
    for ended in (State.DEAD, State.CANCELLED)
]


@pytest.mark.parametrize(("rule", "ended", "expected"), RULES)
async def test_what_a_parent_that_failed_means_is_for_each_edge_to_say(
    database: Database, runner: Runner, rule: Any, ended: str, expected: str
) -> None:
    parent = await put(database)
    child = await put_after(database, parent, on_failure=rule)
    await end(runner, parent, ended)
    await tell(database, parent)
    row = await standing(database, child)
    assert row["state"] == expected
    assert row["error"] == (f"parent {parent} is {ended}" if rule == "cancel" else None)
    assert await database.state(any_open) is (rule == "wait")


@pytest.mark.parametrize("ended", list(ENDS))
@pytest.mark.parametrize("rule", ["wait", "cancel", "run"])
async def test_a_parent_that_has_ended_already_means_the_same(
    database: Database, runner: Runner, rule: Any, ended: str
) -> None:
    parent = await put(database)
    await end(runner, parent, ended)
    child = await put_after(database, parent, on_failure=rule)
    met = ended == State.SUCCEEDED or rule == "run"
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
        freed = (await tell(database, parent)).freed
        row = await standing(database, child)
        assert (freed, row["blocked_by"]) == ([child] if not left else [], left)
    assert json.loads(row["parents"]) == {"total": 3, "succeeded": 3, "dead": 0, "cancelled": 0}


async def test_a_cancelled_child_cancels_its_own_children(database: Database, runner: Runner) -> None:
    parent = await put(database)
    child = await put_after(database, parent, on_failure="cancel")
    grandchild = await put_after(database, child, on_failure="cancel")
    patient = await put_after(database, child)
    await end(runner, parent, State.DEAD)
    (cancelled,) = (await tell(database, parent)).cancelled
    assert cancelled.id == child
    assert [found.id for found in (await tell(database, child)).cancelled] == [grandchild]
    assert (await standing(database, grandchild))["error"] == f"parent {child} is cancelled"
    assert await state(database, patient) == State.BLOCKED


async def test_a_dead_parent_that_is_run_again_and_succeeds_lets_go_what_waits(
    database: Database, runner: Runner
) -> None:
    parent = await put(database)
    child = await put_after(database, parent)
    await end(runner, parent, State.DEAD)
    assert (await tell(database, parent)).freed == []
    (edge,) = await edges(database, child)
    assert (edge["parent_state"], edge["satisfied_at"]) == (State.DEAD, None)
    assert (await sweep(database)).left == []
    await database.write(requeue, [Target(parent)], ANA)
    await end(runner, parent)
    assert (await sweep(database)).freed == [child]


async def test_a_handler_and_a_key_may_be_submitted_later(database: Database, runner: Runner) -> None:
    child = await put_after(database, ("pay", "order-17"), on_failure="cancel")
    payer = await Runner.enter(database, "pay")
    others = [await put(database, handler="pay", key="order-18"), await put(database, handler="work", key="order-17")]
    for other, who in zip(others, (payer, runner), strict=True):
        await end(who, other)
        assert (await tell(database, other)).freed == []
    parent = await put(database, handler="pay", key="order-17")
    assert (await sweep(database)).freed == []
    await end(payer, parent)
    assert (await tell(database, parent)).freed == [child]
    (edge,) = await edges(database, child)
    assert (edge["parent_id"], edge["parent_handler"], edge["parent_key"]) == (parent, "pay", "order-17")


async def test_a_handler_and_a_key_stand_for_what_was_submitted_last(database: Database) -> None:
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
    assert (await tell(database, second)).freed == []
    await end(payer, third)
    assert set((await tell(database, third)).freed) == {waits_for_first, child}
    at_once = await put_after(database, ("pay", "k"))
    assert await state(database, at_once) == State.WAITING
    assert json.loads((await standing(database, at_once))["parents"])["total"] == 1


async def test_a_parent_that_never_was_is_refused_by_its_number(database: Database) -> None:
    parent = await put(database)
    with pytest.raises(InvalidTask, match=rf"after may not be {parent + 5}: .* never submitted, or it was pruned"):
        await database.write(submit_many, [NewTask("work"), after(parent), after(parent + 5)])
    assert await count(database, database.tables.task) == 1


REFUSED: dict[str, After] = {
    "number zero": After(0),
    "a number that is none": After(2**63),
    "its own handler and key": After(("work", "me")),
    "NUL in the key": After(("work", "a\0")),
    "no handler": After(("", "k")),
    "an unknown rule": After(1, "explode"),  # type: ignore[arg-type] # it is what is refused
}


@pytest.mark.parametrize("edge", REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_waited_for_is_refused(database: Database, edge: After) -> None:
    with pytest.raises(InvalidTask, match="after"):
        await put(database, key="me", after=(edge,))
    assert await count(database, database.tables.task) == 0


async def test_a_circle_over_a_key_is_refused_with_its_path(database: Database) -> None:
    ship = await put_after(database, ("pay", "o-17"), handler="ship", key="o-17")
    bill = await put_after(database, ship, handler="bill", key="o-17")
    path = (
        rf"pay o-17, which waits for task {bill} \(bill o-17\), which waits for task {ship} \(ship o-17\), "
        "which waits for pay o-17"
    )
    with pytest.raises(InvalidTask, match=f"it would wait for itself: {path}"):
        await put_after(database, bill, handler="pay", key="o-17")
    assert await count(database, database.tables.task) == 2
    assert await put_after(database, bill, handler="pay", key="o-18")


async def test_a_circle_within_one_batch_is_refused(database: Database) -> None:
    circle = [
        after(("work", "b"), key="a"),
        after(("work", "c"), key="b"),
        after(("work", "a"), key="c"),
    ]
    with pytest.raises(InvalidTask, match=r"wait for itself: work (\w), which .* which waits for work \1"):
        await database.write(submit_many, circle)
    assert len(await database.write(submit_many, circle[:2])) == 2


async def test_a_fan_out_and_a_fan_in_over_many_chunks(
    database: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("submit", "dependencies.edges"):
        monkeypatch.setattr(f"runner.store.{module}.CHUNK", 100)
    root = await put(database)
    members = await database.write(submit_many, [after(root)] * 450)
    last = await database.write(submit_many, [NewTask("work", after=tuple(After(id, "run") for id in members))])
    await end(runner, root)
    freed: list[int] = []
    while more := (await tell(database, root, limit=100)).freed:
        freed += more
    assert sorted(freed) == members
    await edit(database, members[0], max_attempts=1)
    while claimed := await runner.claim(200):
        ended = [task for task in claimed if task.id not in last]
        for task in ended[:1]:
            await runner.end(task, Dead("no"))
        for first in range(1, len(ended), 50):
            await runner.settle(*map(_done, ended[first : first + 50]))
    while (await sweep(database)).freed == [] and await state(database, last[0]) == State.BLOCKED:
        pass
    row = await standing(database, last[0])
    counts = json.loads(row["parents"])
    assert (row["state"], counts["total"]) == (State.WAITING, 450)
    assert counts["succeeded"] + counts["dead"] == 450
    assert counts["dead"] >= 1


def _done(task: Any) -> Any:
    from tests.store.runners import ended

    return ended(task)


async def test_nothing_is_looked_up_or_written_for_tasks_that_wait_for_nothing(database: Database) -> None:
    await put_many(database, 10)
    assert await count(database, database.tables.dependency) == 0
    assert not await database.state(any_open)


async def test_edges_of_a_task_that_was_ended_while_it_waited_are_closed(database: Database, runner: Runner) -> None:
    parent = await put(database)
    child = await put_after(database, parent)
    await database.write(terminate, [Target(child)], ANA)
    assert await state(database, child) == State.CANCELLED
    await sweep(database)
    assert not await database.state(any_open)
    await end(runner, parent)
    assert (await tell(database, parent)).freed == []
    assert await live(database, child) is None


async def test_a_parent_that_somebody_deleted_counts_as_failed(database: Database) -> None:
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


async def test_what_a_foreign_client_inserts_as_blocked_is_let_go_too(database: Database, runner: Runner) -> None:
    parent = await put(database)
    async with database.writing() as tx:
        task, edge = tx.tables.task, tx.tables.dependency
        child = await tx.scalar(sa.insert(task).values(handler="work", state="blocked").returning(task.c.id))
        await tx.execute(sa.insert(edge).values(task_id=child, parent_id=parent))
    await end(runner, parent)
    assert (await tell(database, parent)).freed == [child]


async def test_a_task_that_is_due_later_stays_due_later(database: Database, runner: Runner) -> None:
    parent = await put(database)
    child = await put_after(database, parent, delay=3_600.0)
    before = (await standing(database, child))["run_at"]
    await end(runner, parent)
    assert (await tell(database, parent)).freed == [child]
    assert (await standing(database, child))["run_at"] == before


async def test_an_operator_lets_a_task_go(database: Database) -> None:
    parents = [await put(database) for _ in range(2)]
    child = await put_after(database, *parents, ("pay", "k"))
    seen = (await standing(database, child))["version"]
    first, _, keyed = await edges(database, child)
    answer = await database.write(unblock, [Target(child, seen)], ANA, edge=first["id"])
    assert answer.changed == [child]
    row = await standing(database, child)
    assert (row["state"], row["blocked_by"], row["version"]) == (State.BLOCKED, 2, seen + 1)
    late = await database.write(unblock, [Target(child, seen)], ANA)
    assert [found.id for found in late.moved_on] == [child]
    assert (await database.write(unblock, [Target(child)], BEN)).changed == [child]
    row = await standing(database, child)
    assert (row["state"], row["blocked_by"], row["version"]) == (State.WAITING, 0, seen + 2)
    assert json.loads(row["parents"]) == {"total": 3, "succeeded": 0, "dead": 0, "cancelled": 0}
    assert [edge["satisfied_by"] for edge in await edges(database, child)] == ["ana", "ben", "ben"]
    async with database.reading() as tx:
        first_entry, second_entry = reversed(await audit(tx, task_id=child))
    assert json.loads(first_entry.before or "")["waited_for"] == [f"task {parents[0]}"]
    assert json.loads(second_entry.before or "")["waited_for"] == ["pay k", f"task {parents[1]}"]
    assert json.loads(second_entry.after or "")["state"] == State.WAITING
    assert keyed["parent_key"] == "k"


async def test_only_what_is_its_own_and_open_can_be_let_go_of(database: Database) -> None:
    parent = await put(database)
    child, other = [await put_after(database, parent) for _ in range(2)]
    ((edge,), (foreign,)) = await edges(database, child), await edges(database, other)
    refused = (await database.write(unblock, [Target(child)], ANA, edge=foreign["id"])).refused
    assert [(found.id, found.why) for found in refused] == [(child, f"no open edge {foreign['id']} is its own")]
    (refusal,) = (await database.write(unblock, [Target(parent)], ANA)).refused
    assert refusal.why == "it is waiting, and must be blocked"
    assert (await database.write(unblock, [Target(child)], ANA, edge=edge["id"])).changed == [child]
    assert await state(database, child) == State.WAITING


async def test_a_task_that_is_blocked_by_nothing_can_be_let_go(database: Database) -> None:
    child = await put(database)
    await edit(database, child, state="blocked")
    assert (await sweep(database)).freed == []
    assert (await database.write(unblock, [Target(child)], ANA)).changed == [child]
    assert await state(database, child) == State.WAITING


async def test_edges_go_with_their_task_and_a_dead_parent_stays_while_it_is_waited_for(
    database: Database, runner: Runner
) -> None:
    parent, done = await put(database), await put(database, priority=9)
    child = await put_after(database, parent, done)
    (first, second) = await runner.claim()
    await runner.end(first)
    await runner.end(second, Dead("no"))
    await tell(database, parent, done)
    at_once = {state: timedelta(0) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)}
    pruned = await database.write(prune, at_once)
    assert pruned.tasks == {State.SUCCEEDED: 1, State.DEAD: 0, State.CANCELLED: 0}
    assert await past(database, parent)
    await database.write(terminate, [Target(child)], ANA)
    await sweep(database)
    pruned = await database.write(prune, at_once)
    assert pruned.tasks == {State.SUCCEEDED: 0, State.DEAD: 1, State.CANCELLED: 1}
    assert await count(database, database.tables.dependency) == 0


@ON_POSTGRESQL
async def test_a_prefix_and_a_schema_have_families_of_their_own(new_database: None, migrated_url: str) -> None:
    database = Database.open(migrated_url, prefix="x_", schema="user")
    try:
        await database.migrate()
        runner = await Runner.enter(database)
        parent = await put(database, key="k")
        children = [await put_after(database, parent), await put_after(database, ("work", "k"), on_failure="cancel")]
        await end(runner, parent, State.DEAD)
        told = await tell(database, parent)
        assert (told.freed, [child.id for child in told.cancelled]) == ([], children[1:])
        assert (await database.write(unblock, [Target(children[0])], ANA)).changed == children[:1]
        assert [kin.task.id for kin in (await database.read(story, parent)).family.below if kin.task] == children
        assert not await database.state(any_open)
    finally:
        await database.dispose()
