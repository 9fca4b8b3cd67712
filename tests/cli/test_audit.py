"""The audit, undo, and runner commands."""

import shlex

import pytest

from runner.cli.exit_codes import Exit
from runner.model.task import NewTask, State
from runner.operations.edit import edit as apply_edit
from runner.operations.edit_values import Changes
from runner.operations.results import Actor
from runner.text.operator import operator
from tests.cli.conftest import Call, Store, answered


def later(store: Store) -> int:
    (id,) = store.submit(NewTask("a.b", delay=3600))
    return id


def edited_by(store: Store, name: str, id: int, priority: int) -> None:
    store.write(lambda tx: apply_edit(tx, id, None, Changes(priority=priority), Actor(name, "desk")))


def test_changes_are_listed_newest_first(cli: Call, store: Store) -> None:
    id = later(store)
    cli("edit", id, "--priority", 7, "--reason", "it is urgent")
    cli("pause", "mail")
    submitted, edited = cli("show", id, "--json").document["timeline"]
    assert (submitted["kind"], edited["kind"], edited["details"]) == ("submitted", "change", ["priority: 1 -> 7"])
    assert f"{edited['text']}\n               priority: 1 -> 7\n" in cli("show", id).out
    result = cli("audit")
    pause, edit = result.out.splitlines()[1:3]
    assert "queue mail" in pause
    assert f"task {id}" in edit
    assert "priority: 1 -" in edit
    latest, first = cli("audit", "--json").document["entries"]
    assert (latest["verb"], latest["target"], first["verb"], first["reason"]) == (
        "pause",
        "queue mail",
        "edit",
        "it is urgent",
    )
    assert (first["before"], first["after"], first["operator"]) == ({"priority": 1}, {"priority": 7}, operator())


def test_changes_are_in_the_words_of_the_screens_and_in_columns_for_programs(cli: Call, store: Store) -> None:
    id = later(store)
    cli("edit", id, "--max-attempts", 6, "--retry", "1m,5m", "--expires-at", "+2h", "--payload", '{"run_id": 7}')
    entry = cli("audit", "--json").document["entries"][0]
    columns = {"max_attempts", "retry", "expires_at", "payload"}
    assert entry["after"].keys() == columns
    details = cli("show", id, "--json").document["timeline"][-1]["details"]
    assert {detail.partition(":")[0] for detail in details} == {"max_attempts", "retry", "expires_at", "payload run_id"}
    words = ("max attempts", "retry plan", "expires", "payload run_id")
    for call in (("audit",), ("show", id), ("undo", entry["id"], "--dry-run")):
        text = "".join(cli(*call).out.split())
        assert not [name for name in ("max_attempts", "expires_at", "null") if name in text], call
        assert all(word.replace(" ", "") in text for word in words), call
    assert "back to max attempts: handler's (now 6)" in cli("undo", entry["id"], "--dry-run").out


def test_a_dry_run_of_an_edit_is_in_the_words_of_the_screens(cli: Call, store: Store) -> None:
    id = later(store)
    edit = ("edit", id, "--max-attempts", 6, "--dry-run")
    assert cli(*edit).out == "would change max attempts: handler's -> 6\n"
    assert cli(*edit, "--json").document["changes"] == ["max_attempts: null -> 6"]


def test_the_times_by_and_reasons_of_pauses_and_limits_are_not_repeated(cli: Call) -> None:
    cli("pause", "mail", "--until", "+2h", "--reason", "restore of db-2")
    cli("limit", "queue", "mail", "--concurrency", 5)
    limit, pause = cli("audit").out.splitlines()[1:3]
    assert "at most 5 running" in limit
    assert pause.count("restore of db-2") == 1
    assert "paused until " in pause


def test_changes_are_filtered_by_task_operator_and_time(cli: Call, store: Store) -> None:
    one, other = later(store), later(store)
    edited_by(store, "ana", one, 3)
    edited_by(store, "bob", other, 3)

    def task_ids(*words: object) -> list[int]:
        return [entry["task_id"] for entry in cli("audit", *words, "--json").document["entries"]]

    assert task_ids() == [other, one]
    assert task_ids("--task", one) == [one]
    assert task_ids("--operator", "bob") == [other]
    assert task_ids("--operator", "eve") == []
    assert task_ids("--since", "1h") == [other, one]
    assert task_ids("--since", "now") == []
    assert cli("audit", "--since", "whenever").code == Exit.BAD_INPUT


