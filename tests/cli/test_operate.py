"""Operations on tasks by id and by filter, edits, and pauses."""

import re
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from runner.cli.exit_codes import Exit
from runner.cli.operation_output import undo_command
from runner.db.database import Database
from runner.model.task import NewTask, State
from runner.operations.results import Result
from tests.cli.conftest import Call, Store, answered
from tests.conftest import on_postgresql, on_sqlite
from tests.shells import shell_of
from tests.triggers import TEXT, refuse


def later(store: Store, number: int, **values: object) -> list[int]:
    return store.submit(*(NewTask("a.b", delay=3600, **values) for _ in range(number)))  # type: ignore[arg-type]


def test_tasks_are_retried_by_id(cli: Call, store: Store) -> None:
    first, _ = later(store, 2)
    result = cli("retry", first, "--json", "--reason", "it is back")
    assert (result.code, result.document["changed"]) == (Exit.OK, [first])
    one, two = store.tasks()
    assert one["run_at"] <= datetime.now(UTC) + timedelta(seconds=2) < two["run_at"]
    (entry,) = cli("show", first, "--json").document["audit"]
    assert (entry["verb"], entry["reason"]) == ("retry_now", "it is back")


@on_sqlite
def test_skipped_tasks_are_reported_one_by_one(cli: Call, store: Store) -> None:
    (id,) = later(store, 1)
    result = cli("terminate", id, 999)
    assert result.code == Exit.PARTIAL
    assert "task 999: it does not exist" in result.err
    assert cli("terminate", 999).code == Exit.NOT_FOUND
    again = cli("terminate", id)
    assert again.code == Exit.CONFLICT
    assert f"task {id}: it is {State.CANCELLED}" in again.err


def test_tasks_that_the_database_refuses_to_change_are_named_and_the_others_change(cli: Call, store: Store) -> None:
    good, bad = *later(store, 1), *later(store, 1, key="bad")
    store.use(lambda database: refuse(database, "UPDATE"))
    result = cli("terminate", good, bad, "--json")
    assert (result.code, result.document["changed"]) == (Exit.PARTIAL, [good])
    (stuck,) = result.document["stuck"]
    assert (stuck["id"], stuck["cause"]) == (bad, "refused")
    assert f"task {bad} is refused: " in result.err
    assert TEXT in result.err
    assert cli("retry", bad).code == Exit.CONFLICT
    assert cli("edit", bad, "--priority", "7").code != Exit.OK


def test_an_edit_of_one_refused_task_names_it(cli: Call, store: Store) -> None:
    (bad,) = later(store, 1, key="bad")
    store.use(lambda database: refuse(database, "UPDATE"))
    answer = cli("edit", bad, "--priority", 7, "--json")
    assert answer.code == Exit.CONFLICT, answer.out + answer.err
    (stuck,) = answer.document["stuck"]
    assert (stuck["id"], stuck["cause"]) == (bad, "refused")
    assert not answer.document["changed"]


@on_postgresql
def test_a_locked_task_is_named_with_the_session_that_holds_the_lock(
    cli: Call, store: Store, migrated_url: str
) -> None:
    good, locked = later(store, 2)
    with psycopg.connect(migrated_url, application_name="psql") as connection:
        connection.execute("SELECT 1 FROM task WHERE id = %s FOR UPDATE", (locked,))
        result = cli("retry", good, locked)
        assert result.code == Exit.PARTIAL
        assert f"task {locked} is locked: its row is held by process {connection.info.backend_pid} (psql" in result.err
        assert f"run SELECT pg_terminate_backend({connection.info.backend_pid})" in result.err
        assert cli("edit", locked, "--priority", "7").code == Exit.CONFLICT


@on_sqlite
def test_a_terminated_task_can_be_retried(cli: Call, store: Store) -> None:
    (id,) = later(store, 1)
    cli("terminate", id)
    assert cli("retry", id).code == Exit.OK
    assert [task["state"] for task in store.tasks()] == [State.WAITING]


def test_tasks_are_delayed(cli: Call, store: Store) -> None:
    (id,) = later(store, 1)
    before = store.tasks()[0]["run_at"]
    assert cli("delay", id, "--by", "10m").code == Exit.OK
    assert store.tasks()[0]["run_at"] - before == timedelta(minutes=10)
    assert cli("delay", id).code == Exit.BAD_INPUT
    assert cli("delay", id, "--by", "soon").code == Exit.BAD_INPUT


