"""Dependencies from the command line."""

import json
from pathlib import Path

import pytest

from runner.cli.exit_codes import Exit
from runner.model.outcome import Done
from runner.model.task import DependsOn, NewTask, State
from tests.cli.conftest import Call, Store


def test_a_task_is_submitted_after_others(cli: Call, store: Store) -> None:
    (first,) = store.submit(NewTask("orders.pay"))
    parents = ("--after", first, "--after", "orders.pack=order=17:a", "--on-failure", "cancel")
    result = cli("submit", "orders.ship", *parents, "--json")
    shown = cli("show", result.document["id"], "--json").document
    assert shown["state"] == State.BLOCKED
    assert [(kin["dependency_id"], kin["open"], kin["depth"]) for kin in shown["dependencies"]["above"]] == [
        (1, True, 0),
        (2, True, 0),
    ]
    assert (shown["dependencies"]["total"], shown["dependencies"]["waiting"]) == (2, 2)
    printed = cli("show", result.document["id"]).out
    assert f"[1]  waits for task {first} orders.pay: ready; on failure: cancel" in printed
    assert "[2]  waits for orders.pack order=17:a: not submitted yet; on failure: cancel" in printed
    assert "parents       0 of 2 have ended" in printed


def test_lines_name_the_parents_of_each_task(cli: Call, store: Store, tmp_path: Path) -> None:
    first, second = store.submit(NewTask("a"), NewTask("a", key="k"))
    parents = [
        first,
        [first, second],
        ["a", "k"],
        [["a", "k"], {"id": first, "on_failure": "run"}],
        {"handler": "a", "key": "k", "on_failure": "cancel"},
        None,
    ]
    lines = [json.dumps({"handler": "b", "after": after}) for after in parents]
    bad = [json.dumps({"handler": "b", "after": after}) for after in ("17", [1.5], {"id": 1, "on_failure": "explode"})]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines + bad))
    result = cli("submit", "--lines", "tasks.jsonl", "--json")
    assert (result.code, result.document["submitted"]) == (Exit.PARTIAL, 6)
    assert [each["line"] for each in result.document["bad"]] == [7, 8, 9]
    assert [task["blocked_by"] for task in store.tasks()[2:]] == [1, 2, 1, 2, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--after", "soon"), "--after expects a task id or handler=key, not 'soon'"),
        (("--after", "=k"), "--after expects a task id"),
        (("--after", "99"), "there is no task with this id"),
        (("--on-failure", "run"), "--on-failure needs --after"),
        (("--after", "a=k", "--on-failure", "explode"), "explode"),
    ],
)
def test_an_invalid_parent_is_rejected(cli: Call, store: Store, options: tuple[str, ...], message: str) -> None:
    result = cli("submit", "b", *options)
    assert result.code == Exit.BAD_INPUT
    assert message in " ".join(result.err.split())
    assert store.tasks() == []


def test_an_operator_releases_one_dependency(cli: Call, store: Store) -> None:
    first, second = store.submit(NewTask("a"), NewTask("a"))
    (child,) = store.submit(NewTask("b", after=(DependsOn(first), DependsOn(second))))
    assert cli("unblock", child, "--dependency", 1, "--reason", "done by hand").code == Exit.OK
    assert store.tasks()[2]["blocked_by"] == 1
    assert cli("unblock", child, "--dependency", 1).code == Exit.CONFLICT
    assert "1 changed" in cli("unblock", child, "--reason", "go").out
    assert store.tasks()[2]["state"] == State.WAITING
    printed = cli("show", child).out
    assert f"waited for task {first} a: ready; unblocked by" in printed
    assert "unblock by" in printed
    assert ": done by hand" in printed
    again = cli("unblock", child)
    assert again.code == Exit.CONFLICT
    assert f"task {child}: it is waiting, not blocked" in again.err


def test_blocked_tasks_are_unblocked_by_a_filter(cli: Call, store: Store) -> None:
    (first,) = store.submit(NewTask("a"))
    store.submit(*[NewTask("b", after=(DependsOn(first),))] * 3)
    assert cli("unblock", "handler:b", "--yes", 3).code == Exit.OK
    assert {task["state"] for task in store.tasks()} == {State.WAITING}


def test_a_check_reports_cycles(cli: Call, store: Store) -> None:
    first, second = store.submit(NewTask("a", key="a", after=(DependsOn(("b", "b")),)), NewTask("b"))
    (third,) = store.submit(NewTask("b", key="x", after=(DependsOn(first),)))
    store.claim("b", outcome=Done())
    cli("edit", third, "--key", "b")
    result = cli("check")
    assert result.code == Exit.ERROR
    assert f"never run: {first} -> {third} -> {first}" in " ".join(result.out.split())
    assert f"runner unblock {first}" in result.out
    assert second