@pytest.mark.parametrize("columns", [80, 120])
def test_a_narrow_terminal_wraps_long_changes_and_reasons(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    id, reason = later(store), "the relay of the second centre answers again since the failover"
    cli("edit", id, "--payload", f'{{"text": "{"long " * 60}", "last": 1234567890}}', "--reason", reason)
    _, *lines, _ = cli("audit").out.splitlines()
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= columns
    words = {word for line in lines for word in line.split()}
    assert {"1234567890", *reason.split()} <= words


def test_a_long_audit_is_read_page_by_page(cli: Call, store: Store) -> None:
    id = later(store)
    for priority in (2, 3, 4):
        edited_by(store, "ana", id, priority)
    first = cli("audit", "--limit", 2, "--json").document
    rest = cli("audit", "--limit", 2, "--after", first["next"], "--json").document
    assert [entry["after"]["priority"] for entry in first["entries"] + rest["entries"]] == [4, 3, 2]
    assert rest["next"] is None
    assert f"continue with --after {first['next']}" in cli("audit", "--limit", 2).out


def test_secrets_of_an_edited_payload_are_masked(cli: Call, store: Store) -> None:
    id = later(store)
    cli("edit", id, "--payload", '{"token": "geheim", "n": 1}')
    for look in (("audit",), ("audit", "--json"), ("show", id), ("show", id, "--json")):
        assert "geheim" not in cli(*look).out
    assert "geheim" in cli("show", id, "--reveal").out


def test_a_change_is_undone_once_by_its_id(cli: Call, store: Store) -> None:
    id = later(store)
    cli("edit", id, "--priority", 7)
    (entry,) = cli("audit", "--json").document["entries"]
    assert "back to priority: 1 (now 7)" in cli("undo", entry["id"], "--dry-run").out
    assert store.tasks()[0]["priority"] == 7
    assert cli("undo", entry["id"], "--reason", "by mistake").code == Exit.OK
    assert store.tasks()[0]["priority"] == 1
    undone = cli("audit", "--json").document["entries"][0]
    assert (undone["undo_of"], undone["reason"]) == (entry["id"], "by mistake")
    assert cli("undo", entry["id"]).code == Exit.CONFLICT


@pytest.mark.slow
def test_why_prints_commands_that_show_and_remove_a_cause(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("work", queue="mail", delay=3600.0))
    cli("pause", "mail", "--reason", "restore of db-2")
    cli("pause", "other", "--reason", "not this one")
    result = cli("why", id, "--json").document
    views = [cause["view"]["command"] for cause in result["causes"] if cause["kind"] == "paused"]
    assert views == ["runner audit --of 'queue mail'"]
    assert views[0] in cli("why", id).out
    (entry,) = cli(*shlex.split(views[0])[1:], "--json").document["entries"]
    assert (entry["target"], entry["reason"]) == ("queue mail", "restore of db-2")
    (chance,) = result["would_start_if"]
    assert f"It would start now if: {chance['text']}." in " ".join(cli("why", id).out.split())
    for change in chance["changes"][:-1]:
        assert cli(*shlex.split(change["command"])[1:]).code == Exit.OK, change
    store.claim("work")
    assert [task["state"] for task in store.tasks()] == [State.RUNNING]


@pytest.mark.slow
def test_a_change_that_cannot_be_undone_has_a_reason(cli: Call, store: Store) -> None:
    id = later(store)
    cli("terminate", id)
    cli("retry", id)
    last, first = cli("audit", "--json").document["entries"]
    result = cli("undo", first["id"])
    assert result.code == Exit.CONFLICT
    assert "now waiting" in result.err
    assert "cannot undo: it has changed since" in cli("undo", first["id"], "--dry-run").out
    (why,) = cli("undo", first["id"], "--dry-run", "--json").document["skipped"]
    assert "now waiting" in why["why"]
    assert cli("undo", last["id"]).code == Exit.OK
    assert cli("show", id, "--json").document["state"] == State.CANCELLED
    assert cli("undo", 999).code == Exit.BAD_INPUT
    assert cli("undo", 2**63 - 1).code == Exit.BAD_INPUT


def test_without_an_id_undo_only_shows_the_operators_last_change(cli: Call, store: Store) -> None:
    id = later(store)
    assert "has no recent change to undo" in cli("undo").err
    cli("edit", id, "--max-attempts", 9)
    edited_by(store, "somebody else", id, 3)
    result = cli("undo")
    assert result.code == Exit.BAD_INPUT
    assert "back to max attempts: handler's (now 9)" in result.out
    assert "confirm with: runner undo 1" in result.err
    assert store.tasks()[0]["max_attempts"] == 9
    cli("edit", id, "--priority", 5)
    edited_by(store, "somebody else", id, 4)
    result = cli("undo")
    assert result.code == Exit.CONFLICT
    assert "cannot undo" in result.out
    assert "confirm with" not in result.err  # the command would be rejected


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "priority"), [(b"y\n", 1), pytest.param(b"n\n", 7, marks=pytest.mark.slow)])
def test_a_terminal_prompts_for_confirmation(call: Call, answer: bytes, priority: int) -> None:
    call("submit", "a.b", "--delay", "1h")
    call("edit", 1, "--priority", 7)
    result = answered("Type y", answer, "undo")
    assert result.code == (Exit.OK if priority == 1 else Exit.BAD_INPUT)
    assert f'"priority": {priority}' in call("show", 1, "--json").out


