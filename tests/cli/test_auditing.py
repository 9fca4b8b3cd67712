"""Who changed what, and taking it back."""

import os
import pty
import shlex
import subprocess

import pytest

from runner.cli.ending import Exit
from runner.people.person import operator
from runner.store import intervene
from runner.store.intervene import By, Changes
from runner.task import NewTask, State
from tests.cli.conftest import PROGRAM, Call, Store


def later(store: Store) -> int:
    (id,) = store.submit(NewTask("a.b", delay=3600))
    return id


def edited_by(store: Store, name: str, id: int, priority: int) -> None:
    store.write(lambda tx: intervene.edit(tx, id, None, Changes(priority=priority), By(name, "desk")))


def test_what_operators_did_is_listed_the_latest_first(called: Call, store: Store) -> None:
    id = later(store)
    called("edit", id, "--priority", 7, "--reason", "it is urgent")
    called("pause", "mail")
    submitted, edited = called("show", id, "--json").document["timeline"]
    assert (submitted["kind"], edited["kind"], edited["details"]) == ("submitted", "change", ["priority: 1 -> 7"])
    assert f"{edited['text']}\n               priority: 1 -> 7\n" in called("show", id).out
    told = called("audit")
    pause, edit = told.out.splitlines()[1:3]
    assert "queue mail" in pause
    assert f"task {id}" in edit
    assert "priority: 1 -" in edit
    latest, first = called("audit", "--json").document["entries"]
    assert (latest["verb"], latest["target"], first["verb"], first["reason"]) == (
        "pause",
        "queue mail",
        "edit",
        "it is urgent",
    )
    assert (first["before"], first["after"], first["operator"]) == ({"priority": 1}, {"priority": 7}, operator())


def test_changes_are_found_by_task_by_operator_and_by_time(called: Call, store: Store) -> None:
    one, other = later(store), later(store)
    edited_by(store, "ana", one, 3)
    edited_by(store, "bob", other, 3)

    def found(*words: object) -> list[int]:
        return [entry["task_id"] for entry in called("audit", *words, "--json").document["entries"]]

    assert found() == [other, one]
    assert found("--task", one) == [one]
    assert found("--operator", "bob") == [other]
    assert found("--operator", "eve") == []
    assert found("--since", "1h") == [other, one]
    assert found("--since", "now") == []
    assert called("audit", "--since", "whenever").code == Exit.BAD_INPUT


def test_a_long_audit_is_read_page_by_page(called: Call, store: Store) -> None:
    id = later(store)
    for priority in (2, 3, 4):
        edited_by(store, "ana", id, priority)
    first = called("audit", "--limit", 2, "--json").document
    rest = called("audit", "--limit", 2, "--after", first["next"], "--json").document
    assert [entry["after"]["priority"] for entry in first["entries"] + rest["entries"]] == [4, 3, 2]
    assert rest["next"] is None
    assert f"go on with --after {first['next']}" in called("audit", "--limit", 2).out


def test_secrets_of_an_edited_payload_are_masked(called: Call, store: Store) -> None:
    id = later(store)
    called("edit", id, "--payload", '{"token": "geheim", "n": 1}')
    for look in (("audit",), ("audit", "--json"), ("show", id), ("show", id, "--json")):
        assert "geheim" not in called(*look).out
    assert "geheim" in called("show", id, "--reveal").out


def test_a_change_is_taken_back_by_its_number_once(called: Call, store: Store) -> None:
    id = later(store)
    called("edit", id, "--priority", 7)
    (entry,) = called("audit", "--json").document["entries"]
    assert "back to priority: 7 -> 1" in called("undo", entry["id"], "--dry-run").out
    assert store.tasks()[0]["priority"] == 7
    assert called("undo", entry["id"], "--reason", "by mistake").code == Exit.OK
    assert store.tasks()[0]["priority"] == 1
    undone = called("audit", "--json").document["entries"][0]
    assert (undone["undo_of"], undone["reason"]) == (entry["id"], "by mistake")
    assert called("undo", entry["id"]).code == Exit.MOVED_ON


def test_why_names_commands_that_show_a_cause_and_commands_that_end_it(called: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("work", queue="mail", delay=3600.0))
    called("pause", "mail", "--reason", "restore of db-2")
    called("pause", "other", "--reason", "not this one")
    told = called("why", id, "--json").document
    sights = [cause["sight"] for cause in told["causes"] if cause["kind"] == "paused"]
    assert sights == ["runner audit --of 'queue mail'"]
    assert sights[0] in called("why", id).out
    (entry,) = called(*shlex.split(sights[0])[1:], "--json").document["entries"]
    assert (entry["target"], entry["reason"]) == ("queue mail", "restore of db-2")
    (chance,) = told["would_start_if"]
    assert f"It would start at once if: {chance['text']}." in " ".join(called("why", id).out.split())
    for change in chance["changes"][:-1]:
        assert called(*shlex.split(change["command"])[1:]).code == Exit.OK, change
    store.claim("work")
    assert [task["state"] for task in store.tasks()] == [State.RUNNING]