@pytest.mark.representatives(2)
@on_sqlite
@pytest.mark.parametrize("verb", [("retry",), ("terminate",), ("delay", "--by", "1h"), ("edit", "--priority", "8")])
def test_a_filter_is_only_previewed_until_the_count_is_confirmed(
    cli: Call, store: Store, verb: tuple[str, ...]
) -> None:
    later(store, 3, queue="mail")
    later(store, 1)
    before = store.tasks()
    result = cli(*verb, "queue:mail")
    assert result.code == Exit.BAD_INPUT
    assert "3 tasks match, 3 would change" in result.out
    assert "--yes 3" in result.err
    for wrong in (2, 4, "3+", "all"):
        assert cli(*verb, "queue:mail", "--yes", wrong).code == Exit.CONFLICT
    assert store.tasks() == before
    done = cli(*verb, "queue:mail", "--yes", 3, "--json")
    assert (done.code, len(done.document["changed"])) == (Exit.OK, 3)


CHANGES = [("retry",), ("terminate",), ("delay", "--by", "1h"), ("unblock",), ("edit", "--timeout", "5m")]


@pytest.mark.representatives(2)
@on_sqlite
@pytest.mark.parametrize("verb", CHANGES)
def test_a_filter_that_matches_no_task_is_success(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    later(store, 1)
    before = store.tasks()
    monkeypatch.setenv("TASKTUI_PRODUCTION", "on")  # a change would need a reason
    options: list[tuple[object, ...]] = [(), ("--dry-run",), ("--yes", 3), ("--limit", 1)]
    for words in options:
        result = cli(*verb, "queue:nothing", *words)
        assert (result.code, result.out, result.err) == (Exit.OK, "No tasks match.\n", "")
    assert store.tasks() == before


@on_sqlite
@pytest.mark.parametrize("word", ["1.5", "12,13", "-3", "1_0"])
def test_a_number_that_is_no_task_id_is_not_searched_for(cli: Call, word: str) -> None:
    result = cli("retry", "4", word) if word[0] != "-" else cli("retry", "--", word)
    assert (result.code, result.out) == (Exit.BAD_INPUT, "")
    assert f"{word} is not a task id: separate ids by spaces" in result.err


@on_sqlite
def test_a_preview_names_the_limit(cli: Call, store: Store) -> None:
    later(store, 3)
    first, *_ = cli("terminate", "state:scheduled", "--limit", 2, "--dry-run").out.splitlines()
    assert first == "terminate: 3 tasks match, 2 would change: --limit takes the newest of 3"
    first, *_ = cli("terminate", "state:scheduled", "--limit", 3, "--dry-run").out.splitlines()
    assert first == "terminate: 3 tasks match, 3 would change"


@pytest.mark.representatives(2)
@on_sqlite
@pytest.mark.parametrize("verb", CHANGES)
def test_a_filter_that_matches_no_task_has_an_empty_result_in_json(cli: Call, verb: tuple[str, ...]) -> None:
    result = cli(*verb, "queue:nothing", "--json")
    assert (result.code, result.err) == (Exit.OK, "")
    assert result.document == {
        "verb": verb[0],
        "changed": [],
        "conflicts": [],
        "skipped": [],
        "stuck": [],
        "requested": [],
        "change_group": None,
    }
    preview = cli(*verb, "queue:nothing", "--dry-run", "--json")
    assert (preview.code, preview.document["total"]["number"]) == (Exit.OK, 0)


def test_a_filter_that_matches_no_task_is_a_comment_in_sql(cli: Call, migrated_url: str) -> None:
    result = cli("terminate", "queue:nothing", "--sql")
    assert (result.code, result.out, result.err) == (Exit.OK, "-- No tasks match.\n", "")
    shell_of(migrated_url)(result.out)


@on_sqlite
def test_a_filter_that_matches_only_ineligible_tasks_is_a_conflict(cli: Call, store: Store) -> None:
    cli("terminate", *later(store, 2))
    result = cli("terminate", "handler:a.b")
    assert result.code == Exit.CONFLICT
    assert "2 tasks match, 0 would change" in result.out
    assert "2 skipped: it is cancelled" in result.out
    assert result.err == ""
    result = cli("terminate", "handler:a.b", "--json")
    assert (result.code, result.document["changed"]) == (Exit.CONFLICT, [])
    assert "2 skipped: it is cancelled" in result.err


def test_a_preview_counts_skipped_tasks_by_reason(cli: Call, store: Store) -> None:
    first, second, third = later(store, 3)
    cli("terminate", second)
    result = cli("delay", "handler:a.b", "--by", "1m", "--dry-run", "--json").document
    assert (result["total"]["number"], result["eligible"]) == (3, 2)
    assert [group["tasks"] for group in result["groups"]] == [2, 1]
    assert [skipped["number"] for skipped in result["skipped"]] == [1]
    assert State.CANCELLED in result["skipped"][0]["why"]
    assert [sample["id"] for sample in result["samples"]] == [third, first]


def test_a_dry_run_changes_nothing(cli: Call, store: Store) -> None:
    ids = later(store, 2)
    before = store.tasks()
    assert cli("terminate", *ids, "--dry-run").code == Exit.OK
    assert cli("terminate", "handler:a.b", "--dry-run", "--yes", 2).code == Exit.OK
    assert store.tasks() == before


@pytest.mark.slow
def test_chunks_reach_every_task_and_skip_ineligible_ones(cli: Call, store: Store) -> None:
    ids = later(store, 1_201)
    cli("terminate", *ids[100:300])
    assert "need a reason" in cli("delay", "handler:a.b", "--by", "1h", "--yes", 1_001).err
    assert cli("delay", "handler:a.b", "--by", "1h", "--yes", 1_001, "--reason", "why").code == Exit.PARTIAL
    soon = datetime.now(UTC) + timedelta(minutes=90)
    assert all(task["run_at"] > soon for task in store.tasks())
    assert len(store.tasks()) == 1_001


def test_a_trial_changes_only_the_first_tasks(cli: Call, store: Store) -> None:
    ids = later(store, 4)
    change = ("delay", "handler:a.b", "--by", "1h", "--limit", 1)
    assert cli(*change, "--dry-run", "--json").document["eligible"] == 1
    assert "confirm with --yes 1." in cli(*change).err
    assert (cli(*change, "--yes", 4).code, cli("audit", "--json").document["entries"]) == (Exit.CONFLICT, [])
    assert cli(*change, "--yes", 1, "--json").document["changed"] == [ids[-1]]
    soon = datetime.now(UTC) + timedelta(minutes=90)
    assert [task["run_at"] > soon for task in store.tasks()] == [False, False, False, True]
    assert cli("delay", *ids, "--by", "1h", "--limit", 2, "--json").document["changed"] == ids[:2]
    assert cli(*change[:-1], 0).code == Exit.BAD_INPUT


@on_sqlite
def test_production_requires_a_reason(cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    later(store, 1)
    monkeypatch.setenv("TASKTUI_PRODUCTION", "on")
    assert cli("terminate", "handler:a.b", "--yes", 1).code == Exit.BAD_INPUT
    assert cli("terminate", "handler:a.b", "--dry-run").code == Exit.OK
    assert cli("terminate", "handler:a.b", "--yes", 1, "--reason", "asked by ana").code == Exit.OK


@on_sqlite
@pytest.mark.parametrize("words", [(), ("12", "state:dead"), ("0",), ("9" * 30,), ("stat:x",)])
def test_invalid_targets_are_rejected(cli: Call, words: tuple[str, ...]) -> None:
    assert cli("terminate", *words).code == Exit.BAD_INPUT


def test_a_retry_can_be_spread(cli: Call, store: Store) -> None:
    later(store, 40)
    assert cli("retry", "handler:a.b", "--spread", "1h", "--yes", 40).code == Exit.OK
    times = {task["run_at"] for task in store.tasks()}
    assert max(times) - min(times) > timedelta(minutes=5)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (b"y\n", State.CANCELLED),
        (b"n\n", State.WAITING),
        pytest.param(b"\x04", State.WAITING, marks=pytest.mark.slow),
    ],
)
def test_a_terminal_prompts_for_confirmation(call: Call, answer: bytes, state: State) -> None:
    call("submit", "a.b", "--delay", "1h")
    result = answered("Type y to continue", answer, "terminate", "handler:a.b")
    assert result.code == (Exit.OK if state is State.CANCELLED else Exit.BAD_INPUT)
    assert result.err.endswith("runner: not confirmed; nothing was changed\n") == (state is State.WAITING)
    assert call("show", 1, "--json").document["state"] == state


