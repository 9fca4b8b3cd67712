"""`runner migrate`, `check`, `prune` and `work`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from runner.cli.check import CheckStatus, of_roles
from runner.cli.exit_codes import Exit
from runner.db.database import Database
from runner.db.migrations.revisions import HEAD, REVISIONS
from runner.db.transaction import Transaction
from runner.model.task import NewTask, OrderKey, State
from runner.urls import parse_url
from tests.cli.conftest import Call, Store, program, running
from tests.db.test_sequences import set_back
from tests.postgres import login
from tests.releases import NEXT, install_next
from tests.store.rows import add_past

HANDLERS = """
import runner, sys

@runner.handler("a.b")
async def ab(n: int = 0) -> int:
    return n + 1

@runner.handler("a.slow")
async def slow(ctx: runner.Context) -> None:
    import asyncio
    from pathlib import Path
    print("started", flush=True)
    while not Path("go").exists():
        await asyncio.sleep(0.01)

@runner.handler("a.bad", retry="never")
def bad() -> None:
    raise ValueError("no luck")
"""


OTHER_USER = """
import os, sys
from runner.cli.app import run
from runner.cli.exit_codes import exit_code_of
sys.path.insert(0, "")
work = ["work", "-H", "own_handlers", "--url"]
# It loads all modules, which the other user may not read.
assert not exit_code_of(lambda: run([*work, "sqlite:///other.db", "--until-idle"]))
if os.geteuid() == 0:  # root may write every file
    os.setegid(65534)
    os.seteuid(65534)
