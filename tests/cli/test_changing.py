"""Intervening: by number, by filter after a preview, and one task's values."""

import os
import pty
import re
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from runner.cli.ending import Exit
from runner.task import NewTask, State
from tests.cli.conftest import PROGRAM, Call, Store
from tests.shells import shell_of


def later(store: Store, number: int, **values: object) -> list[int]:
    return store.submit(*(NewTask("a.b", delay=3600, **values) for _ in range(number)))  # type: ignore[arg-type]


def test_tasks_are_retried_by_number(called: Call, store: Store) -> None:
    first, _ = later(store, 2)
    told = called("retry", first, "--json", "--reason", "it is back")
    assert (told.code, told.document["changed"]) == (Exit.OK, [first])
    one, two = store.tasks()
    assert one["run_at"] <= datetime.now(UTC) + timedelta(seconds=2) < two["run_at"]
    (entry,) = called("show", first, "--json").document["audit"]
    assert (entry["verb"], entry["reason"]) == ("retry_now", "it is back")


def test_what_cannot_be_done_is_said_for_each_task(called: Call, store: Store) -> None:
    (id,) = later(store, 1)
    told = called("terminate", id, 999)
    assert told.code == Exit.PARTLY
    assert "task 999: there is no such task" in told.err
    assert called("terminate", 999).code == Exit.NOT_FOUND
    again = called("terminate", id)
    assert again.code == Exit.MOVED_ON
    assert f"task {id}: it is {State.CANCELLED}" in again.err


def test_a_terminated_task_can_be_retried(called: Call, store: Store) -> None:
    (id,) = later(store, 1)
    called("terminate", id)
    assert called("retry", id).code == Exit.OK
    assert [task["state"] for task in store.tasks()] == [State.WAITING]


def test_tasks_are_put_off(called: Call, store: Store) -> None:
    (id,) = later(store, 1)
    before = store.tasks()[0]["run_at"]
    assert called("delay", id, "--by", "10m").code == Exit.OK
    assert store.tasks()[0]["run_at"] - before == timedelta(minutes=10)
    assert called("delay", id).code == Exit.BAD_INPUT
    assert called("delay", id, "--by", "soon").code == Exit.BAD_INPUT


@pytest.mark.parametrize("verb", [("retry",), ("terminate",), ("delay", "--by", "1h")])
def test_a_filter_is_only_previewed_until_its_number_is_said(called: Call, store: Store, verb: tuple[str, ...]) -> None:
    later(store, 3, queue="mail")
    later(store, 1)
    before = store.tasks()
    told = called(*verb, "queue:mail")
    assert told.code == Exit.BAD_INPUT
    assert "3 tasks match, 3 would be changed" in told.out
    assert "--yes 3" in told.err
    for wrong in (2, 4, "3+", "all"):
        assert called(*verb, "queue:mail", "--yes", wrong).code == Exit.MOVED_ON
    assert store.tasks() == before
    done = called(*verb, "queue:mail", "--yes", 3, "--json")
    assert (done.code, len(done.document["changed"])) == (Exit.OK, 3)


def test_a_preview_names_who_is_left_alone_and_why(called: Call, store: Store) -> None:
    first, second, third = later(store, 3)
    called("terminate", second)
    told = called("delay", "handler:a.b", "--by", "1m", "--dry-run", "--json").document
    assert (told["total"]["number"], told["eligible"]) == (3, 2)
    assert [group["tasks"] for group in told["groups"]] == [2, 1]
    assert [skipped["tasks"] for skipped in told["skipped"]] == [1]
    assert State.CANCELLED in told["skipped"][0]["why"]
    assert [sample["id"] for sample in told["samples"]] == [third, first]


def test_a_dry_run_changes_nothing(called: Call, store: Store) -> None:
    ids = later(store, 2)
    before = store.tasks()
    assert called("terminate", *ids, "--dry-run").code == Exit.OK
    assert called("terminate", "handler:a.b", "--dry-run", "--yes", 2).code == Exit.OK
    assert store.tasks() == before