def test_values_of_a_task_are_edited(cli: Call, store: Store) -> None:
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
    result = cli("edit", id, *values, "--payload", '{"a": 1}', "--key", "k", "--reason", "as agreed")
    assert result.code == Exit.OK, result.err
    assert "It runs at 2031-01-02" in result.out
    (task,) = store.tasks()
    names = ("run_at", "max_attempts", "priority", "retry", "timeout", "payload", "key")
    moment = datetime(2031, 1, 2, 3, 4, tzinfo=UTC)
    assert [task[name] for name in names] == [moment, 7, 9, "1m,5m", 90.0, '{"a": 1}', "k"]
    result = cli("edit", id, "--retry", "none", "--key", "none", "--max-attempts", "none")
    assert (result.code, result.out) == (Exit.OK, "edit: 1 changed; undo with: runner undo 2\n")
    (task,) = store.tasks()
    assert (task["retry"], task["key"], task["max_attempts"]) == (None, None, None)


def test_a_number_of_thousands_of_digits_is_refused(cli: Call, store: Store) -> None:
    (id,) = later(store, 1)
    result = cli("edit", id, "--max-attempts", "9" * 5_000)  # Python reads no such number.
    assert (result.code, "expected a whole number, or none" in result.err) == (Exit.BAD_INPUT, True)