def test_a_runner_receives_drain_and_resize_commands(cli: Call, store: Store) -> None:
    id = store.claim("a.b")
    assert cli("runners", "drain", id, "--dry-run").code == Exit.OK
    assert cli("runners", "--json").document["runners"][0]["command"] is None
    assert cli("runners", "resize", id, "--concurrency", 50, "--threads", 4).code == Exit.OK
    assert cli("runners", "--json").document["runners"][0]["command"] == "concurrency=50 threads=4"
    assert cli("runners", "drain", id, "--reason", "deploy", "--json").document["command"] == "drain"
    assert cli("runners", "--json").document["runners"][0]["command"] == "concurrency=50 threads=4 drain"
    assert [entry["verb"] for entry in cli("audit", "--json").document["entries"]] == ["command", "command"]


@pytest.mark.parametrize("words", [("drain", 999), ("resize", 999, "--concurrency", 1)])
def test_a_missing_runner_receives_no_command(cli: Call, words: tuple[object, ...]) -> None:
    assert cli("runners", *words).code == Exit.NOT_FOUND


@pytest.mark.parametrize("sizes", [(), ("--concurrency", 0), ("--threads", -1), ("--concurrency", 10**9)])
def test_an_invalid_runner_size_is_rejected(cli: Call, store: Store, sizes: tuple[object, ...]) -> None:
    id = store.claim("a.b")
    assert cli("runners", "resize", id, *sizes).code == Exit.BAD_INPUT


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("drain",), "name the runner by its id: runner runners drain 7"),
        (("list", 7), "name an action: runner runners drain 7"),
        (("drain", 7, "--threads", 2), "apply to runner runners resize"),
    ],
)
def test_an_incomplete_runner_command_is_refused(cli: Call, words: tuple[object, ...], message: str) -> None:
    refused = cli("runners", *words)
    assert (refused.code, message in refused.err) == (Exit.BAD_INPUT, True)


def test_a_terminated_task_is_restored_once(cli: Call, store: Store) -> None:
    id = later(store)
    cli("terminate", id)
    assert "back to state" in cli("undo", 1, "--dry-run").out
    assert cli("undo", 1, "--json").document["changed"] == [id]
    assert cli("show", id, "--json").document["state"] == State.WAITING
    assert cli("undo", 1).code == Exit.CONFLICT


@pytest.mark.slow
def test_a_change_group_is_undone_with_the_confirmed_count(cli: Call, store: Store) -> None:
    ids = [later(store) for _ in range(3)]
    done = cli("terminate", *ids)
    group = cli("audit", "--json").document["entries"][0]["change_group"]
    assert f"undo with: runner undo --group {group}" in done.out
    assert group in cli("audit", "--group", group).out
    fate = cli("audit", "--group", group, "--json").document["fate"]
    assert (fate["total"]["number"], fate["states"], fate["causes"]) == (3, {"cancelled": 3}, [])
    cli("retry", ids[0])
    preview = cli("undo", "--group", group, "--dry-run", "--json").document
    assert (preview["total"]["number"], preview["eligible"], preview["skipped"][0]["number"]) == (3, 2, 1)
    result = cli("undo", "--group", group)
    assert result.code == Exit.BAD_INPUT
    assert "2 would be undone" in result.out
    assert "confirm with --yes 2" in result.err
    assert cli("undo", "--group", group, "--yes", 3).code == Exit.CONFLICT
    assert cli("undo", "--group", group, "--yes", 2).code == Exit.PARTIAL
    assert [task["state"] for task in store.tasks()] == ["waiting"] * 3


@pytest.mark.parametrize("words", [("1", "--group", "x"), ("1", "--yes", "1"), ("--group", "nothing")])
def test_ambiguous_undo_arguments_are_rejected(cli: Call, store: Store, words: tuple[str, ...]) -> None:
    later(store)
    assert cli("undo", *words).code == Exit.BAD_INPUT


def test_an_unknown_change_group_has_no_tasks(cli: Call) -> None:
    assert "task" not in cli("audit", "--group", "zz").out
