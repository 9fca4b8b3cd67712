"""Commands that only read: sanitized text and stable JSON."""

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.cli.exit_codes import Exit
from runner.db.database import Database
from runner.db.transaction import Transaction, clock
from runner.model.outcome import RUNNER_LOST, Done, Failure, Retry
from runner.model.task import NewTask, Shown, State
from runner.operations.names import MOST_NAMES
from runner.store.ended_runners import end_runners
from tests.cli.conftest import Call, Store, program
from tests.conftest import on_sqlite
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_runner, ahead
from tests.store.table import change

EVIL = "\x1b[31mred\x9b0m\u202e\u200b[bold]x[/bold][/nothing]\r\n"
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b]")


def hostile(store: Store) -> int:
    """A task with control characters in every text field; it has failed once."""

    async def arrange(tx: Transaction) -> int:
        task = tx.tables.task
        values = dict.fromkeys(("queue", "handler", "key", "submitted_by"), EVIL)
        values |= {"payload": json.dumps({EVIL: EVIL, "token": EVIL}), "tags": json.dumps([EVIL])}
        values["headers"] = json.dumps({EVIL: EVIL, "cookie": EVIL})
        return int((await tx.execute(sa.insert(task).values(values).returning(task.c.id))).scalar_one())

    id = store.write(arrange)
    store.claim(EVIL, outcome=Retry("1h", failure=Failure(EVIL, EVIL, EVIL)))
    return id


@pytest.mark.slow
def test_each_command_names_a_similar_queue_or_handler(cli: Call, store: Store) -> None:
    store.submit(NewTask("mail.send", queue="letters"))
    commands = (("tasks",), ("failures",), ("why",), ("retry",), ("retry", "--dry-run"), ("terminate", "--sql"))
    for command in commands:
        queue, handler = cli(*command, "queue:leters"), cli(*command, "handler:mail.sent,mail.send id:999")
        assert queue.err == "runner: queue leters has never been used, did you mean 'letters'\n", command
        assert handler.err == "runner: no runner ever had handler mail.sent, did you mean 'mail.send'\n", command
        assert cli(*command, "queue:letters handler:mail.* id:999").err == ""
    shown = cli("limit", "queue", "leters")
    assert shown.err == "runner: queue leters has never been used, did you mean 'letters'\n"
    assert cli("tasks", "queue:leters", "--at", "0s").err == shown.err
    limits = ("--limit", "queue:leters=5", "--rate", "queue:leters=5/s", "--limit", "handler:mail.sent=5")
    assert cli("capacity", "--simulate", *limits).err == (
        "runner: queue leters has never been used, did you mean 'letters'; its limit changes nothing\n"
        "runner: no runner ever had handler mail.sent, did you mean 'mail.send'; its limit changes nothing\n"
    )
    assert cli("capacity", "--simulate", "--limit", "queue:letters=5").err == ""
    names = ",".join(f"letters{number}" for number in range(20))
    assert cli("tasks", f"queue:{names}").err.count("never been used") == MOST_NAMES


def test_no_text_of_the_database_reaches_the_terminal_unsanitized(cli: Call, store: Store) -> None:
    id = hostile(store)
    block = json.dumps({"seconds": 12.0, "tasks": [[id, EVIL]], "place": EVIL})
    values: dict[str, Any] = {
        "host": EVIL,
        "version": EVIL,
        "handlers": json.dumps([EVIL]),
        "command": EVIL,
        "stall": block,
    }
    store.use(lambda database: add_runner(database, **values))
    looks = [("tasks",), ("show", id), ("show", id, "--reveal"), ("stats",), ("runners",), ("check",), ("alerts",)]
    looks += [("retry", f"id:{id}", "--dry-run"), ("terminate", "99"), ("tasks", "--json"), ("show", id, "--json")]
    looks += [("why", id), ("why", id, "--json"), ("reports",), ("reports", "--csv"), ("reports", "--json")]
    looks += [("failures",), ("failures", "--traceback"), ("failures", "--json"), ("audit",), ("audit", "--json")]
    looks += [("alerts", "--json"), ("stats", "--json"), ("retry", f"id:{id}", "--dry-run", "--json")]
    for look in looks:
        result = cli(*look)
        assert not FORBIDDEN.search(result.out + result.err), look
    assert "␛[31mred" in cli("show", id).out
    assert "[bold]x[/bold]" in cli("show", id).out


