"""The workflows screen: what it shows, and its keys."""

import pytest

from runner.db.database import Database
from runner.model.outcome import Dead
from runner.queries.workflows.list import workflows
from tests.queries.test_workflows import DIAMOND, put_workflow
from tests.store.dependencies import resolve_parents
from tests.store.runners import Runner
from tests.store.table import put
from tests.tasktui.conftest import NARROW, WIDE, Watch
from tests.tasktui.test_actions import confirm

pytestmark = pytest.mark.both_databases


async def held(database: Database, runner: Runner) -> int:
    """A workflow whose first task is dead."""
    await put_workflow(database, *DIAMOND, name="order 17")
    (first,) = await runner.claim(1)
    await runner.end(first, Dead("no"))
    await resolve_parents(database, first.id)
    return first.id


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_workflows_are_listed_with_the_graph_of_one(
    database: Database, runner: Runner, watch: Watch, size: tuple[int, int]
) -> None:
    first = await held(database, runner)
    async with watch("workflows", size) as operator:
        await operator.sees("order 17", "◇ blocked", "1/4", f"{first} work, then 2 more", "GRAPH")
        await operator.sees(f"* ✗ dead {first} work", f"* │  └─ ◇ blocked {first + 3} work  after {first + 2} too")


async def test_the_graph_follows_the_cursor(database: Database, watch: Watch) -> None:
    await put_workflow(database, (), name="one")
    await put_workflow(database, (), (0,), name="two")
    async with watch("workflows", WIDE) as operator:
        await operator.sees("GRAPH 2 two")
        await operator.press("down", "down")
        await operator.sees("GRAPH 1 one")


async def test_a_task_opens_the_graph_of_its_workflow_also_beyond_the_list(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tasktui.screens.workflows", "tasktui.data.workflows"):
        monkeypatch.setattr(f"{module}.MOST_WORKFLOWS", 1)
    await put_workflow(database, (), name="one")
    await put_workflow(database, (), name="two")
    alone = await put(database)
    async with watch("workflows", WIDE) as operator:
        await operator.sees("1+ workflows", "GRAPH 2 two")
        await operator.command("task 1")
        await operator.sees("one", "g  graph")
        await operator.press("g")
        await operator.sees("GRAPH 1 one", "two")
        await operator.command(f"task {alone}")
        await operator.until(lambda: f" {alone} " in operator.text and "g  graph" not in operator.text)


@pytest.mark.slow
async def test_finished_workflows_are_hidden_by_a_key(database: Database, runner: Runner, watch: Watch) -> None:
    await put_workflow(database, (), name="past")
    (task,) = await runner.claim(1)
    await runner.end(task)
    await put_workflow(database, (), name="present")
    async with watch("workflows", WIDE) as operator:
        await operator.sees("past", "present", "2 workflows")
        await operator.press("s")
        await operator.until(lambda: "1 unfinished workflow" in operator.text and "past" not in operator.text)


@pytest.mark.slow
async def test_enter_lists_the_tasks_of_a_workflow(database: Database, runner: Runner, watch: Watch) -> None:
    await held(database, runner)
    async with watch("workflows", WIDE) as operator:
        await operator.sees("order 17")
        await operator.press("down", "enter")
        await operator.until(lambda: operator.screen.title == "Tasks" and "workflow:1" in operator.text)


async def test_a_workflow_is_terminated_after_a_preview(database: Database, runner: Runner, watch: Watch) -> None:
    await held(database, runner)
    async with watch("workflows", WIDE) as operator:
        await operator.sees("order 17")
        await operator.press("down", "T")
        await confirm(operator)
        await operator.sees("4/4")
    (row,) = await database.read(workflows)
    assert row.tasks == {"dead": 1, "cancelled": 3}


async def test_a_database_without_workflows_is_one_line(database: Database, watch: Watch) -> None:
    async with watch("workflows", NARROW) as operator:
        await operator.sees("No workflows.")


async def test_a_command_lists_the_workflows_with_a_name(database: Database, runner: Runner, watch: Watch) -> None:
    await held(database, runner)
    await put_workflow(database, (), name="invoice 3")
    async with watch("workflows", WIDE) as operator:
        await operator.sees("invoice 3")
        await operator.command("workflows order*")
        await operator.sees("1 workflow named order*")
        assert "invoice 3" not in operator.text
        await operator.command("workflows nix")
        await operator.sees("No workflows named nix.")
        await operator.command("workflows")
        await operator.sees("invoice 3")