def test_a_single_change_names_its_undo(cli: Call, store: Store) -> None:
    first, second = later(store, 2)
    for words in (("delay", second, "--by", "1h"), ("edit", first, "--priority", 7), ("terminate", first)):
        command = cli(*words).out.partition("undo with: runner ")[2].split()
        assert cli(*command).code == Exit.OK, words
    assert [(task["state"], task["priority"]) for task in store.tasks()] == [(State.WAITING, 1)] * 2
    assert "undo with" not in cli("undo", 1).out
    assert "undo with" not in cli("edit", first, "--priority", 1).out  # nothing was changed


async def test_a_change_is_reported_though_the_database_cannot_be_reached_after_it() -> None:
    database = Database.open("postgresql://127.0.0.1:1/none")
    assert await undo_command(database, Result(changed=[1])) == "runner undo"
    await database.dispose()


def test_many_tasks_are_edited_with_a_spread_and_undone(cli: Call, store: Store) -> None:
    ids = later(store, 3, queue="mail")
    before = store.tasks()
    result = cli("edit", "queue:mail", "--run-at", "+2h", "--spread", "10m", "--max-attempts", 7, "--yes", 3)
    assert (result.code, "edit: 3 changed; undo with: runner undo --group " in result.out) == (Exit.OK, True)
    assert {task["max_attempts"] for task in store.tasks()} == {7}
    assert cli("undo", "--group", result.out.split()[-1], "--yes", 3).code == Exit.OK
    after = {task["id"]: task for task in store.tasks()}
    for task in before:  # the audit has milliseconds
        assert abs(after[task["id"]]["run_at"] - task["run_at"]) < timedelta(milliseconds=2)
        assert after[task["id"]]["max_attempts"] == task["max_attempts"]
    for wrong in (("--payload", "{}"), ("--version", 1), ("--requeue",), ("--spread", "5m"), ()):
        assert cli("edit", *ids, *wrong).code == Exit.BAD_INPUT


@on_sqlite
def test_an_edit_of_an_outdated_version_is_a_conflict(cli: Call, store: Store) -> None:
    (id,) = later(store, 1)
    version = cli("show", id, "--json").document["version"]
    cli("edit", id, "--priority", 5)
    result = cli("edit", id, "--priority", 7, "--version", version)
    assert result.code == Exit.CONFLICT
    assert f"since you loaded version {version}" in result.err
    assert store.tasks()[0]["priority"] == 5


@on_sqlite
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
def test_invalid_values_are_rejected(cli: Call, store: Store, values: tuple[object, ...]) -> None:
    (id,) = later(store, 1)
    before = store.tasks()
    assert cli("edit", id, *values).code == Exit.BAD_INPUT
    assert store.tasks() == before


@on_sqlite
def test_a_missing_task_cannot_be_edited(cli: Call) -> None:
    assert cli("edit", 999, "--priority", 5).code == Exit.NOT_FOUND


def test_a_queue_is_paused_until_it_is_resumed(cli: Call) -> None:
    result = cli("pause", "mail", "--until", "+10m", "--reason", "relay is down")
    assert result.code == Exit.OK
    assert "resumes in" in result.out
    assert "queue mail has never been used" in result.err
    (queue,) = cli("stats", "--json").document["queues"]
    assert (queue["queue"], queue["paused"]["why"]) == ("mail", "relay is down")
    assert "mail has been paused for" in cli("stats").out
    assert cli("resume", "mail").code == Exit.OK
    assert cli("resume", "mail").code == Exit.CONFLICT


