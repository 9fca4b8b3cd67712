"""How a command selects and opens its database."""

import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from runner.cli import options
from runner.cli.exit_codes import Exit
from runner.cli.options import LOCK_NOTICE, LockNotice
from runner.db import connect
from runner.db.file_connection import FileConnection
from runner.handlers.registry import REGISTRY
from tests.cli.conftest import Call, Store, answered
from tests.conftest import on_sqlite

READING = ("tasks", "stats", "runners")


@pytest.mark.parametrize("url", ["postgresql://ana:geheim@db/app", "postgresql://db/app?password=geheim"])
def test_a_password_in_the_arguments_is_rejected_and_not_repeated(call: Call, url: str) -> None:
    result = call("tasks", "--url", url)
    assert result.code == Exit.CONFIGURATION
    assert "geheim" not in result.out + result.err
    for alternative in ("TASKTUI_URL", "PGPASSWORD", "~/.pgpass", "password_command"):
        assert alternative in result.err


def test_the_default_database_is_a_file_in_the_current_directory(call: Call, tmp_path: Path) -> None:
    assert call("submit", "a.b").code == Exit.OK
    assert (tmp_path / "tasktui.db").exists()


def test_a_new_file_is_reported_because_its_name_may_be_mistyped(call: Call) -> None:
    found = f"created the tables of the new database sqlite:///{Path.cwd()}/typo.db"
    assert found in call("submit", "a.b", "--url", "typo.db").err
    assert call("tasks", "--url", "sqlite:///typo.db").err == ""


@pytest.mark.parametrize("verb", READING)
def test_a_command_that_reads_creates_no_file(call: Call, verb: str, tmp_path: Path) -> None:
    result = call(verb, "--url", "sqlite:///typo.db")
    assert result.code == Exit.DATABASE
    assert f"The SQLite file {tmp_path}/typo.db does not exist" in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_profile_names_the_database(call: Call, tmp_path: Path) -> None:
    config = tmp_path / "some.toml"
    config.write_text(f'[profiles.here]\nurl = "sqlite:///{tmp_path}/here.db"\n')
    assert call("submit", "a.b", "--config", config, "--profile", "here").code == Exit.OK
    assert (tmp_path / "here.db").exists()
    missing = call("tasks", "--config", config, "--profile", "there")
    assert missing.code == Exit.CONFIGURATION
    assert "here" in missing.err


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize("url", ["nonsense", "mysql://db/app", "sqlite://:memory:"])
def test_an_invalid_url_is_rejected(call: Call, verb: str, url: str) -> None:
    assert call(verb, "--url", url).code == Exit.CONFIGURATION


@pytest.mark.parametrize("verb", READING)
def test_an_unreachable_database_is_reported_in_one_line(call: Call, verb: str) -> None:
    result = call(verb, "--url", "postgresql://127.0.0.1:1/nothing")
    assert result.code == Exit.DATABASE
    assert result.err.startswith("runner: The database postgresql://127.0.0.1:1/nothing cannot be reached")
    assert result.err.count("\n") == 1


def test_a_file_of_another_format_is_rejected(call: Call, tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear Sir or Madam, " * 100)
    result = call("tasks", "--url", "sqlite:///letter.db")
    assert result.code == Exit.DATABASE
    assert "not a database" in result.err


def test_a_missing_folder_is_reported(call: Call) -> None:
    result = call("submit", "a.b", "--url", "sqlite:////nowhere/at/all.db")
    assert result.code == Exit.DATABASE
    assert "unable to open" in result.err


def test_only_a_sqlite_file_is_migrated_on_first_use(call: Call, database_url: str) -> None:
    result = call("submit", "a.b", "--url", database_url)
    if database_url.startswith("sqlite"):
        assert result.code == Exit.OK
    else:
        assert result.code == Exit.DATABASE
        assert "runner migrate" in result.err


@pytest.mark.parametrize(
    ("handlers", "advice"),
    [("shop/tasks.py", "such as shop.tasks, not 'shop/tasks.py'"), ("a b", "such as shop.tasks")],
)
def test_a_path_as_module_is_rejected_with_the_name(call: Call, handlers: str, advice: str) -> None:
    result = call("work", "-H", handlers)
    assert result.code == Exit.CONFIGURATION
    assert advice in result.err


def test_a_file_as_module_is_rejected_with_the_name(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTRY, "_handlers", {})  # without the handlers of other tests
    (tmp_path / "no_tasks.py").touch()
    result = call("work", "-H", "no_tasks.py")
    assert result.code == Exit.CONFIGURATION
    assert result.err.endswith("; name the module without .py: no_tasks.\n")
    result = call("work", "-H", "no_tasks")
    assert result.code == Exit.BAD_INPUT
    assert "no handlers in no_tasks: decorate functions with @handler" in result.err


@on_sqlite
def test_a_command_reports_on_a_terminal_that_it_waits_for_the_lock(cli: Call, store: Store) -> None:
    cli("submit", "a.b", "--delay", "1h")
    path = store.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for words in (("pause", "mail"), ("submit", "a.b"), ("edit", 1, "--priority", 7)):
            other.execute("BEGIN IMMEDIATE")
            result = answered("waiting for the lock of sqlite:///", partial(other.execute, "ROLLBACK"), *words)
            assert (result.code, result.err.count("waiting for the lock")) == (Exit.OK, 1), words


@pytest.mark.slow
@on_sqlite
def test_a_command_reports_that_it_waits_for_a_file_that_is_locked_for_readers_too(cli: Call, store: Store) -> None:
    cli("submit", "a.b", "--delay", "1h")
    for words in (("tasks",), ("stats",), ("submit", "a.b")):
        other = sqlite3.connect(store.url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        result = answered("waiting for the lock of sqlite:///", other.close, *words)
        assert (result.code, result.err.count("waiting for the lock")) == (Exit.OK, 1), words


@on_sqlite
def test_each_wait_of_a_connected_command_is_reported_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.url.removeprefix("sqlite:///")
    monkeypatch.setattr(options, "LOCK_NOTICE", 0.02)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    opened = sqlite3.connect(path, isolation_level=None, factory=FileConnection)
    with closing(opened) as own, closing(sqlite3.connect(path)) as other:

        def release(waited: float) -> None:
            if waited >= 0.06 and other.in_transaction:
                other.rollback()

        monkeypatch.setattr(connect, "LOCK_OBSERVERS", [LockNotice(store.url), release])
        for _ in range(2):
            other.execute("BEGIN IMMEDIATE")
            assert connect.begin_writing(own)
            own.execute("ROLLBACK")
    line = f"runner: waiting for the lock of {store.url}, which another program holds\n"
    assert capsys.readouterr().err == 2 * line


@on_sqlite
def test_a_wait_for_the_lock_is_silent_without_a_terminal(cli: Call, store: Store) -> None:
    cli("submit", "a.b")
    path = store.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "BUSY_SECONDS", 2 * LOCK_NOTICE)
        other.execute("BEGIN IMMEDIATE")
        result = cli("pause", "mail")
    assert (result.code, "waiting" in result.err, "has locked" in result.err) == (Exit.DATABASE, False, True)


@on_sqlite
def test_a_command_that_only_reads_makes_no_statement_about_changes(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        result = cli("stats")
    assert (result.code, "has locked" in result.err) == (Exit.DATABASE, True)
    assert "The statement had no effect." in result.err
    assert "changed" not in result.err
