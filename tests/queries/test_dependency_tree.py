"""Dependency trees, as people see them."""

import pytest

from runner.db.database import Database
from runner.model.outcome import Dead
from runner.model.task import BatchMember, DependsOn, NewTask, State
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.operations.unblock import unblock
from runner.queries.counting import Count
from runner.queries.task.dependency_tree import DependencyTree, dependency_cycles
from runner.queries.task.detail import task_detail
from runner.queries.task.parents import StuckTasks, stuck_tasks
from runner.store.submit import submit_many
from tests.store.dependencies import after, put_after, resolve_parents, sweep
from tests.store.rows import history_row, stored
from tests.store.runners import Runner
from tests.store.table import edit, put

ANA = Actor("ana", "desk")


async def tree_of(database: Database, id: int) -> DependencyTree:
    return (await database.read(task_detail, id)).dependencies


def lines(tree: DependencyTree) -> list[str]:
    return [line.strip() for _, section in tree.sections() for line in section]


async def test_a_task_without_dependencies_has_an_empty_tree(database: Database) -> None:
    tree = await tree_of(database, await put(database))
    assert (tree, list(tree.sections()), tree.progress) == (DependencyTree(ended={}), [], "")


async def test_dependencies_are_shown_a_few_levels_up_and_down(database: Database) -> None:
    root = await put(database, key="r")
    chain = [root]
    for _ in range(7):
        chain.append(await put_after(database, chain[-1], on_failure="cancel"))
    middle = chain[4]
    tree = await tree_of(database, middle)
    assert [kin.task.id for kin in tree.above if kin.task] == chain[3::-1]
    assert [kin.task.id for kin in tree.below if kin.task] == chain[5:]
    assert [kin.depth for kin in tree.above] == [0, 1, 2, 3]
    assert lines(tree)[0] == f"[{middle - root}]  waits for task {chain[3]} work: blocked; on failure: cancel"
    assert lines(tree)[3].endswith(f"waits for task {root} work: ready; on failure: cancel")
    assert lines(tree)[4].endswith(f"task {chain[5]} work waits for it: blocked; on failure: cancel")
    assert [kin.depth for kin in (await tree_of(database, root)).below] == [0, 1, 2, 3]


async def test_open_dependencies_are_listed_first(database: Database, runner: Runner) -> None:
    done, dead, pending = [await put(database, priority=9) for _ in range(2)] + [await put(database)]
    child = await put_after(database, done, dead, pending, ("pay", "o-17"))
    first, second, *_ = await runner.claim(2)
    await runner.end(first)
    await runner.end(second, Dead("no"))
    await resolve_parents(database, done, dead)
    tree = await tree_of(database, child)
    assert (tree.total, tree.waiting, dict(tree.ended or {})) == (4, 3, {"succeeded": 1, "dead": 1})
    assert tree.progress == "2 of 4 have ended: 1 succeeded, 1 dead"
    assert [line.partition("  ")[2] for line in lines(tree)] == [
        f"waits for task {dead} work: dead; on failure: wait",
        f"waits for task {pending} work: ready; on failure: wait",
        "waits for pay o-17: not submitted yet; on failure: wait",
        f"waited for task {done} work: succeeded",
    ]
    await database.write(unblock, [Target(child)], ANA)
    tree = await tree_of(database, child)
    assert f"waited for task {dead} work: dead; unblocked by ana" in " ".join(lines(tree))
    assert "waited for pay o-17: never submitted; unblocked by ana" in " ".join(lines(tree))
    assert [title for title, _ in tree.sections()] == ["dependencies"]


async def test_a_parent_by_key_is_the_one_that_was_submitted_last(database: Database) -> None:
    await put(database, handler="pay", key="k")
    child = await put_after(database, ("pay", "k"))
    last = await put(database, handler="pay", key="k")
    assert lines(await tree_of(database, child))[0].endswith(f"waits for task {last} pay k: ready; on failure: wait")
    assert [kin.task.id for kin in (await tree_of(database, last)).below if kin.task] == [child]


async def test_ten_thousand_children_are_counted_and_twenty_named(database: Database) -> None:
    root = await put(database)
    await database.write(submit_many, [after(root)] * 10_002)
    tree = await tree_of(database, root)
    assert (str(tree.children), len(tree.below)) == ("10,000+", 20)
    assert [title for title, _ in tree.sections()] == ["dependents (20 of 10,000+)"]


async def test_an_undetected_cycle_is_found_and_shown(database: Database) -> None:
    first = await put_after(database, ("work", "b"), key="a")
    second = await put_after(database, first, key="c")
    aside = await put_after(database, second)
    assert await database.read(dependency_cycles) == []
    await edit(database, second, key="b")
    assert await database.read(dependency_cycles) == [(first, second)]
    assert "cycle: none of them can ever run" in lines(await tree_of(database, aside))[2]
    assert (await database.write(unblock, [Target(first)], ANA)).changed == [first]
    assert await database.read(dependency_cycles) == []


@pytest.mark.parametrize("levels", [30])
async def test_deep_dependencies_are_searched_for_cycles_in_bounded_time(database: Database, levels: int) -> None:
    tasks = [await put_after(database, ("work", f"k{levels - 1}"), key="k0")]
    for number in range(1, levels):
        tasks.append(await put_after(database, tasks[-1], ("work", f"k{number - 1}"), key=f"x{number}"))
    await edit(database, tasks[-1], key=f"k{levels - 1}")
    (circle,) = await database.read(dependency_cycles)
    assert circle == (tasks[0], *tasks[:0:-1])
    assert (await database.read(task_detail, tasks[0])).task.state is State.BLOCKED


@pytest.mark.both_databases
async def test_blocked_tasks_behind_a_dead_task_are_stuck(database: Database, runner: Runner) -> None:
    parent, other = await put(database, priority=9), await put(database)
    first, second = await put_after(database, parent), await put_after(database, parent)
    await put_after(database, other)  # its parent still runs
    assert await database.read(stuck_tasks) is None
    (claimed,) = await runner.claim(1)
    await runner.end(claimed, Dead("no"))
    await resolve_parents(database, parent)
    assert claimed.id == parent
    since = (await history_row(database, parent)).finished_at
    assert await database.read(stuck_tasks) == StuckTasks(Count(2), first, parent, since)
    assert await database.read(stuck_tasks, 2) in (None, StuckTasks(Count(2, more=True), first, parent, since))
    await database.write(unblock, [Target(first)], ANA)
    assert await database.read(stuck_tasks) == StuckTasks(Count(1), second, parent, since)
    await database.write(unblock, [Target(second)], ANA)
    later = await put_after(database, parent)
    await sweep(database)
    submitted_at = (await stored(database, later)).submitted_at
    assert await database.read(stuck_tasks) == StuckTasks(Count(1), later, parent, submitted_at)
    await database.write(retry_now, [Target(parent)], ANA)
    assert await database.read(stuck_tasks) is None


@pytest.mark.both_databases
async def test_a_task_is_stuck_beside_one_with_many_open_parents(database: Database, runner: Runner) -> None:
    dead = await put(database, priority=9)
    last = NewTask("work", after=tuple(DependsOn(BatchMember(position)) for position in range(4)))
    await database.write(submit_many, [*(NewTask("work") for _ in range(4)), last])
    stuck = await put_after(database, dead)
    (claimed,) = await runner.claim(1)
    await runner.end(claimed, Dead("no"))
    await resolve_parents(database, dead)
    found = await database.read(stuck_tasks, 3)
    assert found is not None
    assert (found.number, found.task, found.parent) == (Count(1), stuck, dead)