def test_a_pause_of_a_new_name_is_accepted_with_the_name_that_was_probably_meant(cli: Call, store: Store) -> None:
    store.submit(NewTask("shop.pack", queue="mail"))
    store.claim("coupons.send")
    result = cli("pause", "mial", "--dry-run")
    expected = "queue mial has never been used, did you mean 'mail'; the pause holds its first tasks back"
    assert (result.code, result.err) == (Exit.OK, f"runner: {expected}\n")
    assert "did you mean 'coupons.send'" in cli("pause", "--handler", "coupns.send").err
    assert cli("pause", "--handler", "coupons.send").err == ""  # a runner has it, without a task
    resumed = cli("resume", "mial")
    assert (resumed.code, "did you mean 'mail'" in resumed.err) == (Exit.CONFLICT, True)
    assert "did you mean 'mail'" in cli("limit", "queue", "mial", "--concurrency", 3).err
    assert cli("pause", "mail").err == ""


@on_sqlite
def test_a_second_pause_keeps_the_end_and_reason_of_the_first(cli: Call) -> None:
    cli("pause", "mail", "--until", "+10m", "--reason", "relay is down")
    again = cli("pause", "mail")
    assert again.code == Exit.OK
    assert re.match(r"queue mail paused \(already paused\): relay is down; resumes in (10m|9m\d+s)$", again.out)
    result = cli("pause", "mail", "--reason", "disk is full", "--json").document
    assert (result["why"], result["replaced"]) == ("disk is full", True)
    assert result["until"] is not None


@on_sqlite
def test_a_handler_can_be_paused_too(cli: Call) -> None:
    assert cli("pause", "--handler", "a.b", "--json").document == {
        "verb": "pause",
        "target": "handler a.b",
        "until": None,
        "why": None,
        "replaced": False,
        "dry_run": False,
    }
    assert cli("resume", "--handler", "a.b").code == Exit.OK


@on_sqlite
@pytest.mark.parametrize("words", [(), ("mail", "--handler", "a.b"), ("mail", "--until", "-1h"), ("",)])
def test_a_pause_needs_one_subject_and_a_future_end(cli: Call, words: tuple[str, ...]) -> None:
    assert cli("pause", *words).code == Exit.BAD_INPUT


@on_sqlite
def test_a_dry_run_of_an_edit_makes_all_checks(cli: Call, store: Store) -> None:
    (id,) = later(store, 1)
    result = cli("edit", id, "--priority", 7, "--key", "k", "--dry-run")
    assert result.code == Exit.OK
    assert result.out == "would change priority: 1 -> 7\nwould change key: none -> k\n"
    assert cli("edit", id, "--priority", 7, "--dry-run", "--json").document["eligible"] == 1
    assert cli("edit", id, "--priority", 1, "--dry-run").code == Exit.CONFLICT
    assert cli("edit", id, "--priority", 7, "--version", 9, "--dry-run").code == Exit.CONFLICT
    assert cli("edit", id, "--priority", 99, "--dry-run").code == Exit.BAD_INPUT
    assert cli("edit", 999, "--priority", 7, "--dry-run").code == Exit.NOT_FOUND
    assert (store.tasks()[0]["priority"], cli("audit", "--json").document["entries"]) == (1, [])


@on_sqlite
def test_a_finished_task_is_only_edited_to_run_again(cli: Call, store: Store) -> None:
    (id,) = later(store, 1)
    cli("terminate", id)
    result = cli("edit", id, "--priority", 7)
    assert result.code == Exit.CONFLICT
    assert "--requeue" in result.err  # what to do next
    assert cli("edit", id, "--priority", 7, "--requeue", "--dry-run").out == "would change priority: 1 -> 7\n"
    assert cli("edit", id, "--priority", 7, "--requeue").code == Exit.OK
    assert [(task["priority"], task["state"]) for task in store.tasks()] == [(7, State.WAITING)]
    for option in ("--sql", "--dry-run", "--reason=again"):
        assert "leave out --requeue to change it" in cli("edit", id, "--priority", 8, "--requeue", option).err
    assert "use runner retry" in cli("edit", id, "--requeue").err