def test_json_contains_the_exact_stored_values(cli: Call, store: Store) -> None:
    id = hostile(store)
    (task,) = cli("tasks", "--json").document["tasks"]
    assert (task["id"], task["key"], task["queue"]) == (id, EVIL, EVIL)
    assert cli("show", id, "--json", "--reveal").document["payload"] == {EVIL: EVIL, "token": EVIL}


@on_sqlite
def test_tables_fit_eighty_columns(cli: Call, store: Store) -> None:
    store.submit(*(NewTask("h" * 150, queue="q" * 150, key="k" * 400) for _ in range(3)))
    store.claim("h" * 150)
    for look in (("tasks",), ("stats",), ("runners",)):
        assert max(len(line) for line in cli(*look).out.splitlines() if "No live runner" not in line) <= 80, look
    assert re.search(r"^ID +STATE +QUEUE", cli("tasks").out)
    assert all(str(task["id"]) in cli("tasks").out for task in store.tasks())


def test_a_list_continues_after_its_last_task(cli: Call, store: Store) -> None:
    ids = store.submit(*(NewTask("a.b", key=f"k{n}") for n in range(5)))
    first = cli("tasks", "--limit", 2, "--json").document
    assert [task["id"] for task in first["tasks"]] == ids[:2:-1]
    second = cli("tasks", "--limit", 5, "--after", first["next"], "--json").document
    assert [task["id"] for task in second["tasks"]] == ids[2::-1]
    assert second["next"] is None
    assert f"--after {first['next']}" in cli("tasks", "--limit", 2).out


def test_a_list_keeps_its_sort_order_across_pages(cli: Call, store: Store) -> None:
    ids = store.submit(*(NewTask("a.b", delay=60 * (n % 3 + 1)) for n in range(5)))
    due = [ids[0], ids[3], ids[1], ids[4], ids[2]]
    assert [task["id"] for task in cli("tasks", "--sort", "age", "--json").document["tasks"]] == ids
    first = cli("tasks", "--sort", "run_at", "--limit", 2, "--json").document
    assert ([task["id"] for task in first["tasks"]], first["sort"]) == (due[:2], "run_at asc")
    rest = cli("tasks", "--sort", "run_at", "--after", first["next"])
    assert "3 tasks (indexed, by run_at: due first)" in rest.out
    assert [int(line.split()[0]) for line in rest.out.splitlines()[1:4]] == due[2:]
    latest = cli("tasks", "--sort", "run_at", "--desc", "--json").document
    assert [task["id"] for task in latest["tasks"]] == due[::-1]