def test_what_cannot_be_taken_back_says_why(called: Call, store: Store) -> None:
    id = later(store)
    called("terminate", id)
    called("retry", id)
    last, first = called("audit", "--json").document["entries"]
    told = called("undo", first["id"])
    assert told.code == Exit.MOVED_ON
    assert "waiting now" in told.err
    assert "it cannot be taken back: it has changed since" in called("undo", first["id"], "--dry-run").out
    (why,) = called("undo", first["id"], "--dry-run", "--json").document["skipped"]
    assert "waiting now" in why["why"]
    assert called("undo", last["id"]).code == Exit.OK
    assert called("show", id, "--json").document["state"] == State.CANCELLED
    assert called("undo", 999).code == Exit.BAD_INPUT
    assert called("undo", 2**63 - 1).code == Exit.BAD_INPUT


def test_without_a_number_ones_own_last_change_is_meant_and_only_shown(called: Call, store: Store) -> None:
    id = later(store)
    assert "has changed nothing lately" in called("undo").err
    called("edit", id, "--max-attempts", 9)
    edited_by(store, "somebody else", id, 3)
    told = called("undo")
    assert told.code == Exit.BAD_INPUT
    assert "back to max_attempts: 9 -> null" in told.out
    assert "say runner undo 1" in told.err
    assert store.tasks()[0]["max_attempts"] == 9
    called("edit", id, "--priority", 5)
    edited_by(store, "somebody else", id, 4)
    told = called("undo")
    assert told.code == Exit.MOVED_ON
    assert "it cannot be taken back" in told.out
    assert "say runner undo" not in told.err  # nobody is sent where it would be refused


@pytest.mark.parametrize(("answer", "priority"), [(b"y\n", 1), (b"n\n", 7)])
def test_a_person_at_a_terminal_is_asked(call: Call, answer: bytes, priority: int) -> None:
    call("submit", "a.b", "--delay", "1h")
    call("edit", 1, "--priority", 7)
    ours, theirs = pty.openpty()
    with subprocess.Popen([str(PROGRAM), "undo"], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as asked:
        os.close(theirs)
        said = b""
        while b"Type y" not in said:
            said += os.read(ours, 1024)
        os.write(ours, answer)
        assert asked.wait(timeout=30) == (Exit.OK if priority == 1 else Exit.BAD_INPUT)
    os.close(ours)
    assert f'"priority": {priority}' in call("show", 1, "--json").out


def test_a_runner_is_asked_to_drain_and_to_resize(called: Call, store: Store) -> None:
    id = store.claim("a.b")
    assert called("drain", id, "--dry-run").code == Exit.OK
    assert called("runners", "--json").document["runners"][0]["wish"] is None
    assert called("resize", id, "--slots", 50, "--threads", 4).code == Exit.OK
    assert called("runners", "--json").document["runners"][0]["wish"] == "slots=50 threads=4"
    assert called("drain", id, "--reason", "deploy", "--json").document["wish"] == "drain"
    assert called("runners", "--json").document["runners"][0]["wish"] == "drain"
    assert [entry["verb"] for entry in called("audit", "--json").document["entries"]] == ["wish", "wish"]


@pytest.mark.parametrize("words", [("drain", 999), ("resize", 999, "--slots", 1)])
def test_a_runner_that_is_not_there_is_asked_nothing(called: Call, words: tuple[object, ...]) -> None:
    assert called(*words).code == Exit.NOT_FOUND


@pytest.mark.parametrize("sizes", [(), ("--slots", 0), ("--threads", -1), ("--slots", 10**9)])
def test_a_size_that_no_runner_has_is_refused(called: Call, store: Store, sizes: tuple[object, ...]) -> None:
    id = store.claim("a.b")
    assert called("resize", id, *sizes).code == Exit.BAD_INPUT


def test_a_terminated_task_comes_back_once(called: Call, store: Store) -> None:
    id = later(store)
    called("terminate", id)
    assert "back to state" in called("undo", 1, "--dry-run").out
    assert called("undo", 1, "--json").document["changed"] == [id]
    assert called("show", id, "--json").document["state"] == State.WAITING
    assert called("undo", 1).code == Exit.MOVED_ON


def test_what_was_done_together_is_taken_back_together_as_often_as_was_confirmed(called: Call, store: Store) -> None:
    ids = [later(store) for _ in range(3)]
    done = called("terminate", *ids)
    batch = called("audit", "--json").document["entries"][0]["batch"]
    assert f"runner undo --batch {batch} takes it back" in done.out
    assert batch in called("audit", "--batch", batch).out
    called("retry", ids[0])
    seen = called("undo", "--batch", batch, "--dry-run", "--json").document
    assert (seen["total"], seen["eligible"], seen["skipped"][0]["changes"]) == (3, 2, 1)
    told = called("undo", "--batch", batch)
    assert told.code == Exit.BAD_INPUT
    assert "2 would be taken back" in told.out
    assert "say --yes 2" in told.err
    assert called("undo", "--batch", batch, "--yes", 3).code == Exit.MOVED_ON
    assert called("undo", "--batch", batch, "--yes", 2).code == Exit.PARTLY
    assert [task["state"] for task in store.tasks()] == ["waiting"] * 3


@pytest.mark.parametrize("words", [("1", "--batch", "x"), ("1", "--yes", "1"), ("--batch", "nothing")])
def test_what_is_to_be_taken_back_must_be_clear(called: Call, store: Store, words: tuple[str, ...]) -> None:
    later(store)
    assert called("undo", *words).code == Exit.BAD_INPUT
