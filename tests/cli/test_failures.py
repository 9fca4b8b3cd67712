"""Failure groups."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.cli.exit_codes import Exit
from runner.model.outcome import Dead, Done, Failure, Outcome, Retry
from runner.model.task import NewTask, State
from runner.operations import canary
from tests.cli.conftest import Call, Store

LATER = 3600


def failed(store: Store, handler: str, *messages: str, dead: bool = False) -> list[int]:
    ids = []
    for message in messages:
        ids += store.submit(NewTask(handler))
        failure = Failure("OSError", message, "Traceback: here\n")
        store.claim(handler, outcome=Dead(failure=failure) if dead else Retry("1h", failure=failure))
    return ids


def test_failures_that_differ_only_in_numbers_are_one_group(cli: Call, store: Store) -> None:
    failed(store, "mail.send", "port 25 is closed", "port 587 is closed", dead=True)
    failed(store, "mail.send", "no such host")
    two, one = cli("failures", "--json").document["failures"]
    assert (two["count"]["number"], two["tasks"], two["dead"], two["handler"]) == (2, 2, 2, "mail.send")
    assert (one["count"]["number"], one["message"], one["recent"]) == (1, "no such host", 1)
    result = cli("failures", "--traceback")
    assert "2 failure groups" in result.out
    assert "port 587 is closed" in result.out
    assert "Traceback: here" in result.out


def test_failures_are_filtered(cli: Call, store: Store) -> None:
    failed(store, "mail.send", "gone")
    failed(store, "sms.send", "gone")
    (group,) = cli("failures", "handler:sms.*", "--json").document["failures"]
    assert group["handler"] == "sms.send"
    assert cli("failures", "until:1h", "--json").document["failures"] == []
    none = cli("failures", "until:1h")
    assert (none.code, none.out) == (Exit.OK, "No failed attempts match.\n")
    assert cli("failures", "priority:5").code == Exit.BAD_INPUT
    assert cli("failures", "--limit", 0).code == Exit.BAD_INPUT


def test_a_failure_group_is_listed_and_retried_by_a_filter(cli: Call, store: Store) -> None:
    dead = failed(store, "mail.send", "port 25 is closed", "port 587 is closed", dead=True)
    waiting = failed(store, "mail.send", "port 26 is closed")
    failed(store, "mail.send", "no such host", dead=True)
    kind = cli("failures", "--json").document["failures"][0]["fingerprint"]
    listed = cli("tasks", f"failure:{kind}", "--json").document
    assert [task["id"] for task in listed["tasks"]] == [*waiting, *reversed(dead)]
    assert listed["indexed"]
    assert cli("retry", f"failure:{kind}", "state:dead", "--yes", 2).code == Exit.OK
    assert {task["id"] for task in store.tasks() if task["state"] == State.WAITING} >= set(dead)


def test_an_incident_is_reported_for_its_period(cli: Call, store: Store, tmp_path: Path) -> None:
    failed(store, "mail.send", "password=hunter-22-x", dead=True)
    text = cli("incident", "--from", "10m").out
    assert "`OSError: password=***`" in text
    file = tmp_path / "report.md"
    assert str(file) in cli("incident", "--from", "10m", "--output", file).out
    assert file.read_text().startswith("# Incident on ")
    assert cli("incident", "--from", "10m", "--output", file).code == Exit.BAD_INPUT
    assert "No attempt failed." in cli("incident", "--from", "2h", "--to", "1h").out
    assert cli("incident", "--from", "1h", "--to", "2h").code == Exit.BAD_INPUT


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("incident", "--output", ""), "--output"),
        (("incident", "--html", " "), "--html"),
        (("reports", "--html", ""), "--html"),
    ],
)
def test_a_report_into_a_file_without_a_name_is_refused(cli: Call, words: tuple[str, ...], option: str) -> None:
    result = cli(*words)
    assert (result.code, result.out) == (Exit.BAD_INPUT, "")
    assert result.err == f"runner: Invalid input: {option} is empty: give it a value, or leave it out.\n"


def test_an_incident_names_the_backlog_at_its_end_after_a_retry_of_dead_tasks(cli: Call, store: Store) -> None:
    failed(store, "mail.send", "gone", "gone", dead=True)
    assert "tasks submitted: 2, ended: 2: the backlog stayed the same." in cli("incident", "--from", "10m").out
    assert cli("retry", 1).code == Exit.OK
    store.claim("mail.send", outcome=Done())
    text = cli("incident", "--from", "10m").out
    assert "tasks submitted: 2, ended: 3: some twice, as operators returned tasks." in text
    assert re.search(r"^\| `default` \| 2 \| 1 \| 2 \| 2 \| 0 \|", text, re.MULTILINE)
    assert cli("retry", 2).code == Exit.OK
    assert re.search(r"^\| `default` \| 2 \| 1 \| 2 \| 2 \| 1 \|", cli("incident", "--from", "10m").out, re.MULTILINE)
    document = cli("incident", "--from", "10m", "--json").document
    assert document["backlog"] == {"default": {"number": 1, "more": False}}


@contextmanager
def working(store: Store, outcome: Outcome) -> Iterator[None]:
    """Claim due tasks during the block, and end each with the same outcome."""
    leaves = threading.Event()

    def work() -> None:
        while not leaves.is_set():
            store.claim("mail.send", outcome=outcome)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        leaves.set()
        thread.join()


def test_a_retry_of_a_cause_that_still_fails_names_the_canary(cli: Call, store: Store) -> None:
    failed(store, "mail.send", "port 25 is closed", dead=True)
    (group,) = cli("failures", "--json").document["failures"]
    of_group = f"failure:{group['fingerprint']}"
    warned = cli("retry", of_group, "--dry-run").err
    assert re.search(r"this cause failed \S+ ago; --canary retries 1 task first", warned)
    assert "--canary" not in cli("retry", of_group, "--dry-run", "--canary").err
    assert "--canary" not in cli("retry", "queue:default", "--dry-run").err


@pytest.mark.parametrize(("fails", "changed"), [(False, 4), (True, 1)])
def test_a_canary_retries_in_stages_until_a_task_fails_again(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch, fails: bool, changed: int
) -> None:
    monkeypatch.setattr(canary, "PAUSE", 0.01)
    monkeypatch.setattr(canary, "STAGES", (1, 2))
    failed(store, "mail.send", *["port 25 is closed"] * 4, dead=True)
    (group,) = cli("failures", "--json").document["failures"]
    with working(store, Dead(failure=Failure("OSError", "port 25 is closed")) if fails else Done()):
        result = cli("retry", f"failure:{group['fingerprint']}", "state:dead", "--canary", "--yes", 4, "--json")
    assert (result.code, len(result.document["changed"])) == (Exit.PARTIAL if fails else Exit.OK, changed)
    assert ("port 25 is closed" in result.err) is fails