sys.exit(exit_code_of(lambda: run([*work, *sys.argv[1:]])))
"""
"""Runs a runner as a user without rights."""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own folders are private."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def as_other_user(call: Call, public_folder: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a program as a user who may not write its SQLite file."""
    url = f"sqlite:///{public_folder}/tasks.db"
    assert call("migrate", "--url", url).code == Exit.OK
    (public_folder / "own_handlers.py").write_text(HANDLERS)
    (public_folder / "tasks.db").chmod(0o444)
    environment = os.environ | {"XDG_CONFIG_HOME": str(public_folder)}

    def run(program: str, *options: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", program, url, *options]
        return subprocess.run(
            command, cwd=public_folder, env=environment, check=False, capture_output=True, text=True, timeout=60
        )

    return run


@pytest.mark.parametrize("options", [(), pytest.param(("--until-idle",), marks=pytest.mark.slow)])
def test_a_runner_that_may_not_write_its_file_ends(
    as_other_user: Callable[..., "subprocess.CompletedProcess[str]"], options: tuple[str, ...]
) -> None:
    done = as_other_user(OTHER_USER, *options)
    assert done.returncode == Exit.DATABASE
    assert "readonly database: uid 65534 (gid " in done.stderr
    assert "Give this user the right to write the file and its folder." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_check_names_a_file_that_this_user_may_not_write(
    as_other_user: Callable[..., "subprocess.CompletedProcess[str]"], public_folder: Path
) -> None:
    public_folder.chmod(0o777)  # SQLite reads a file with a log only with other files beside it
    program = OTHER_USER.replace("run([*work, *sys.argv[1:]])", 'run(["check", "--json", "--url", *sys.argv[1:]])')
    document = json.loads(as_other_user(program).stdout)
    (text,) = (each["found"] for each in document["checks"] if "may not write" in each["found"])
    assert text.endswith("tasks.db or its folder: its runners end, and its submits fail")


@pytest.fixture
def handlers(tmp_path: Path) -> None:
    (tmp_path / "own_handlers.py").write_text(HANDLERS)


def test_late_sequences_are_named_and_repaired(cli: Call, migrated_url: str) -> None:
    task = cli("submit", "a.b", "--json").document["id"]
    cli("terminate", task)

    async def set_all_back() -> None:
        database = Database.open(migrated_url)
        await set_back(database)
        await database.dispose()

    asyncio.run(set_all_back())
    finding = next(row for row in cli("check", "--json").document["checks"] if row["topic"] == "ids")
    assert f"task is at id 0, but rows have ids up to {task}" in finding["found"]
    assert (finding["verdict"], finding["advice"]) == ("wrong", "Run as the owner of the tables: runner migrate.")
    refused = cli("migrate", "--check")
    assert refused.code == Exit.DATABASE
    assert "New tasks would get ids of earlier ones" in refused.err
    assert f"but rows have ids up to {task}" in cli("migrate").out
    assert cli("migrate", "--check").code == Exit.OK
    assert cli("submit", "a.b", "--json").document["id"] > task


def test_a_database_is_migrated_once(call: Call, database_url: str) -> None:
    assert call("migrate", "--check", "--url", database_url).code == Exit.DATABASE
    first = call("migrate", "--url", database_url, "--json")
    assert (first.code, first.document) == (Exit.OK, {"schema": HEAD, "applied": list(REVISIONS), "sequences": []})
    assert "nothing to do" in call("migrate", "--url", database_url).out
    assert call("migrate", "--check", "--url", database_url).code == Exit.OK


def test_commands_of_the_previous_release_go_on_after_an_additive_migration(
    cli: Call, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        install_next(tmp_path / "next", other, additive=True)
        assert cli("migrate", "--json").document["applied"] == [NEXT]
    assert cli("migrate", "--check", "--json").document == {"schema": NEXT, "applied": [], "sequences": []}
    assert f"is at schema {NEXT}: nothing to do" in cli("migrate").out
    assert cli("submit", "a.b").code == Exit.OK
    assert "a.b" in cli("tasks").out
    assert f"at revision {NEXT}, which this program (revision {HEAD}) can use" in cli("check").out.replace("\n", " ")


def test_checks_do_not_create_a_database_file(call: Call) -> None:
    assert call("migrate", "--check").code == Exit.DATABASE
    assert call("check").code == Exit.DATABASE
    assert not Path("tasktui.db").exists()


@pytest.mark.parametrize("url", ["sqlite:///x.db", "postgresql://nowhere.invalid/x"])
def test_the_sql_of_the_tables_is_printed_without_a_database(call: Call, url: str) -> None:
    result = call("migrate", "--sql", "--url", url)
    assert result.code == Exit.OK
    assert "CREATE TABLE" in result.out
    assert call("migrate", "--sql", "--check", "--url", url).code == Exit.BAD_INPUT


def test_a_check_advises_on_problems(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b"))
    result = cli("check", "--json")
    assert result.code == Exit.ERROR
    checks = {(check["topic"], check["verdict"]) for check in result.document["checks"]}
    assert {
        ("database", "ok"),
        ("clock", "ok"),
        ("schema", "ok"),
        ("runners", "wrong"),
        ("handlers", "wrong"),
    } <= checks
    assert all(check["advice"] for check in result.document["checks"] if check["verdict"] == "wrong")
    settings = {row["name"]: row for row in result.document["settings"]}
    assert settings["url"]["origin"] == "TASKTUI_URL in the environment"
    store.claim("a.b")
    assert cli("check").code == Exit.OK


@pytest.mark.parametrize("target", [("mail",), ("--handler", "a.b")])
def test_a_check_does_not_miss_runners_for_paused_tasks(cli: Call, store: Store, target: tuple[str, ...]) -> None:
    store.submit(NewTask("a.b", queue="mail"))
    assert cli("check").code != Exit.OK
    cli("pause", *target)
    result = cli("check", "--json")
    assert result.code == Exit.OK
    assert "No live runner takes" not in result.out
    assert [check["verdict"] for check in result.document["checks"] if check["topic"] == "pauses"] == ["note"]


def test_a_check_misses_a_runner_if_one_of_two_queues_is_not_paused(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b", queue="mail"), NewTask("a.b"))
    cli("pause", "mail")
    result = cli("check")
    assert result.code != Exit.OK
    assert "No live runner takes handler a.b" in result.out


def test_a_check_names_an_order_key_with_many_plain_inserts(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.cli.check.MANY_IN_ORDER", 3)

    async def insert(tx: Transaction) -> None:
        await tx.execute(sa.insert(tx.tables.task), [{"handler": "a.b", "order_key": key} for key in "kkkkll"])

    store.submit(*(NewTask("a.b", order_key=OrderKey("submitted")) for _ in range(5)))
    store.write(insert)
    (finding,) = (each for each in cli("check", "--json").document["checks"] if each["topic"] == "order")
    assert (finding["verdict"], finding["found"][:31]) == ("note", "4 waiting tasks of order key k ")


def test_a_check_names_a_missing_table(cli: Call, store: Store) -> None:
    store.write(drop_checkpoints)
    result = cli("check", "--json")
    assert result.code == Exit.DATABASE
    finding = result.document["checks"][-1]
    assert (finding["topic"], finding["verdict"]) == ("schema", CheckStatus.WRONG)
    assert "1 table of revision" in finding["found"]
    assert finding["found"].endswith("missing: task_checkpoint")
    assert "restore a backup" in finding["advice"]
    for words in (("migrate",), ("migrate", "--check"), ("work", "--until-idle", "-H", "sample_handlers")):
        refused = cli(*words)
        assert refused.code == Exit.DATABASE, words
        assert f"lacks the table task_checkpoint of schema {HEAD}. Restore a backup" in refused.err
        assert "Traceback" not in refused.err


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
def test_a_check_names_the_grant_without_which_successes_keep_their_rows(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with login(store.url, "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public") as url:
        monkeypatch.setenv("TASKTUI_URL", url)
        for retention, findings in (("1d", 0), ("0s", 1)):
            monkeypatch.setenv("TASKTUI_RETENTION_SUCCEEDED", retention)
            checks = cli("check", "--json").document["checks"]
            grants = [check for check in checks if "keep their rows" in check["found"]]
            assert len(grants) == findings
        grant = f"GRANT SELECT ON SEQUENCE public.task_dependency_id_seq TO {urlsplit(url).username}"
        assert grants[0]["found"].endswith(grant)
        assert "runner migrate --roles | psql postgresql://" in grants[0]["advice"]
    with login(store.url, "SELECT ON ALL TABLES IN SCHEMA public") as url:  # no runner
        monkeypatch.setenv("TASKTUI_URL", url)
        assert "keep their rows" not in cli("check").out


async def drop_checkpoints(tx: Transaction) -> None:
    await tx.execute(sa.text("DROP TABLE task_checkpoint"))


def test_a_check_reports_unknown_settings(cli: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKTUI_ZEBRA", "1")
    assert "unknown setting TASKTUI_ZEBRA" in cli("check").out


def test_a_check_reports_an_unreachable_database(call: Call) -> None:
    result = call("check", "--url", "postgresql://127.0.0.1:1/x")
    assert result.code == Exit.DATABASE
    assert "cannot be reached" in result.out
    checks, settings = result.out.split("\nsettings\n", 1)
    assert "cannot be reached" in checks
    assert "url" in settings
    assert "drain_timeout" not in result.out
    assert "settings have their defaults: runner check --json lists them" in settings
    every = call("check", "--url", "postgresql://127.0.0.1:1/x", "--json").document["settings"]
    assert "drain_timeout" in [row["name"] for row in every]


@pytest.mark.parametrize(("transactions", "notify", "most"), [("10", "on", 59), ("3", "off", 44)])
def test_a_check_counts_the_connections_of_a_runner(
    call: Call, monkeypatch: pytest.MonkeyPatch, transactions: str, notify: str, most: int
) -> None:
    monkeypatch.setenv("TASKTUI_TRANSACTION_CONNECTIONS", transactions)
    monkeypatch.setenv("TASKTUI_NOTIFY", notify)
    result = call("check", "--url", "postgresql://127.0.0.1:1/x")
    assert f"opens {most} connections at most" in result.out


def test_a_check_reports_a_file_that_other_users_may_read(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("migrate").code == Exit.OK
    assert "file mode" not in call("check").out
    monkeypatch.setattr("runner.cli.check.open_to_others", lambda file: iter([tmp_path / file]))
    (finding,) = (each for each in call("check", "--json").document["checks"] if each["topic"] == "file mode")
    assert (finding["verdict"], finding["advice"]) == (CheckStatus.NOTE, f"Run: chmod o-rw {tmp_path}/tasktui.db")


def test_a_check_reports_handlers_that_cannot_be_loaded(cli: Call) -> None:
    result = cli("check", "-H", "no_such_module")
    assert result.code == Exit.CONFIGURATION
    assert "no_such_module" in result.out


def test_old_tasks_are_pruned(cli: Call, store: Store) -> None:
    ids = store.submit(*(NewTask("a.b") for _ in range(3)))
    cli("terminate", *ids)
    counted = cli("prune", "--retention-cancelled", "1ms", "--dry-run", "--json").document
    assert counted["tasks"][State.CANCELLED]["number"] == 3
    assert cli("show", ids[0]).code == Exit.OK
    assert cli("prune", "--retention-cancelled", "never", "--json").document["tasks"].get(State.CANCELLED) is None
    counted = cli("prune", "--retention-statistics", "1ms", "--dry-run", "--json").document
    done = cli("prune", "--retention-cancelled", "1ms", "--retention-statistics", "1ms", "--json").document
    assert done["tasks"][State.CANCELLED]["number"] == 3
    assert done["statistics"] == counted["statistics"] != {"number": 0, "more": False}
    assert cli("show", ids[0]).code == Exit.NOT_FOUND


def test_a_queue_is_pruned_by_its_own_retention(cli: Call, store: Store) -> None:
    ids = store.submit(*(NewTask("a.b", queue=queue) for queue in ("mail", "audit", "audit")))
    cli("terminate", *ids)
    own = "--retention-cancelled", "1ms", "--retention-queues", "audit:cancelled=never,mail:dead=1d"
    counted = cli("prune", *own, "--dry-run", "--json").document
    assert counted["tasks"][State.CANCELLED]["number"] == 1
    assert counted["queues"] == {"audit": {"cancelled": None}, "mail": {"dead": 86_400}}
    assert "queue audit has its own retention: cancelled never" in cli("prune", *own).out
    assert [cli("show", id).code for id in ids] == [Exit.NOT_FOUND, Exit.OK, Exit.OK]
    refused = cli("prune", "--retention-queues", "audit")
    assert (refused.code, "write QUEUE=AGE" in refused.err) == (Exit.CONFIGURATION, True)


def test_an_idle_runner_exits_on_request(call: Call, handlers: None) -> None:
    call("submit", "a.b", '{"n": 1}')
    call("submit", "a.bad")
    call("submit", "a.b", "--delay", "1h")
    worked = program("work", "-H", "own_handlers", "--until-idle", "--poll-interval", "50ms", "--log-format", "human")
    assert worked.returncode == Exit.OK, worked.stderr
    assert "idle: 1 scheduled task left for later" in worked.stderr
    result = [call("show", id, "--json").document for id in (1, 2, 3)]
    assert [task["state"] for task in result] == [State.SUCCEEDED, State.DEAD, State.WAITING]
    assert result[0]["result"] == 2


def test_a_runner_without_handlers_does_not_start() -> None:
    result = program("work")  # a process of its own: in this one other tests may have left handlers
    assert result.returncode == Exit.BAD_INPUT
    assert "-H" in result.stderr


@pytest.mark.parametrize(
    "option", [("--poll-interval", "-1s"), ("--batch", "0"), ("--lease-timeout", "x"), ("--poll-mode", "often")]
)
def test_settings_of_a_runner_are_checked(call: Call, option: tuple[str, str]) -> None:
    result = call("work", "-H", "sample_handlers", "--until-idle", *option)
    assert result.code in (Exit.BAD_INPUT, Exit.CONFIGURATION)
    assert "Traceback" not in result.err


def test_a_signal_drains_a_runner(call: Call, handlers: None) -> None:
    call("submit", "a.slow")
    with running("work", "-H", "own_handlers", "--drain-timeout", "90s") as working:
        working.wait_for_output("started\n")
        (runner,) = call("runners", "--json").document["runners"]
        assert (runner["pid"], runner["running_tasks"]) == (working.process.pid, 1)
        working.process.send_signal(signal.SIGTERM)
        working.wait_for_log("draining")
        Path("go").touch()
        outcome = working.wait()
    assert outcome.code == Exit.OK, outcome.err
    assert "Traceback" not in outcome.err
    assert call("runners", "--json").document["runners"] == []


@pytest.mark.slow
def test_the_demo_reports_in_json(tmp_path: Path) -> None:
    result = program("demo", "--tasks", 5, "--json")
    assert result.returncode == Exit.OK, result.stderr
    assert json.loads(result.stdout)


def test_incomplete_roles_come_with_a_command_that_fixes_them() -> None:
    url = parse_url("postgresql://ana:geheim@db/my app")
    (well,) = of_roles([], url)
    (wrong,) = of_roles(["changes of task are not audited"], url)
    assert (well.verdict, wrong.verdict) == (CheckStatus.WELL, CheckStatus.WRONG)
    assert wrong.advice.endswith("tables: runner migrate --roles | psql postgresql://db/my%20app")
    assert list(of_roles(None, url)) == []


def test_the_sql_of_the_roles_is_printed_without_a_database(call: Call) -> None:
    result = call("migrate", "--roles", "--url", "postgresql://nowhere.invalid/x")
    assert result.code == Exit.OK
    assert "CREATE ROLE shop LOGIN IN ROLE task_producer" in result.out
    assert call("migrate", "--roles", "--url", "sqlite:///x.db").code == Exit.BAD_INPUT
    assert call("migrate", "--roles", "--sql", "--url", "postgresql://nowhere.invalid/x").code == Exit.BAD_INPUT


def test_archived_tasks_are_listed_shown_and_restored(cli: Call, store: Store, tmp_path: Path) -> None:
    ids = store.submit(*(NewTask("a.b", payload='{"token": "s3cr3t-value"}') for _ in range(3)))
    cli("terminate", *ids)
    folder = tmp_path / "archive"
    done = cli("prune", "--archive", folder, "--retention-cancelled", "1ms", "--json").document
    assert done["tasks"][State.CANCELLED]["number"] == 3
    assert [file["tasks"] for file in done["files"]] == [3]
    assert cli("show", ids[0]).code == Exit.NOT_FOUND
    listed = cli("tasks", "--archive", folder, "state:cancelled", "--limit", 2, "--json").document
    assert [task["id"] for task in listed["tasks"]] == [ids[2], ids[1]]
    shown = cli("show", ids[0], "--archive", folder)
    assert shown.code == Exit.OK
    assert "terminate" in shown.out
    assert "s3cr3t" not in shown.out
    assert cli("show", 99, "--archive", folder).code == Exit.NOT_FOUND
    assert cli("restore", 99, "--archive", folder).code == Exit.NOT_FOUND
    dry = cli("restore", "handler:a.b", "--archive", folder, "--dry-run", "--json").document
    assert (dry["found"], dry["restored"]) == (3, [])
    assert cli("restore", ids[0], "--archive", folder).out == "restored 1 task\n"
    restored = cli("restore", "handler:a.b", "--archive", folder, "--json").document
    assert sorted(restored["restored"]) == ids[1:]
    assert "restore from archive" in cli("show", ids[0]).out


def test_an_archive_that_cannot_be_continued_names_the_files_that_it_wrote(
    cli: Call, store: Store, tmp_path: Path
) -> None:
    def add(day: int) -> None:
        at = datetime(2026, 1, day, tzinfo=UTC)
        store.use(lambda database: add_past(database, day, submitted_at=at, run_at=at, finished_at=at))

    for day in (1, 2):
        add(day)
    folder = tmp_path / "archive"
    folder.mkdir()
    blocking = folder / "day=2026-01-02"
    blocking.write_text("no folder can have this name")
    broken_off = cli("prune", "--archive", folder)
    assert broken_off.code == Exit.ERROR
    done, error = broken_off.err.splitlines()
    assert done == "runner: archived 1 task in day=2026-01-01/000001.jsonl.gz"
    assert "File exists" in error
    assert cli("show", 2).code == Exit.OK
    blocking.unlink()
    assert [file["tasks"] for file in cli("prune", "--archive", folder, "--json").document["files"]] == [1]
    assert [cli("show", day, "--archive", folder).code for day in (1, 2)] == [Exit.OK, Exit.OK]


def test_a_dry_run_refuses_an_archive_that_the_prune_could_not_write(
    cli: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new" / "archive"
    assert cli("prune", "--archive", new, "--dry-run").code == Exit.OK
    assert not new.parent.exists()
    assert cli("prune", "--archive", new).code == Exit.OK
    assert cli("prune", "--archive", new, "--dry-run").code == Exit.OK
    manifest = new / "manifest.json"
    own = manifest.read_text()

    def refusal(folder: Path) -> str:
        result = cli("prune", "--archive", folder, "--dry-run")
        assert (result.code, result.out) == (Exit.ERROR, "")
        return result.err

    manifest.write_text(json.dumps(json.loads(own) | {"database": "other"}))
    assert "its manifest is of database other" in refusal(new)
    manifest.unlink()
    (new / "day=2026-01-01").mkdir()
    (new / "day=2026-01-01" / "000001.jsonl.gz").write_text("")
    assert "it has files, but no manifest.json" in refusal(new)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "archive"):
        assert "Not a directory" in refusal(folder)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write everything
    assert "Permission denied" in refusal(tmp_path / "other")


def test_an_archive_that_cannot_be_used_is_named_in_one_line(cli: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in (
        ("prune", "--archive", tmp_path / "file"),
        ("tasks", "--archive", tmp_path / "none"),
        ("show", 1, "--archive", tmp_path / "none"),
        ("restore", 1, "--archive", tmp_path / "none"),
        ("erase", "id:1", "--archive", tmp_path / "none", "--yes", 1),
    ):
        result = cli(*command)
        assert result.code == Exit.ERROR
        assert result.err.startswith("runner: Archive ")
        assert result.err.count("\n") == 1
    why = "it has no manifest.json; name a folder that runner prune --archive has filled"
    assert result.err == f"runner: Archive {tmp_path / 'none'} cannot be used: {why}.\n"
    assert not (tmp_path / "none").exists()
    assert cli("tasks", "--archive", tmp_path, "--at", "5m").code == Exit.BAD_INPUT
    assert cli("show", 1, "--archive", tmp_path, "--reveal").code == Exit.BAD_INPUT