def test_chunks_reach_every_task_and_what_cannot_be_changed_is_passed_over(called: Call, store: Store) -> None:
    ids = later(store, 1_201)
    called("terminate", *ids[100:300])
    assert "needs a reason" in called("delay", "handler:a.b", "--by", "1h", "--yes", 1_001).err
    assert called("delay", "handler:a.b", "--by", "1h", "--yes", 1_001, "--reason", "why").code == Exit.PARTLY
    soon = datetime.now(UTC) + timedelta(minutes=90)
    assert all(task["run_at"] > soon for task in store.tasks())
    assert len(store.tasks()) == 1_001


def test_some_are_tried_before_the_others(called: Call, store: Store) -> None:
    ids = later(store, 4)
    words = ("delay", "handler:a.b", "--by", "1h", "--yes", 4, "--first", 1)
    assert called(*words, "--json").document["changed"] == [ids[-1]]
    soon = datetime.now(UTC) + timedelta(minutes=90)
    assert [task["run_at"] > soon for task in store.tasks()] == [False, False, False, True]
    assert called("delay", *ids, "--by", "1h", "--first", 2, "--json").document["changed"] == ids[:2]
    assert called(*words[:-1], 0).code == Exit.BAD_INPUT


def test_production_wants_a_reason(called: Call, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    later(store, 1)
    monkeypatch.setenv("RUNNER_PRODUCTION", "on")
    assert called("terminate", "handler:a.b", "--yes", 1).code == Exit.BAD_INPUT
    assert called("terminate", "handler:a.b", "--dry-run").code == Exit.OK
    assert called("terminate", "handler:a.b", "--yes", 1, "--reason", "asked by ana").code == Exit.OK


@pytest.mark.parametrize("words", [(), ("12", "state:dead"), ("0",), ("9" * 30,), ("stat:x",)])
def test_targets_that_are_not_clear_are_refused(called: Call, words: tuple[str, ...]) -> None:
    assert called("terminate", *words).code == Exit.BAD_INPUT


def test_a_retry_can_be_spread(called: Call, store: Store) -> None:
    later(store, 40)
    assert called("retry", "handler:a.b", "--over", "1h", "--yes", 40).code == Exit.OK
    times = {task["run_at"] for task in store.tasks()}
    assert max(times) - min(times) > timedelta(minutes=5)


@pytest.mark.parametrize(
    ("answer", "state"), [(b"y\n", State.CANCELLED), (b"n\n", State.WAITING), (b"\x04", State.WAITING)]
)
def test_a_person_at_a_terminal_is_asked(call: Call, answer: bytes, state: State) -> None:
    call("submit", "a.b", "--delay", "1h")
    ours, theirs = pty.openpty()
    command = [str(PROGRAM), "terminate", "handler:a.b"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as asked:
        os.close(theirs)
        said = b""
        while b"Type y to go on" not in said:
            said += os.read(ours, 1024)
        os.write(ours, answer)
        assert asked.wait(timeout=30) == (Exit.OK if state is State.CANCELLED else Exit.BAD_INPUT)
    os.close(ours)
    assert call("show", 1, "--json").document["state"] == state


def test_values_of_a_task_are_edited(called: Call, store: Store) -> None:
    (id,) = later(store, 1)
    values = (
        "--run-at",
        "2031-01-02T03:04Z",
        "--max-attempts",
        7,
        "--priority",
        9,
        "--retry",
        "1m,5m",
        "--timeout",
        "90s",
    )
    told = called("edit", id, *values, "--payload", '{"a": 1}', "--key", "k", "--reason", "as agreed")
    assert told.code == Exit.OK, told.err
    assert "It runs at 2031-01-02" in told.out
    (task,) = store.tasks()
    names = ("run_at", "max_attempts", "priority", "retry", "timeout", "payload", "key")
    moment = datetime(2031, 1, 2, 3, 4, tzinfo=UTC)
    assert [task[name] for name in names] == [moment, 7, 9, "1m,5m", 90.0, '{"a": 1}', "k"]
    assert called("edit", id, "--retry", "none", "--key", "none", "--max-attempts", "none").code == Exit.OK
    (task,) = store.tasks()
    assert (task["retry"], task["key"], task["max_attempts"]) == (None, None, None)


def test_an_edit_is_refused_over_somebody_elses(called: Call, store: Store) -> None:
    (id,) = later(store, 1)
    seen = called("show", id, "--json").document["version"]
    called("edit", id, "--priority", 5)
    told = called("edit", id, "--priority", 7, "--version", seen)
    assert told.code == Exit.MOVED_ON
    assert f"since you saw version {seen}" in told.err
    assert store.tasks()[0]["priority"] == 5


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("--priority", 0),
        ("--run-at", "whenever"),
        ("--max-attempts", "some"),
        ("--retry", "x"),
        ("--payload", "[]"),
    ],
)
def test_values_that_no_task_may_have_are_refused(called: Call, store: Store, values: tuple[object, ...]) -> None:
    (id,) = later(store, 1)
    before = store.tasks()
    assert called("edit", id, *values).code == Exit.BAD_INPUT
    assert store.tasks() == before


