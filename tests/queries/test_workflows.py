"""The list of workflows and the graph of one, with the numbers of SQL."""

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import WorkflowNotFound
from runner.filter.parse import parse_filter
from runner.model.outcome import Dead, Done, Suspended
from runner.model.task import BatchMember, DependsOn, NewTask, NewWorkflow, State
from runner.policy.critical_path import critical_path, in_order
from runner.queries.task.detail import task_detail
from runner.queries.task_list.search import find
from runner.queries.workflows.critical import critical_paths
from runner.queries.workflows.graph import WorkflowGraph, workflow_graph
from runner.queries.workflows.lines import graph_lines, heading
from runner.queries.workflows.list import WorkflowName, workflows
from runner.queries.workflows.mermaid import mermaid
from runner.queries.workflows.svg import layers, svg
from runner.store.submit import submit_with_result
from tests.store.dependencies import resolve_parents
from tests.store.rows import ahead
from tests.store.runners import Runner
from tests.store.table import put

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 11, 28, tzinfo=UTC)
NAMES = ("book 17", "book 18", "50% [done]", None, "book 17")


async def put_workflow(database: Database, *parents: tuple[int, ...], name: str | None = "w", **options: Any) -> int:
    """Submit a workflow; each task has the positions of its parents."""
    tasks = [
        NewTask(
            "work",
            after=tuple(DependsOn(BatchMember(parent)) for parent in own) or None,
            workflow=NewWorkflow(name),
            **options,
        )
        for own in parents
    ]
    workflow = (await database.write(submit_with_result, tasks)).workflow
    assert workflow is not None
    return workflow


DIAMOND: tuple[tuple[int, ...], ...] = ((), (0,), (0,), (1, 2))


async def graph_of(database: Database, id: int) -> WorkflowGraph:
    return await database.read(workflow_graph, id)


async def test_a_new_workflow_waits(database: Database) -> None:
    id = await put_workflow(database, *DIAMOND, name="order 17", submitted_by="shop")
    (row,) = await database.read(workflows)
    assert (row.id, row.name, row.submitted_by, row.state) == (id, "order 17", "shop", State.WAITING)
    assert (row.tasks, row.total, row.done, row.failed) == ({"waiting": 1, "blocked": 3}, 4, 0, 0)
    assert row.oldest is not None
    async with database.writing() as tx:
        await tx.execute(sa.update(tx.tables.task).values(run_at=ahead(60)))
    assert (await database.read(workflows))[0].oldest is None


async def test_the_state_of_the_whole_follows_the_tasks(database: Database, runner: Runner) -> None:
    await put_workflow(database, (), (0,), (0,))
    states = []

    async def note() -> None:
        (row,) = await database.read(workflows)
        states.append((row.state, row.done, row.failed, row.oldest is None))

    (first,) = await runner.claim(1)
    await note()
    await runner.end(first)
    await resolve_parents(database, first.id)
    await note()
    second, third = await runner.claim(2)
    await runner.end(second, Dead("no"))
    await note()
    await runner.end(third)
    await note()
    assert states == [
        (State.RUNNING, 0, 0, False),
        (State.WAITING, 1, 0, False),
        (State.RUNNING, 2, 1, False),
        (State.DEAD, 3, 1, True),
    ]
    assert await database.read(workflows, unfinished=True) == []


async def test_a_workflow_whose_parent_is_dead_is_blocked_and_its_path_names_it(
    database: Database, runner: Runner
) -> None:
    id = await put_workflow(database, (), (), (0, 1))
    first, second = await runner.claim(2)
    await runner.end(first)
    await runner.end(second, Dead("no"))
    await resolve_parents(database, first.id, second.id)
    rows = await database.read(workflows)
    assert rows[0].state is State.BLOCKED
    path = (await database.read(critical_paths, rows))[id]
    assert (path.tasks, path.next, path.text) == (
        (second.id, second.id + 1),
        second.id,
        f"{second.id} work, then 1 more",
    )


async def test_workflows_are_listed_newest_first_in_pages(database: Database) -> None:
    ids = [await put_workflow(database, ()) for _ in range(5)]
    first = await database.read(workflows, 2)
    rest = await database.read(workflows, 9, first[-1].id)
    assert [row.id for row in (*first, *rest)] == ids[::-1]


