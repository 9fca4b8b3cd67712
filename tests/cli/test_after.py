"""Tasks that wait for others, from the command line."""

import json
from pathlib import Path

import pytest

from runner.cli.ending import Exit
from runner.outcome import Done
from runner.task import After, NewTask, State
from tests.cli.conftest import Call, Store


def test_a_task_is_submitted_after_others(called: Call, store: Store) -> None:
    (first,) = store.submit(NewTask("orders.pay"))
    parents = ("--after", first, "--after", "orders.pack=order=17:a", "--on-failure", "cancel")
    told = called("submit", "orders.ship", *parents, "--json")
    shown = called("show", told.document["id"], "--json").document
    assert shown["state"] == State.BLOCKED
    assert [(kin["edge"], kin["open"], kin["depth"]) for kin in shown["family"]["above"]] == [
        (1, True, 0),
        (2, True, 0),
    ]
    assert (shown["family"]["total"], shown["family"]["waiting"]) == (2, 2)
    printed = called("show", told.document["id"]).out
    assert f"[1]  waits for task {first} orders.pay: ready; if that fails: cancel" in printed
    assert "[2]  waits for orders.pack order=17:a: not submitted yet; if that fails: cancel" in printed
    assert "parents       0 of 2 have ended" in printed


def test_lines_say_what_each_task_waits_for(called: Call, store: Store, tmp_path: Path) -> None:
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
    told = called("submit", "--lines", "tasks.jsonl", "--json")
    assert (told.code, told.document["submitted"]) == (Exit.PARTLY, 6)
    assert [each["line"] for each in told.document["bad"]] == [7, 8, 9]
    assert [task["blocked_by"] for task in store.tasks()[2:]] == [1, 2, 1, 2, 1, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--after", "soon"), "--after takes the number of a task, or handler=key, not 'soon'"),
        (("--after", "=k"), "--after takes the number of a task"),
        (("--after", "99"), "there is no such task, neither live nor in the history"),
        (("--on-failure", "run"), "--on-failure says what a task behind --after means"),
        (("--after", "a=k", "--on-failure", "explode"), "explode"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(called: Call, store: Store, options: tuple[str, ...], said: str) -> None:
    told = called("submit", "b", *options)
    assert told.code == Exit.BAD_INPUT
    assert said in " ".join(told.err.split())
    assert store.tasks() == []


def test_an_edge_is_satisfied_by_hand(called: Call, store: Store) -> None:
    first, second = store.submit(NewTask("a"), NewTask("a"))
    (child,) = store.submit(NewTask("b", after=(After(first), After(second))))
    assert called("unblock", child, "--edge", 1, "--reason", "done by hand").code == Exit.OK
    assert store.tasks()[2]["blocked_by"] == 1
    assert called("unblock", child, "--edge", 1).code == Exit.MOVED_ON
    assert "1 changed" in called("unblock", child, "--reason", "go").out
    assert store.tasks()[2]["state"] == State.WAITING
    printed = called("show", child).out
    assert f"waited for task {first} a: ready; let go by" in printed
    assert "unblock by" in printed
    assert ": done by hand" in printed
    again = called("unblock", child)
    assert again.code == Exit.MOVED_ON
    assert f"task {child}: it is waiting, and must be blocked" in again.err


def test_what_is_blocked_is_let_go_by_a_filter(called: Call, store: Store) -> None:
    (first,) = store.submit(NewTask("a"))
    store.submit(*[NewTask("b", after=(After(first),))] * 3)
    assert called("unblock", "handler:b", "--yes", 3).code == Exit.OK
    assert {task["state"] for task in store.tasks()} == {State.WAITING}


def test_a_check_names_tasks_that_wait_for_each_other(called: Call, store: Store) -> None:
    first, second = store.submit(NewTask("a", key="a", after=(After(("b", "b")),)), NewTask("b"))
    (third,) = store.submit(NewTask("b", key="x", after=(After(first),)))
    store.claim("b", outcome=Done())
    called("edit", third, "--key", "b")
    told = called("check")
    assert told.code == Exit.ERROR
    assert f"can never run: {first} -> {third} -> {first}" in " ".join(told.out.split())
    assert f"runner unblock {first}" in told.out
    assert second