@on_sqlite
def test_a_filter_may_be_one_word_or_several(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b", queue="mail"), NewTask("a.b", queue="mail", delay=60), NewTask("c.d"))
    for words in (["queue:mail state:ready"], ["queue:mail", "state:ready"]):
        (task,) = cli("tasks", *words, "--json").document["tasks"]
        assert (task["queue"], task["state"], task["shown"]) == ("mail", State.WAITING, Shown.READY)


def test_a_list_names_its_access_path(cli: Call, store: Store) -> None:
    id = store.submit(NewTask("a.b", key="x"))[0]
    assert "(indexed)" in cli("tasks", f"id:{id}").out
    assert "(scan)" in cli("tasks", "x").out


@on_sqlite
@pytest.mark.parametrize(
    "arguments",
    [
        ("stat:x",),
        ("--limit", 0),
        ("--after", 2**63),
        ("--limit", "many"),
        ("--sort", "size"),
        ("--asc", "--desc"),
        ("--sort", "run_at", "--after", 7),
        ("--sort", "run_at", "state:dead"),
        ("--at", "soon"),
        ("--at", "03:12", "--sort", "run_at"),
    ],
)
def test_invalid_list_options_are_rejected(cli: Call, arguments: tuple[object, ...]) -> None:
    result = cli("tasks", *arguments)
    assert result.code == Exit.BAD_INPUT
    assert result.err.startswith("runner: ")


@on_sqlite
@pytest.mark.parametrize(
    "arguments",
    [("tasks", ""), ("tasks", " "), ("tasks", "queue:mail", ""), ("failures", ""), ("retry", "", "--yes", 1)],
)
def test_an_empty_filter_is_refused_as_an_unset_variable(
    cli: Call, store: Store, arguments: tuple[object, ...]
) -> None:
    store.submit(NewTask("a.b"))
    result = cli(*arguments)
    text = "a filter is empty: give it a term such as queue:mail, or leave it out"
    assert (result.code, result.out) == (Exit.BAD_INPUT, "")
    assert text in result.err


@on_sqlite
def test_a_list_without_matches_is_success(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b"))
    result = cli("tasks", "queue:nothing")
    assert (result.code, result.out, result.err) == (Exit.OK, "No tasks match.\n", "")
    result = cli("tasks", "queue:nothing", "--json")
    assert (result.code, result.document["tasks"], result.document["next"]) == (Exit.OK, [], None)


@on_sqlite
def test_times_in_json_are_utc(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b", run_at=datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)))
    (task,) = cli("tasks", "--json").document["tasks"]
    assert task["run_at"] == "2031-01-02T03:04:05Z"


def test_show_prints_attempts_and_errors(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b", retry="5m", max_attempts=3, payload='{"user": 7, "password": "geheim"}'))

    failure = Failure("builtins.ValueError", "no luck, token=geheim", 'Traceback:\n  line("postgresql://a:geheim@h/d")')
    store.claim("a.b", outcome=Retry(failure=failure))
    looks = [("tasks",), ("show", id), ("why", id), ("failures", "--traceback"), ("failures",), ("stats",)]
    for look in (*looks, *((*look, "--json") for look in looks if "--traceback" not in look)):
        assert "geheim" not in cli(*look).out, look
    result = cli("show", id, "--json").document
    assert (result["id"], result["shown"], result["attempt"], result["retry"]) == (id, Shown.RETRYING, 1, "5m")
    assert [(attempt["attempt"], attempt["message"], attempt["delay"]) for attempt in result["attempts"]] == [
        (1, "no luck, token=***", 300)
    ]
    assert len(result["next_runs"]) == 2
    assert result["payload"] == {"user": 7, "password": "***"}
    text = cli("show", id).out
    for part in ("↻ retrying", "no luck", "Traceback:", "next runs", "1/3"):
        assert part in text
    text = cli("show", id, "--reveal").out
    assert all(f"{before}geheim" in text for before in ('"password": "', "token=", "//a:"))
    (entry,) = cli("show", id, "--json").document["audit"]
    assert entry["verb"] == "reveal"


@on_sqlite
def test_a_very_long_error_is_bounded_and_json_has_all_of_it(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b", max_attempts=3, retry="5m"))
    message, traceback = f"begin {'x' * 9_000} end", f"first line\n{'y' * 9_000}\nlast line"
    store.claim("a.b", outcome=Retry(failure=Failure("builtins.ValueError", message, traceback)))
    text = cli("show", id).out
    assert len(text) < 12_000
    for part in ("begin x", "x end", "first line", "last line"):
        assert part in text
    assert text.count(f"characters left out; see all with: runner show {id} --json") == 2, "the error and the traceback"
    document = cli("show", id, "--json").document
    assert document["error"].endswith(message)
    assert document["attempts"][0]["traceback"] == traceback


@on_sqlite
def test_show_prints_finished_tasks(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b"))

    store.claim("a.b", outcome=Done('{"sent": 3}'))
    result = cli("show", id, "--json").document
    assert (result["state"], result["result"]) == (State.SUCCEEDED, {"sent": 3})
    assert "finished" in cli("show", id).out


@on_sqlite
def test_a_succeeded_task_shows_its_last_error(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b", max_attempts=3))
    store.claim("a.b", outcome=Retry("0s", failure=Failure("builtins.ValueError", "no luck")))
    store.claim("a.b", outcome=Done())
    lines = cli("show", id).out.splitlines()
    assert "last error" in lines
    assert "error" not in lines


def test_the_next_runs_follow_the_plan_of_a_loaded_handler(call: Call, tmp_path: Path) -> None:
    source = "import runner\n@runner.handler('a.b', retry='7m')\nasync def ab() -> None: ...\n"
    (tmp_path / "own_handlers.py").write_text(source)
    call("submit", "a.b", "--max-attempts", 2)
    assert len(call("show", 1, "--json").document["next_runs"]) == 1
    first, second = json.loads(program("show", 1, "--json", "-H", "own_handlers").stdout)["next_runs"]
    assert datetime.fromisoformat(second) - datetime.fromisoformat(first) == timedelta(minutes=7)
    values = program("show", 1, "-H", "own_handlers").stdout
    assert "7m, from the handler" in values
    assert "15m, from the settings" in values


@on_sqlite
@pytest.mark.parametrize(
    ("id", "code"), [(999, Exit.NOT_FOUND), (0, Exit.BAD_INPUT), ("x", Exit.BAD_INPUT), (2**64, Exit.BAD_INPUT)]
)
def test_a_missing_task_has_an_exit_code(cli: Call, id: object, code: int) -> None:
    assert cli("show", id).code == code


def test_stats_list_every_queue_and_unknown_handlers(cli: Call, store: Store) -> None:
    store.submit(*(NewTask("a.b", queue="mail") for _ in range(3)), NewTask("c.d", delay=3600))
    result = cli("stats", "--json").document
    assert [(queue["queue"], queue["ready"]["number"], queue["scheduled"]["number"]) for queue in result["queues"]] == [
        ("default", 0, 1),
        ("mail", 3, 0),
    ]
    assert [unknown["handler"] for unknown in result["unknown_handlers"]] == ["a.b", "c.d"]
    assert "No live runner takes handler a.b (queue mail, due for" in cli("stats").out


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize("target", [("mail",), ("--handler", "a.b")])
def test_a_pause_is_printed_with_operator_reason_and_end(
    cli: Call, store: Store, target: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    store.submit(NewTask("a.b", queue="mail"))
    cli("pause", *target, "--until", "+2h", "--reason", "shop is closed")
    name = f"{'handler' if len(target) > 1 else 'queue'} {target[-1]}"
    pattern = rf"(?i){name} has been paused for .+ by .+ \(shop is closed\); it resumes in"
    looks = [("stats",), ("check",), ("show", 1)]
    assert [look for look in looks if not re.search(pattern, cli(*look).out)] == []
    cli("resume", *target)
    assert [look for look in looks if "has been paused" in cli(*look).out] == []


@on_sqlite
def test_the_end_of_a_pause_may_follow_the_queue_as_in_the_console(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b", queue="mail"))
    assert "queue mail paused; resumes in 2h" in cli("pause", "mail", "2h").out
    assert "queue mail paused (already paused); resumes in 3h" in cli("pause", "mail", "--until", "3h").out


@on_sqlite
def test_stats_and_show_contain_a_paused_handler(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b", queue="mail"))
    cli("pause", "--handler", "a.b", "--reason", "shop is closed")
    assert cli("stats", "--json").document["paused_handlers"]["a.b"]["why"] == "shop is closed"
    story = cli("show", id, "--json").document
    assert (story["handler_pause"]["why"], story["queue_pause"]) == ("shop is closed", None)


@on_sqlite
def test_a_finished_task_shows_no_pause(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b"))
    store.claim("a.b", outcome=Done())
    cli("pause", "--handler", "a.b")
    assert "has been paused" not in cli("show", id).out


def test_runners_are_listed_with_the_tasks_they_hold(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b"), NewTask("a.b"))
    store.claim("a.b")
    (runner,) = cli("runners", "--json").document["runners"]
    assert (runner["host"], runner["pid"], runner["running_tasks"], runner["alive"]) == ("web-1", 1, 2, True)
    assert "2/10" in cli("runners").out


@on_sqlite
def test_a_runner_is_listed_with_its_claim_order_unless_it_is_strict(cli: Call, store: Store) -> None:
    store.use(lambda database: add_runner(database, claim_order="aged:10s"))
    assert "alive, aged:10s" in cli("runners").out


@on_sqlite
def test_a_runner_is_listed_with_its_selection_and_its_polling(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    store.use(lambda database: add_runner(database, polling="fixed-rate 1s", buckets="0-511"))
    store.use(lambda database: add_runner(database, polling="spread 5s", slice="live", buckets="0-488"))
    store.use(lambda database: add_runner(database, slice="single", buckets=""))
    output = " ".join(cli("runners").out.split())
    assert "alive, buckets 0-511" in output
    assert "slice live (489 of 1000 buckets), spread 5s" in output
    assert "slice single (standby)" in output


@on_sqlite
def test_a_runner_refuses_a_selection_without_handlers_before_it_claims(cli: Call, store: Store) -> None:
    answer = cli("work", "-H", "sample_handlers", "--except", "nothing.*")
    assert "'nothing.*': no handler matches it; the handlers are " in answer.err
    assert "--max-tasks is 0; it must be at least 1" in cli("work", "-H", "sample_handlers", "--max-tasks", "0").err
    assert "it is not known; use fixed-rate" in cli("work", "-H", "sample_handlers", "--poll-mode", "fast").err


def test_colours_follow_the_terminal_and_no_color(call: Call) -> None:
    call("submit", "a.b")
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[1m" in program("tasks", env=environment).stdout
    assert "\x1b[" not in program("tasks").stdout
    refused = program("tasks", env={**environment, "NO_COLOR": "1"}).stdout
    assert not re.search("\x1b\\[[0-9;]*3[0-9]", refused)


@on_sqlite
def test_why_prints_causes_and_remedies(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b", queue="mail", delay=3600))
    cli("pause", "mail", "--reason", "shop is closed")
    result = cli("why", id)
    assert result.code == Exit.OK
    lines = result.out.splitlines()
    assert lines[0] == f"Task {id} a.b is not running because:"
    assert lines[1].startswith("  1. It is due in ")
    assert "     -> runner resume mail" in lines
    assert max(map(len, lines)) <= 80


def test_why_in_json_contains_the_kinds_of_causes(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b"))
    document = cli("why", id, "--json").document
    assert (document["task"]["id"], document["task"]["shown"]) == (id, "ready")
    assert [(cause["kind"], cause["advice"][:14]) for cause in document["causes"]] == [("unknown", "start a runner")]


def test_why_of_a_filter_counts_tasks_by_cause(cli: Call, store: Store) -> None:
    ids = store.submit(*(NewTask("a.b", queue="mail") for _ in range(3)), NewTask("c.d", delay=60))
    cli("pause", "mail")
    lines = cli("why", "queue:mail").out.splitlines()
    assert lines[0] == "3 tasks are not running because:"
    assert re.match(rf" +3 +queue mail is paused +{ids[0]} +runner resume mail", lines[2])
    assert cli("why", "queue:mail", "--limit", 2).out.startswith("The first 2 tasks by due time are not running")
    document = cli("why", *ids, "--json").document
    assert document["examined"] == {"number": 4, "more": False}
    assert document["frees_most"] is None  # no runner has a handler
    assert [(cause["kind"], cause["tasks"]) for cause in document["causes"]] == [("paused", 3), ("due", 1)]
    assert cli("why", "queue:nothing").out.startswith("No tasks match.")
    assert cli("why").code == cli("why", "stat:x").code == cli("why", "queue:mail", "--limit", 0).code == Exit.BAD_INPUT


@on_sqlite
def test_why_of_a_missing_task_is_not_found(cli: Call) -> None:
    assert cli("why", 999).code == Exit.NOT_FOUND


def test_reports_contain_rates_and_counts(cli: Call, store: Store) -> None:
    async def worked(tx: Transaction) -> None:
        minute = Minute(await clock(tx), "mail", "a.b")
        minute.counts |= {"succeeded": 3, "first_try": 2, "second_try": 1, "died": 1, "submitted": 4}
        minute.durations.add([4.0])
        minute.waits.add([300.0])
        await write_statistics(tx, 1, [minute], {})

    store.write(worked)
    lines = cli("reports", "--since", "10m").out.splitlines()
    titles = ["NAME", "IN", "DONE", "SUCCESS", "1ST ATT", "2ND", "RETRY", "DEAD", "P50", "P95", "WAIT P95"]
    assert re.split(r" {2,}", lines[1].strip()) == titles
    assert lines[2].split() == ["a.b", "4", "3", "75.0", "%", "50.0", "%", "25.0", "%", "0", "1", "4s", "4s", "5m"]
    assert "50.0 %" in cli("stats").out  # as in the report
    document = cli("reports", "--by", "queue", "--json").document
    assert (document["by"], document["lines"][0]["name"], document["total"]["success"]) == ("queue", "mail", 0.75)
    assert cli("reports", "--csv").out.splitlines()[1].startswith("a.b,4,3,")
    assert "No tasks were submitted or finished" in cli("reports", "--since", "2d", "--until", "1d").out


@on_sqlite
@pytest.mark.parametrize("wrong", [("--since", "soon"), ("--json", "--csv"), ("--since", "1h", "--until", "2h")])
def test_an_invalid_period_is_rejected(cli: Call, wrong: tuple[str, ...]) -> None:
    assert cli("reports", *wrong).code == Exit.BAD_INPUT


@on_sqlite
@pytest.mark.parametrize("command", [("reports", "--since"), ("incident", "--from")])
def test_a_period_before_the_oldest_statistics_is_noted(
    cli: Call, monkeypatch: pytest.MonkeyPatch, command: tuple[str, str]
) -> None:
    assert cli(*command, "7d").err == cli(*command, "30d").err == ""
    assert "statistics are kept for 30d (retention_statistics): figures begin at 2" in cli(*command, "90d").err
    monkeypatch.setenv("TASKTUI_RETENTION_STATISTICS", "never")
    assert cli(*command, "90d").err == ""


def test_capacity_names_the_bound_of_each_queue(cli: Call, store: Store) -> None:
    assert "No tasks are due" in cli("capacity").out
    store.submit(NewTask("a.b", queue="mail"), NewTask("a.b", queue="mail"))
    lines = cli("capacity").out.splitlines()
    assert lines[0] == "rates of the last 10m, by queue"
    assert any("PER DAY" in line for line in lines)
    assert any(re.search(r"mail .* 0 .*not now +no", line) for line in lines)
    assert lines[-1] == "mail: not now: no runner takes a.b"
    (row,) = cli("capacity", "--by", "handler", "--since", "1h", "--json").document["rows"]
    assert (row["name"], row["ready"], row["can_per_minute"], row["drains"]) == ("a.b", 2, 0, False)
    assert row["tasks_per_day"] == 0
    for wrong in ("1s", "30d", "soon"):
        assert cli("capacity", "--since", wrong).code == Exit.BAD_INPUT


def test_capacity_lists_the_tenants_at_their_limit(cli: Call, store: Store) -> None:
    assert cli("limit", "queue", "mail", "--per-tenant", "1", "--new").code == Exit.OK
    store.use(lambda database: add_live(database, "a.b", queue="mail", tenant="acme", state="running", fence=1))
    store.submit(*(NewTask("a.b", queue="mail", tenant="acme") for _ in range(3)))
    lines = cli("capacity").out.splitlines()
    assert lines[-3] == "queue mail: 1 tenant waits at the limit of 1 running"
    assert re.fullmatch(r"acme +1 of 1 +3 +[\d.]+m?s +unknown", lines[-1].strip())
    (row,) = cli("capacity", "--json").document["tenants"]
    assert (row["limit"], row["tenant"], row["running"], row["most"]) == ("queue mail", "acme", 1, 1)
    assert (row["backlog"], row["drained_in_minutes"]) == ({"number": 3, "more": False}, None)


def test_runners_are_listed_with_their_resources_and_what_blocks_them(cli: Call, store: Store) -> None:
    block = json.dumps({"seconds": 11.0, "tasks": [[41, "reports.render"]], "place": "reports.py:7", "locked": False})
    store.use(lambda database: add_runner(database, cpu=1.42, memory=190 * 2**20, pid=4117, stall=block))
    store.use(add_runner)
    first, second = cli("runners", "--json").document["runners"]
    assert (first["cpu"], first["memory"], first["pid"]) == (1.42, 190 * 2**20, 4117)
    assert first["block"] == {
        "seconds": 11.0,
        "tasks": [[41, "reports.render"]],
        "place": "reports.py:7",
        "locked": False,
        "fact": "",
    }
    assert (second["cpu"], second["memory"], second["block"]) == (None, None, None)
    text = " ".join(cli("runners").out.split())
    assert re.search(r" 4117 stalled .* 142 % 190 MiB ", text)
    sentence = (
        r"has been blocked for \d+s by reports\.render \(task 41\) at reports\.py:7: a blocking call in an async "
    )
    assert re.search(f"{sentence}handler. Make it a plain function, or use", text)
    check = cli("check")
    assert check.code != Exit.OK
    assert re.search(sentence, " ".join(check.out.split()))


def test_runners_that_have_ended_are_listed_with_how_they_ended(cli: Call, store: Store) -> None:
    async def end(database: Database) -> list[int]:
        ids = [await add_runner(database, host=f"web-{n}") for n in range(2)]
        task = await add_live(database)
        await database.write(end_runners, ids[:1], lost=False)
        await database.write(end_runners, ids[1:], lost=True)
        await change(database, sa.update(database.tables.ended_runner).values(tasks=2, version="4.12"))
        lost = {"error_type": RUNNER_LOST, "verb": "die", "ended_at": ahead(1)}
        await add_attempt(database, task, runner_id=ids[1], **lost)
        return ids

    ids = store.use(end)
    document = cli("runners", "--json").document
    assert document["runners"] == []
    assert {(row["id"], row["lost"], row["tasks"], row["died"]) for row in document["ended"]} == {
        (ids[0], False, 2, 0),
        (ids[1], True, 2, 1),
    }
    text = cli("runners").out
    assert "No runners are registered." in text
    assert re.search(rf"^ +{ids[0]} +web-0 +7 +stopped .* 4.12 *$", text, re.MULTILINE)
    assert re.search(rf"^ +{ids[1]} +web-1 +7 +lost: 1 task rescued, 1 died .* 4.12 *$", text, re.MULTILINE)


@on_sqlite
def test_the_text_lists_the_runners_that_ended_last_and_counts_the_others(cli: Call, store: Store) -> None:
    times = {"started_at": ahead(-9000), "heartbeat_at": ahead(-60)}
    row = {"host": "web-1", "pid": 1, "version": "1", "lost": False, "tasks": 0, **times}
    ends = [{"runner_id": n, "ended_at": ahead(-n), **row} for n in range(1, 13)]
    ends.append({"runner_id": 99, "ended_at": ahead(-90_000), **row})
    store.use(lambda database: change(database, database.tables.ended_runner.insert().values(ends)))
    lines = cli("runners").out.splitlines()
    assert lines[2] == "Ended in the last day:"
    assert [line.split()[0] for line in lines[4:-1]] == [str(n) for n in range(1, 11)]
    assert lines[-1] == "2 more: runner runners --json"


def test_a_simulation_shows_another_configuration_beside_the_present_one(cli: Call, store: Store) -> None:
    store.submit(*(NewTask("a.b", queue="mail") for _ in range(3)))
    lines = cli("capacity", "--simulate", "--concurrency", 2, "--claim-order", "aged", "--hours", 0.5).out.splitlines()
    assert lines[0] == "today: 0 slots, strict; then: 2 slots, aged"
    # No runner lives today; nothing is known about durations.
    assert re.match(r"mail +3 +never +[\d.]+s +3\dm\w* +[\d.]+s +3 +0", lines[2])
    document = cli("capacity", "--simulate", "--concurrency", 2, "--json").document
    assert document["queues"][0]["then"]["remaining"] == 0


def test_a_configuration_without_a_simulation_is_refused(cli: Call) -> None:
    assert "applies to --simulate" in cli("capacity", "--concurrency", 2).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--claim-order", "fair"), "use strict, fresh, aged, aged:10s, weighted:mail=3,sms=1"),
        (("--hours", 99), "between 0 and 24"),
        (("--concurrency", 0), "--concurrency must be between 1"),
        (("--concurrency", 2, "--runners", 2), "choose --concurrency or --runners"),
        (("--limit", "mail=5"), "expected a queue or a handler"),
        (("--limit", "queue:mail=0"), "whole number from 1"),
        (("--rate", "queue:mail=fast"), "expected starts per time"),
    ],
)
def test_invalid_simulations_are_refused(cli: Call, arguments: tuple[object, ...], message: str) -> None:
    result = cli("capacity", "--simulate", *arguments)
    assert result.code in (Exit.BAD_INPUT, Exit.CONFIGURATION)
    assert message in result.err


@on_sqlite
def test_tasks_and_causes_of_a_past_time(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("a.b"))
    at = store.write(clock).isoformat()
    while store.write(clock).isoformat() <= at:
        pass
    store.claim("a.b", outcome=Retry("1h", failure=Failure("OSError", "no route", "")))
    listed = cli("tasks", "--at", at).out
    assert "waiting" in listed
    assert "retrying" not in listed
    assert "Tasks that retention has deleted since are missing." in listed
    (task,) = cli("tasks", "--at", at, "--json").document["tasks"]
    assert (task["id"], task["word"], task["attempt"], "version" in task) == (id, "waiting", 0, False)
    assert f"Task {id} a.b was waiting at" in cli("why", id, "--at", at).out
    assert cli("why", "queue:mail", "--at", at).code == Exit.BAD_INPUT
    future = cli("tasks", "--at", "2099-01-01")
    assert (future.code, "is in the future" in future.err) == (Exit.BAD_INPUT, True)


def test_stats_compares_with_another_database_and_with_a_past_time(call: Call, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    urls = (f'[profiles.{name}]\nurl = "sqlite:///{tmp_path}/{name}.db"\n' for name in ("eu", "us"))
    config.write_text("".join(urls))
    here = ("--config", config, "--profile", "eu")
    assert call("submit", "a.b", "--queue", "mail", *here).code == Exit.OK
    assert call("submit", "a.b", "--queue", "sms", "--config", config, "--profile", "us").code == Exit.OK
    document = call("stats", "--beside", "us", "--json", *here).document
    assert [(row["queue"], row["sides"]["us"] is None) for row in document["queues"]] == [
        ("mail", True),
        ("sms", False),
    ]
    assert "not in us" in call("stats", "--beside", "us", *here).out
    assert re.search(r"mail +now +1 ", call("stats", "--beside", "0s", *here).out)
    assert "eu is the database itself" in call("stats", "--beside", "eu", *here).err
    assert re.search(r"mars is not a past time.*Unknown profile 'mars'", call("stats", "--beside", "mars", *here).err)