async def test_tasks_from_plain_inserts_join_a_workflow(database: Database) -> None:
    async with database.writing() as tx:
        insert = sa.insert(tx.tables.workflow).values(name="by hand").returning(tx.tables.workflow.c.id)
        id = await tx.scalar(insert)
        await tx.execute(sa.insert(tx.tables.task).values(handler="h", workflow=id))
    graph = await graph_of(database, id)
    assert (graph.workflow.name, graph.workflow.tasks, len(graph.tasks)) == ("by hand", {"waiting": 1}, 1)
    assert (await database.read(task_detail, graph.tasks[0].id)).workflow == WorkflowName(id, "by hand")


async def test_an_unknown_workflow_is_named(database: Database) -> None:
    with pytest.raises(WorkflowNotFound, match="Workflow 99 does not exist"):
        await graph_of(database, 99)


async def test_a_graph_has_the_dependencies_and_its_critical_path(database: Database, runner: Runner) -> None:
    id = await put_workflow(database, *DIAMOND)
    a, b, c, d = (node.id for node in (await graph_of(database, id)).tasks)
    async with database.writing() as tx:
        outside = await tx.scalar(sa.insert(tx.tables.task).values(handler="other").returning(tx.tables.task.c.id))
        await tx.execute(sa.insert(tx.tables.dependency).values(task_id=d, parent_id=outside))
    graph = await graph_of(database, id)
    assert [(node.id, node.parents, node.outside) for node in graph.tasks] == [
        *((a, (), 0), (b, (a,), 0), (c, (a,), 0), (d, (b, c), 1)),
    ]
    assert graph.path == (a, b, d)
    assert [node.critical for node in graph.tasks] == [True, True, False, True]
    assert [line.text for line in graph_lines(graph)] == [
        f"* ○ ready {a} work",
        f"* ├─ ◇ blocked {b} work",
        f"* │  └─ ◇ blocked {d} work  after {c}, 1 outside too",
        f"  └─ ◇ blocked {c} work",
    ]
    assert heading(graph) == f"workflow {id} w   ○ waiting   0 of 4 done   critical path 0s"


async def test_a_task_whose_step_waits_for_a_signal_names_it(database: Database, runner: Runner) -> None:
    id = await put_workflow(database, (), (0,))
    (task,) = await runner.claim(1)
    await runner.end(task, Suspended(600.0, "waits for signal paid", waits=True))
    graph = await graph_of(database, id)
    (first, second), shown = graph_lines(graph), "◔ scheduled"
    assert first.text == f"* {shown} {task.id} work  waits for signal paid"
    assert second.text == f"* └─ ◇ blocked {task.id + 1} work"
    assert "waits for signal paid</text>" in svg(graph)
    assert "<br/>waits for signal paid" in mermaid(graph)
    async with database.writing() as tx:
        await tx.execute(sa.update(tx.tables.task).where(tx.tables.task.c.id == task.id).values(run_at=ahead(-1)))
    assert graph_lines(await graph_of(database, id))[0].text == f"* ○ ready {task.id} work"


async def test_many_tasks_of_a_handler_share_a_line(database: Database) -> None:
    id = await put_workflow(database, (), *((0,) for _ in range(50)))
    texts = [line.text for line in graph_lines(await graph_of(database, id), most_alike=3)]
    assert (len(texts), texts[-1]) == (5, "  └─ ... 47 more work: 47 blocked")


async def test_drawings_contain_every_task_and_are_inert(database: Database) -> None:
    id = await put_workflow(database, *DIAMOND, key='"]; click me <script>')
    async with database.writing() as tx:  # a plain insert
        await tx.execute(sa.update(tx.tables.workflow).values(name="<b>&\x1b[31m"))
        await tx.execute(sa.update(tx.tables.task).values(handler="<i>\x1b[2J"))
    graph = await graph_of(database, id)
    picture, chart = svg(graph), mermaid(graph)
    assert (picture.count("<rect"), picture.count("<path")) == (1 + 4, 4)
    assert (chart.count("-->"), chart.count('["')) == (4, 4)
    for text in (picture, chart):
        assert "<script" not in text
        assert "\x1b" not in text
        assert all(str(node.id) in text for node in graph.tasks)


async def test_filters_find_the_tasks_of_a_workflow_and_below_a_task(database: Database, runner: Runner) -> None:
    id = await put_workflow(database, *DIAMOND)
    await put_workflow(database, ())
    (first,) = await runner.claim(1)
    await runner.end(first)
    a, b, c, d = (node.id for node in (await graph_of(database, id)).tasks)

    async def found(text: str) -> list[int]:
        return sorted((await database.read(find, parse_filter(text, NOW, UTC), 100)).ids)

    assert await found(f"workflow:{id}") == [a, b, c, d]
    assert await found(f"workflow:{id} state:blocked") == [b, c, d]
    assert await found(f"workflow:{id},{id + 1}") == [a, b, c, d, d + 1]
    assert await found(f"-workflow:{id}") == [d + 1]
    assert await found(f"below:{b}") == [b, d]
    assert await found(f"below:{a} -below:{c}") == [a, b]


