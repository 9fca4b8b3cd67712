"""What goes wrong, grouped; and acting on a group."""

from runner.cli.ending import Exit
from runner.outcome import Dead, Failure, Retry
from runner.task import NewTask, State
from tests.cli.conftest import Call, Store

LATER = 3600


def failed(store: Store, handler: str, *messages: str, dead: bool = False) -> list[int]:
    ids = []
    for message in messages:
        ids += store.submit(NewTask(handler))
        failure = Failure("OSError", message, "Traceback: here\n")
        store.claim(handler, outcome=Dead(failure=failure) if dead else Retry("1h", failure=failure))
    return ids


def test_failures_that_differ_in_numbers_only_are_one_kind(called: Call, store: Store) -> None:
    failed(store, "mail.send", "port 25 is closed", "port 587 is closed", dead=True)
    failed(store, "mail.send", "no such host")
    two, one = called("failures", "--json").document["failures"]
    assert (two["count"]["number"], two["tasks"], two["buried"], two["handler"]) == (2, 2, 2, "mail.send")
    assert (one["count"]["number"], one["message"], one["lately"]) == (1, "no such host", 1)
    told = called("failures", "--traceback")
    assert "2 kinds of failures" in told.out
    assert "port 587 is closed" in told.out
    assert "Traceback: here" in told.out


def test_failures_are_filtered(called: Call, store: Store) -> None:
    failed(store, "mail.send", "gone")
    failed(store, "sms.send", "gone")
    (found,) = called("failures", "handler:sms.*", "--json").document["failures"]
    assert found["handler"] == "sms.send"
    assert called("failures", "until:1h", "--json").document["failures"] == []
    assert called("failures", "priority:5").code == Exit.BAD_INPUT
    assert called("failures", "--limit", 0).code == Exit.BAD_INPUT


def test_a_kind_of_failures_is_listed_and_mended_as_a_filter(called: Call, store: Store) -> None:
    dead = failed(store, "mail.send", "port 25 is closed", "port 587 is closed", dead=True)
    waiting = failed(store, "mail.send", "port 26 is closed")
    failed(store, "mail.send", "no such host", dead=True)
    kind = called("failures", "--json").document["failures"][0]["fingerprint"]
    listed = called("tasks", f"failure:{kind}", "--json").document
    assert [task["id"] for task in listed["tasks"]] == [*waiting, *reversed(dead)]
    assert listed["indexed"]
    assert called("retry", f"failure:{kind}", "state:dead", "--yes", 2).code == Exit.OK
    assert {task["id"] for task in store.tasks() if task["state"] == State.WAITING} >= set(dead)