def test_what_is_not_there_cannot_be_edited(called: Call) -> None:
    assert called("edit", 999, "--priority", 5).code == Exit.NOT_FOUND


def test_a_queue_stands_still_until_it_is_resumed(called: Call) -> None:
    told = called("pause", "mail", "--until", "+10m", "--reason", "relay is down")
    assert told.code == Exit.OK
    assert "goes on in" in told.out
    assert "no task and no runner has named queue mail so far" in told.err
    (queue,) = called("stats", "--json").document["queues"]
    assert (queue["queue"], queue["paused"]["why"]) == ("mail", "relay is down")
    assert "mail has been paused for" in called("stats").out
    assert called("resume", "mail").code == Exit.OK
    assert called("resume", "mail").code == Exit.MOVED_ON


def test_a_second_pause_tells_what_it_keeps_of_the_first(called: Call) -> None:
    called("pause", "mail", "--until", "+10m", "--reason", "relay is down")
    again = called("pause", "mail")
    assert again.code == Exit.OK
    assert re.match(r"queue mail is paused, as it was before \(relay is down\); it goes on in (10m|9m\d+s)$", again.out)
    told = called("pause", "mail", "--reason", "disk is full", "--json").document
    assert (told["why"], told["replaced"]) == ("disk is full", True)
    assert told["until"] is not None


def test_a_handler_can_be_paused_too(called: Call) -> None:
    assert called("pause", "--handler", "a.b", "--json").document == {
        "verb": "pause",
        "place": "handler a.b",
        "until": None,
        "why": None,
        "replaced": False,
        "dry_run": False,
    }
    assert called("resume", "--handler", "a.b").code == Exit.OK


@pytest.mark.parametrize("words", [(), ("mail", "--handler", "a.b"), ("mail", "--until", "-1h"), ("",)])
def test_a_pause_has_one_place_and_ends_in_the_future(called: Call, words: tuple[str, ...]) -> None:
    assert called("pause", *words).code == Exit.BAD_INPUT


def test_an_edit_is_tried_with_all_its_guards(called: Call, store: Store) -> None:
    (id,) = later(store, 1)
    told = called("edit", id, "--priority", 7, "--key", "k", "--dry-run")
    assert told.code == Exit.OK
    assert told.out == 'would change priority: 1 -> 7\nwould change key: null -> "k"\n'
    assert called("edit", id, "--priority", 7, "--dry-run", "--json").document["eligible"] == 1
    assert called("edit", id, "--priority", 1, "--dry-run").code == Exit.MOVED_ON
    assert called("edit", id, "--priority", 7, "--version", 9, "--dry-run").code == Exit.MOVED_ON
    assert called("edit", id, "--priority", 99, "--dry-run").code == Exit.BAD_INPUT
    assert called("edit", 999, "--priority", 7, "--dry-run").code == Exit.NOT_FOUND
    assert (store.tasks()[0]["priority"], called("audit", "--json").document["entries"]) == (1, [])