async def test_filters_find_the_tasks_of_workflows_by_name(database: Database) -> None:
    for name in NAMES:
        await put_workflow(database, (), name=name)
    a, b, c, unnamed, e, alone = 1, 2, 3, 4, 5, await put(database)

    async def found(text: str) -> list[int]:
        return sorted((await database.read(find, parse_filter(text, NOW, UTC), 100)).ids)

    assert await found('workflow:"book 17"') == [a, e]
    assert await found('workflow:"book 17","50% [done]"') == [a, c, e]
    assert await found('workflow:"book 18",5') == [b, e]
    assert await found("workflow:book*") == [a, b, e]
    assert await found('workflow:*"% ["*') == [c]
    assert await found("workflow:Book*") == []
    assert await found("workflow:*") == [a, b, c, unnamed, e]
    assert await found("-workflow:*") == [alone]
    assert await found("-workflow:book*") == [c, unnamed, alone]
    assert await found('-workflow:"book 18",5') == [a, c, unnamed, alone]


async def test_workflows_are_listed_by_name(database: Database) -> None:
    for name in NAMES:
        await put_workflow(database, (), name=name)

    async def listed(name: str, before: int | None = None) -> list[int]:
        return [row.id for row in await database.read(workflows, 50, before, name=name)]

    assert await listed("book 17") == [5, 1]
    assert await listed("book*") == [5, 2, 1]
    assert await listed("book*", 5) == [2, 1]
    assert await listed("*% [*") == [3]
    assert await listed("book") == []
    assert await listed("*") == [5, 3, 2, 1]


@pytest.mark.slow
async def test_counts_equal_those_of_sql(database: Database, runner: Runner) -> None:
    chance = random.Random(7)
    for size in (1, 5, 12):
        parents = [tuple({chance.randrange(place) for _ in range(2)}) if place else () for place in range(size)]
        await put_workflow(database, *parents)
    for _ in range(4):
        for task in await runner.claim(9):
            await runner.end(task, Dead("no") if chance.random() < 0.3 else Done())
            await resolve_parents(database, task.id)
    tables = database.tables
    parts = [sa.select(table.c.workflow, table.c.state) for table in (tables.task, tables.history)]
    async with database.reading() as tx:
        rows = [tuple(row) for row in await tx.rows(sa.union_all(*parts))]
    expected = {id: Counter(state for workflow, state in rows if workflow == id) for id in {id for id, _ in rows}}
    found = await database.read(workflows)
    assert {row.id: row.tasks for row in found} == expected
    for row in found:
        graph = await graph_of(database, row.id)
        assert Counter(node.state for node in graph.tasks) == expected[row.id]


def test_the_critical_path_is_the_longest_chain() -> None:
    parents = {1: [], 2: [1], 3: [1], 4: [2, 3], 5: [99]}
    assert critical_path({1: 1, 2: 5, 3: 1, 4: 1, 5: 6}, parents) == (1, 2, 4)
    assert critical_path({1: 1, 2: 5, 3: 7, 4: 1, 5: 90}, parents) == (5,)
    assert critical_path(dict.fromkeys(parents, 0), parents) == (1, 2, 4)
    assert critical_path({}, {}) == ()


def test_tasks_of_a_cycle_do_not_end_the_search() -> None:
    parents = {1: [], 2: [1, 3], 3: [2]}
    assert (in_order(parents, parents), critical_path({1: 1, 2: 1, 3: 1}, parents)) == ([1], (1,))
    assert layers(parents) == [[1], [2, 3]]


def test_each_task_is_right_of_its_parents() -> None:
    chance = random.Random(3)
    parents = {place: list({chance.randrange(place) for _ in range(2)}) if place else [] for place in range(200)}
    column = {id: x for x, layer in enumerate(layers(parents)) for id in layer}
    assert sorted(column) == list(range(200))
    assert all(column[parent] < column[id] for id, own in parents.items() for parent in own)


def test_siblings_are_beside_their_parents() -> None:
    assert layers({1: [], 2: [], 3: [2], 4: [1]}) == [[1, 2], [4, 3]]
