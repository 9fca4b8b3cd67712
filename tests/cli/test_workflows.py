"""Workflows on the command line."""

import pytest

from runner.cli.exit_codes import Exit
from runner.model.outcome import Dead
from runner.model.task import BatchMember, DependsOn, NewTask, NewWorkflow
from tests.cli.conftest import Call, Store

pytestmark = pytest.mark.both_databases


@pytest.fixture
def flow(store: Store) -> Store:
    """A workflow of three tasks: two wait for the first, which is dead."""
    own = NewWorkflow("order 17")
    after = (DependsOn(BatchMember(0)),)
    store.submit(
        NewTask("pay", workflow=own),
        NewTask("ship", workflow=own, after=after),
        NewTask("thank", workflow=own, after=after),
    )
    store.claim("pay", outcome=Dead("no money"))
    return store


def test_workflows_are_listed_with_the_state_of_the_whole(cli: Call, flow: Store) -> None:
    words = cli("workflows").out.splitlines()[1].split()
    assert " ".join(words[:8] + words[9:]) == "1 order 17 ◇ blocked 1/3 1 - 1 pay, then 1 more"
    (document,) = cli("workflows", "--json").document["workflows"]
    assert (document["state"], document["tasks"]) == ("blocked", {"blocked": 2, "dead": 1})
    assert (document["total"], document["done"], document["failed"]) == (3, 1, 1)
    assert document["critical_path"]["tasks"] == [1, 2]


def test_an_empty_list_is_one_line(cli: Call) -> None:
    assert cli("workflows").out == "No workflows.\n"


def test_a_list_has_pages(cli: Call, store: Store) -> None:
    for name in "abc":
        store.submit(NewTask("h", workflow=NewWorkflow(name)))
    assert cli("workflows", "--limit", 2).out.endswith("More: --before 2\n")
    assert [row["name"] for row in cli("workflows", "--before", 2, "--json").document["workflows"]] == ["a"]
    assert cli("workflows", "--limit", 0).code == 2
    assert [row["name"] for row in cli("workflows", "a*", "--json").document["workflows"]] == ["a"]
    assert cli("workflows", "d*").out == "No workflows named d*.\n"
    assert [row["id"] for row in cli("tasks", "workflow:a", "--json").document["tasks"]] == [1]


def test_a_graph_is_text_mermaid_svg_or_json(cli: Call, flow: Store) -> None:
    first, *rest = cli("workflow", 1).out.splitlines()[1:]
    assert first.startswith("* ✗ dead 1 pay")
    assert rest == ["* ├─ ◇ blocked 2 ship", "  └─ ◇ blocked 3 thank"]
    assert cli("workflow", 1, "--mermaid").out.startswith("flowchart LR\n")
    assert cli("workflow", 1, "--svg").out.startswith("<svg ")
    assert [task["id"] for task in cli("workflow", 1, "--json").document["tasks"]] == [1, 2, 3]
    assert "choose one of" in cli("workflow", 1, "--svg", "--mermaid").err
    assert (cli("workflow", 2).code, cli("workflow", 2).err[:33]) == (5, "runner: Workflow 2 does not exist")


def test_show_names_the_workflow_of_a_task(cli: Call, flow: Store) -> None:
    assert "workflow   1 order 17" in cli("show", 2).out
    assert cli("show", 2, "--json").document["workflow"] == {"id": 1, "name": "order 17"}


@pytest.mark.slow
def test_a_subtree_is_terminated_and_the_termination_undone(cli: Call, flow: Store) -> None:
    assert "2 changed" in cli("terminate", "below:2,3", "--yes", 2).out
    assert cli("workflows", "--json").document["workflows"][0]["state"] == "dead"
    group = cli("audit", "--json").document["entries"][0]["change_group"]
    assert cli("undo", "--group", group, "--yes", 2).code == Exit.OK
    assert cli("workflows", "--json").document["workflows"][0]["tasks"] == {"blocked": 2, "dead": 1}