@pytest.mark.slow
@on_sqlite
def test_dry_runs_of_pause_and_resume_change_nothing(cli: Call) -> None:
    assert (
        "queue mail would be paused: why; resume with: runner resume mail"
        in cli("pause", "mail", "--reason", "why", "--dry-run").out
    )
    assert cli("pause", "mail", "--until", "-1h", "--dry-run").code == Exit.BAD_INPUT
    assert cli("resume", "mail", "--dry-run").code == Exit.CONFLICT
    cli("pause", "mail")
    assert cli("resume", "mail", "--dry-run", "--json").document["changed"] is True
    assert cli("pause", "mail", "--dry-run", "--json").document["replaced"] is True
    assert len(cli("audit", "--json").document["entries"]) == 1


def test_pasted_sql_has_the_effect_of_the_command(cli: Call, store: Store, migrated_url: str) -> None:
    shell, ids = shell_of(migrated_url), later(store, 2)
    for typed in (
        ["terminate", *ids],
        ["edit", ids[0], "--requeue", "--key", "k"],
        ["retry", ids[0]],
        ["edit", ids[0], "--priority", 9],
        ["delay", ids[0], "--by", "1h"],
    ):
        before = store.tasks()
        result = cli(*typed, "--sql", "--reason", "it's back")
        assert (result.code, result.err, store.tasks()) == (Exit.OK, "", before)
        shell(result.out)
        assert store.tasks() != before
        entry = cli("show", ids[0], "--json").document["audit"][-1]
        done = "requeue" if "--requeue" in typed else typed[0]
        assert (entry["verb"].removesuffix("_now"), entry["reason"]) == (done, "it's back")
    shell(cli("undo", entry["id"], "--sql").out)
    (task,) = store.tasks()
    assert (task["id"], task["priority"]) == (ids[0], 9)
    assert task["run_at"] < datetime.now(UTC) + timedelta(minutes=5)
    assert str(ids[0]) in shell(cli("tasks", "state:ready", "--sql").out)


def test_sql_is_printed_for_a_limited_number_of_eligible_tasks(cli: Call, store: Store) -> None:
    ids = later(store, 101, queue="mail")
    assert "at most 100 tasks" in cli("terminate", "queue:mail", "--sql").err
    assert cli("terminate", "queue:mail", f"id<={ids[1]}", "--sql").out.count("COMMIT;") == 2
    assert "it does not exist" in cli("retry", 999_999, "--sql").err
    assert "secrets" in cli("edit", ids[0], "--payload", '{"token": "geheim"}', "--sql").err


def test_a_pause_is_printed_as_sql_too(cli: Call, migrated_url: str) -> None:
    shell = shell_of(migrated_url)
    shell(cli("pause", "mail", "--until", "+30m", "--sql").out)
    assert "mail has been paused" in cli("check").out
    shell(cli("resume", "mail", "--sql").out)
    assert "is not paused" in cli("resume", "mail", "--sql").err
    assert "runner 7 does not exist" in cli("runners", "drain", 7, "--sql").err


def test_an_edit_without_a_change_and_a_negative_delay_name_the_way(cli: Call, store: Store) -> None:
    (id,) = later(store, 1)
    edit = cli("edit", id)
    assert edit.code == Exit.BAD_INPUT
    assert "name at least one change, such as --priority 9; see runner edit --help" in " ".join(edit.err.split())
    delay = cli("delay", id, "--by", "-5m")
    assert delay.code == Exit.BAD_INPUT
    assert "--by must be positive, such as 10m" in " ".join(delay.err.split())


EMPTY = ["--queues", "--only", "--except", "--scans", "--buckets", "--slice", "--poll-mode", "--claim-order", "-H"]


@pytest.mark.parametrize("empty", ["", " ", ","])
@pytest.mark.parametrize("option", [*EMPTY, "--profile"])
def test_a_runner_with_an_empty_selection_does_not_start(cli: Call, option: str, empty: str) -> None:
    result = cli("work", "-H", "sample_handlers", "--until-idle", option, empty)
    assert result.code == Exit.BAD_INPUT
    assert f"{option} is empty: give it a value, or leave it out" in result.err


@pytest.mark.parametrize("option", ["--operator", "--of", "--since", "--group"])
def test_an_audit_of_an_empty_selection_is_refused(cli: Call, option: str) -> None:
    result = cli("audit", option, "")
    assert result.code == Exit.BAD_INPUT
    assert f"{option} is empty" in result.err
