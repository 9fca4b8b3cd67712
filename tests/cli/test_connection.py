"""Which database a command works on, and what stands in its way."""

from pathlib import Path

import pytest

from runner.cli.ending import Exit
from tests.cli.conftest import Call

READING = ("tasks", "stats", "runners")


@pytest.mark.parametrize("url", ["postgresql://ana:geheim@db/app", "postgresql://db/app?password=geheim"])
def test_a_password_in_the_arguments_is_refused_and_not_repeated(call: Call, url: str) -> None:
    told = call("tasks", "--url", url)
    assert told.code == Exit.CONFIGURATION
    assert "geheim" not in told.out + told.err
    for alternative in ("RUNNER_URL", "PGPASSWORD", "~/.pgpass", "password_command"):
        assert alternative in told.err


def test_without_any_choice_a_file_in_the_current_directory_is_used(call: Call, tmp_path: Path) -> None:
    assert call("submit", "a.b").code == Exit.OK
    assert (tmp_path / "tasktui.db").exists()


def test_a_new_file_is_mentioned_because_its_name_may_be_mistyped(call: Call) -> None:
    assert "sqlite:///typo.db is new" in call("tasks", "--url", "sqlite:///typo.db").err
    assert call("tasks", "--url", "sqlite:///typo.db").err == ""


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
def test_a_url_of_no_database_is_refused(call: Call, verb: str, url: str) -> None:
    assert call(verb, "--url", url).code == Exit.CONFIGURATION


@pytest.mark.parametrize("verb", READING)
def test_a_database_that_is_away_is_said_in_one_line(call: Call, verb: str) -> None:
    told = call(verb, "--url", "postgresql://127.0.0.1:1/nothing")
    assert told.code == Exit.DATABASE
    assert told.err.startswith("runner: The database postgresql://127.0.0.1:1/nothing cannot be reached")
    assert told.err.count("\n") == 1


def test_a_file_that_is_no_database_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear Sir or Madam, " * 100)
    told = call("tasks", "--url", "sqlite:///letter.db")
    assert told.code == Exit.DATABASE
    assert "not a database" in told.err


def test_a_folder_that_is_missing_is_said(call: Call) -> None:
    told = call("tasks", "--url", "sqlite:////nowhere/at/all.db")
    assert told.code == Exit.DATABASE
    assert "unable to open" in told.err


def test_only_a_file_is_migrated_by_whoever_comes_first(call: Call, database_url: str) -> None:
    told = call("tasks", "--url", database_url)
    if database_url.startswith("sqlite"):
        assert told.code == Exit.OK
    else:
        assert told.code == Exit.DATABASE
        assert "runner migrate" in told.err