def test_what_has_ended_is_edited_only_to_be_run_again(called: Call, store: Store) -> None:
    (id,) = later(store, 1)
    called("terminate", id)
    told = called("edit", id, "--priority", 7)
    assert told.code == Exit.MOVED_ON
    assert "--again" in told.err  # what to do next
    assert called("edit", id, "--priority", 7, "--again", "--dry-run").out == "would change priority: 1 -> 7\n"
    assert called("edit", id, "--priority", 7, "--again").code == Exit.OK
    assert [(task["priority"], task["state"]) for task in store.tasks()] == [(7, State.WAITING)]


def test_a_pause_and_its_end_are_tried(called: Call) -> None:
    assert "queue mail would be paused (why); it goes on" in called("pause", "mail", "--reason", "why", "--dry-run").out
    assert called("pause", "mail", "--until", "-1h", "--dry-run").code == Exit.BAD_INPUT
    assert called("resume", "mail", "--dry-run").code == Exit.MOVED_ON
    called("pause", "mail")
    assert called("resume", "mail", "--dry-run", "--json").document["changed"] is True
    assert called("pause", "mail", "--dry-run", "--json").document["replaced"] is True
    assert len(called("audit", "--json").document["entries"]) == 1


def test_what_would_be_done_is_printed_as_sql_and_does_it_when_pasted(
    called: Call, store: Store, migrated_url: str
) -> None:
    shell, ids = shell_of(migrated_url), later(store, 2)
    for typed in (
        ["terminate", *ids],
        ["edit", ids[0], "--again", "--key", "k"],
        ["retry", ids[0]],
        ["edit", ids[0], "--priority", 9],
        ["delay", ids[0], "--by", "1h"],
    ):
        before = store.tasks()
        told = called(*typed, "--sql", "--reason", "it's back")
        assert (told.code, told.err, store.tasks()) == (Exit.OK, "", before)
        shell(told.out)
        assert store.tasks() != before
        entry = called("show", ids[0], "--json").document["audit"][-1]
        done = "requeue" if "--again" in typed else typed[0]
        assert (entry["verb"].removesuffix("_now"), entry["reason"]) == (done, "it's back")
    shell(called("undo", entry["id"], "--sql").out)
    (task,) = store.tasks()
    assert (task["id"], task["priority"]) == (ids[0], 9)
    assert task["run_at"] < datetime.now(UTC) + timedelta(minutes=5)
    assert str(ids[0]) in shell(called("tasks", "state:ready", "--sql").out)


def test_sql_is_printed_for_few_tasks_that_can_be_changed(called: Call, store: Store) -> None:
    ids = later(store, 101, queue="mail")
    assert "100 tasks at most" in called("terminate", "queue:mail", "--sql").err
    assert called("terminate", "queue:mail", f"id<={ids[1]}", "--sql").out.count("COMMIT;") == 2
    assert "no such task" in called("retry", 999_999, "--sql").err
    assert "secrets" in called("edit", ids[0], "--payload", '{"token": "geheim"}', "--sql").err


def test_a_pause_is_printed_as_sql_too(called: Call, migrated_url: str) -> None:
    shell = shell_of(migrated_url)
    shell(called("pause", "mail", "--until", "+30m", "--sql").out)
    assert "mail has been paused" in called("check").out
    shell(called("resume", "mail", "--sql").out)
    assert "is not paused" in called("resume", "mail", "--sql").err
    assert "no runner 7" in called("drain", 7, "--sql").err
