"""Migrating, pruning, checking, working: the verbs that keep an installation going."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from runner.cli.check import Verdict, of_roles
from runner.cli.ending import Exit
from runner.migrations import HEAD, REVISIONS
from runner.task import NewTask, State
from runner.urls import parse_url
from tests.cli.conftest import PROGRAM, Call, Store, program

HANDLERS = """
import runner, sys

@runner.handler("a.b")
async def ab(n: int = 0) -> int:
    return n + 1

@runner.handler("a.slow")
async def slow(ctx: runner.Context) -> None:
    import asyncio
    print("started", flush=True)
    await asyncio.sleep(60)

@runner.handler("a.bad", retry="never")
def bad() -> None:
    raise ValueError("no luck")
"""


@pytest.fixture
def handlers(tmp_path: Path) -> None:
    (tmp_path / "own_handlers.py").write_text(HANDLERS)


def test_a_database_is_migrated_once(call: Call, database_url: str) -> None:
    assert call("migrate", "--check", "--url", database_url).code == Exit.DATABASE
    first = call("migrate", "--url", database_url, "--json")
    assert (first.code, first.document) == (Exit.OK, {"schema": HEAD, "applied": list(REVISIONS)})
    assert "nothing to do" in call("migrate", "--url", database_url).out
    assert call("migrate", "--check", "--url", database_url).code == Exit.OK


def test_looking_for_tables_does_not_make_a_file(call: Call) -> None:
    assert call("migrate", "--check").code == Exit.DATABASE
    assert call("check").code == Exit.DATABASE
    assert not Path("tasktui.db").exists()


@pytest.mark.parametrize("url", ["sqlite:///x.db", "postgresql://nowhere.invalid/x"])
def test_the_statements_can_be_had_without_a_database(call: Call, url: str) -> None:
    told = call("migrate", "--sql", "--url", url)
    assert told.code == Exit.OK
    assert "CREATE TABLE" in told.out
    assert call("migrate", "--sql", "--check", "--url", url).code == Exit.BAD_INPUT


def test_a_check_says_what_to_do(called: Call, store: Store) -> None:
    store.submit(NewTask("a.b"))
    told = called("check", "--json")
    assert told.code == Exit.ERROR
    checks = {(check["topic"], check["verdict"]) for check in told.document["checks"]}
    assert {
        ("database", "ok"),
        ("clock", "ok"),
        ("schema", "ok"),
        ("runners", "wrong"),
        ("handlers", "wrong"),
    } <= checks
    assert all(check["advice"] for check in told.document["checks"] if check["verdict"] == "wrong")
    settings = {row["name"]: row for row in told.document["settings"]}
    assert settings["url"]["origin"] == "RUNNER_URL in the environment"
    store.claim("a.b")
    assert called("check").code == Exit.OK


@pytest.mark.parametrize("place", [("mail",), ("--handler", "a.b")])
def test_no_runner_is_missing_for_tasks_that_stand_still(called: Call, store: Store, place: tuple[str, ...]) -> None:
    store.submit(NewTask("a.b", queue="mail"))
    assert called("check").code != Exit.OK
    called("pause", *place)
    told = called("check", "--json")
    assert told.code == Exit.OK
    assert "No live runner takes" not in told.out
    assert [check["verdict"] for check in told.document["checks"] if check["topic"] == "pauses"] == ["note"]


def test_a_runner_is_missing_where_only_one_of_two_queues_stands_still(called: Call, store: Store) -> None:
    store.submit(NewTask("a.b", queue="mail"), NewTask("a.b"))
    called("pause", "mail")
    told = called("check")
    assert told.code != Exit.OK
    assert "No live runner takes handler a.b" in told.out


def test_a_check_names_settings_that_do_nothing(called: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_ZEBRA", "1")
    assert "RUNNER_ZEBRA is set, but is no setting" in called("check").out


def test_a_check_goes_on_to_say_that_the_database_is_away(call: Call) -> None:
    told = call("check", "--url", "postgresql://127.0.0.1:1/x")
    assert told.code == Exit.DATABASE
    assert "cannot be reached" in told.out
    assert "drain_timeout" in told.out


def test_a_check_finds_handlers_that_cannot_be_loaded(called: Call) -> None:
    told = called("check", "-H", "no_such_module")
    assert told.code == Exit.CONFIGURATION
    assert "no_such_module" in told.out


def test_old_tasks_are_pruned(called: Call, store: Store) -> None:
    ids = store.submit(*(NewTask("a.b") for _ in range(3)))
    called("terminate", *ids)
    counted = called("prune", "--keep-cancelled", "1ms", "--dry-run", "--json").document
    assert counted["tasks"][State.CANCELLED]["number"] == 3
    assert called("show", ids[0]).code == Exit.OK
    assert called("prune", "--keep-cancelled", "never", "--json").document["tasks"].get(State.CANCELLED) is None
    done = called("prune", "--keep-cancelled", "1ms", "--json").document
    assert done["tasks"][State.CANCELLED]["number"] == 3
    assert called("show", ids[0]).code == Exit.NOT_FOUND


def test_a_runner_ends_by_itself_when_nothing_is_left(call: Call, handlers: None) -> None:
    call("submit", "a.b", '{"n": 1}')
    call("submit", "a.bad")
    call("submit", "a.b", "--delay", "1h")
    worked = program("work", "-H", "own_handlers", "--until-idle", "--every", "50ms", "--log-format", "human")
    assert worked.returncode == Exit.OK, worked.stderr
    assert "left for later: 1 scheduled task" in worked.stderr
    told = [call("show", id, "--json").document for id in (1, 2, 3)]
    assert [task["state"] for task in told] == [State.SUCCEEDED, State.DEAD, State.WAITING]
    assert told[0]["result"] == 2


def test_a_runner_without_handlers_does_not_start() -> None:
    told = program("work")  # a process of its own: in this one other tests may have left handlers
    assert told.returncode == Exit.BAD_INPUT
    assert "-H" in told.stderr


@pytest.mark.parametrize("option", [("--every", "0s"), ("--batch", "0"), ("--lease", "x"), ("--mode", "often")])
def test_settings_of_a_runner_are_checked(call: Call, option: tuple[str, str]) -> None:
    told = call("work", "-H", "sample_handlers", "--until-idle", *option)
    assert told.code in (Exit.BAD_INPUT, Exit.CONFIGURATION)
    assert "Traceback" not in told.err


def test_a_runner_told_to_stop_drains(call: Call, handlers: None) -> None:
    call("submit", "a.slow")
    command = [str(PROGRAM), "work", "-H", "own_handlers", "--drain-timeout", "0s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as working:
        assert working.stdout is not None
        assert working.stdout.readline() == b"started\n"
        (runner,) = call("runners", "--json").document["runners"]
        assert (runner["pid"], runner["holds"]) == (working.pid, 1)
        working.send_signal(signal.SIGTERM)
        _, said = working.communicate(timeout=30)
    assert working.returncode == Exit.OK, said
    assert b"Traceback" not in said
    assert call("runners", "--json").document["runners"] == []


def test_the_demo_reports_in_json(tmp_path: Path) -> None:
    told = program("demo", "--tasks", 5, "--json")
    assert told.returncode == Exit.OK, told.stderr
    assert json.loads(told.stdout)


def test_roles_that_lack_something_name_the_command_that_mends_it() -> None:
    url = parse_url("postgresql://ana:geheim@db/my app")
    (well,) = of_roles([], url)
    (wrong,) = of_roles(["changes of task are not written down"], url)
    assert (well.verdict, wrong.verdict) == (Verdict.WELL, Verdict.WRONG)
    assert wrong.advice.endswith("run: runner migrate --roles | psql postgresql://db/my%20app")
    assert list(of_roles(None, url)) == []


def test_the_roles_can_be_had_without_a_database(call: Call) -> None:
    told = call("migrate", "--roles", "--url", "postgresql://nowhere.invalid/x")
    assert told.code == Exit.OK
    assert "CREATE ROLE shop LOGIN IN ROLE task_producer" in told.out
    assert call("migrate", "--roles", "--url", "sqlite:///x.db").code == Exit.BAD_INPUT
    assert call("migrate", "--roles", "--sql", "--url", "postgresql://nowhere.invalid/x").code == Exit.BAD_INPUT
