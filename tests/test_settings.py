"""Settings: which source wins, what is refused and in which words, and no secret in anything printed."""

import logging
import os
import pickle
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import InvalidSettings, InvalidUrl, RunnerError, UnknownProfile
from runner.settings import Row, Settings, load
from runner.settings.checking import checked
from runner.settings.passwords import read_password
from runner.urls import parse_url

SECRET = "hunter2"
WriteConfig = Callable[[str], Path]


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [*os.environ]:
        if name.upper().startswith(("RUNNER_", "PG")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(platformdirs, "user_config_path", lambda _: tmp_path / "home")


@pytest.fixture
def config(tmp_path: Path) -> WriteConfig:
    """Write the user's configuration file."""

    def write(text: str) -> Path:
        path = tmp_path / "home" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


def refusal(**arguments: Any) -> str:
    with pytest.raises(InvalidSettings) as caught:
        load(**arguments)
    return str(caught.value)


def row(loaded: Settings, name: str) -> Row:
    return next(row for row in loaded.describe() if row.name == name)


def program(code: str) -> str:
    """A password_command that runs this Python, written as in TOML."""
    return f"""'''"{sys.executable}" -I -c "{code}"'''"""


# Which source wins


def test_without_any_source_the_defaults_hold() -> None:
    loaded = load()
    assert loaded == Settings()
    assert str(loaded.url) == "sqlite:///tasktui.db"
    assert (loaded.mode, loaded.every, loaded.batch) == ("fixed-rate", timedelta(seconds=1), 500)
    assert (loaded.lease, loaded.beat) == (timedelta(seconds=15), timedelta(seconds=3))
    assert (loaded.keep_succeeded, loaded.keep_dead) == (timedelta(days=7), timedelta(days=180))
    assert (loaded.payload_limit, loaded.result_limit) == (262_144, 65_536)
    assert (loaded.profile, loaded.config, loaded.timeout) == (None, None, None)


def test_arguments_go_before_the_environment_before_the_profile_before_the_defaults(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config("""
        default_profile = "dev"
        [profiles.dev]
        batch = 2
        slots = 2
        threads = 2
    """)
    monkeypatch.setenv("RUNNER_BATCH", "3")
    monkeypatch.setenv("runner_slots", "3")
    loaded = load(batch=4, slots=None)
    assert (loaded.batch, loaded.slots, loaded.threads, loaded.flush_size) == (4, 3, 2, 500)
    assert row(loaded, "batch") == Row("batch", "4", "argument batch")
    assert row(loaded, "slots") == Row("slots", "3", "RUNNER_SLOTS in the environment")
    assert row(loaded, "threads") == Row("threads", "2", f"threads of profile dev in {path}")
    assert row(loaded, "flush_size") == Row("flush_size", "500", "default")


def test_a_profile_is_chosen_by_argument_before_the_environment_before_the_file(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config('default_profile = "a"\n[profiles.a]\n[profiles.b]\n[profiles.c]')
    assert load().profile == "a"
    assert row(load(), "profile") == Row("profile", "a", f"found in {path}")
    monkeypatch.setenv("RUNNER_PROFILE", "b")
    assert load().profile == "b"
    assert load(profile="c").profile == "c"


def test_a_configuration_file_is_chosen_by_argument_before_the_environment_before_the_usual_place(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = config("")
    others = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for other in others:
        other.write_text("")
    assert load().config == usual
    monkeypatch.setenv("RUNNER_CONFIG", str(others[0]))
    assert load().config == others[0]
    assert load(config=str(others[1])).config == others[1]


def test_text_is_read_as_people_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "every": "250ms", "lease": "1m", "notify": "off", "handlers": "shop.mail, shop.bills", "queues": "",
        "payload_limit": "1MiB", "keep_dead": "forever", "timeout": "none", "synchronous": "normal",
        "initial_delay": "0", "url": "postgresql://me@db/app", "table_prefix": "jobs_", "table_schema": "work",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"RUNNER_{name.upper()}", value)
    loaded = load()
    assert (loaded.every, loaded.lease, loaded.beat) == (
        timedelta(milliseconds=250), timedelta(minutes=1), timedelta(seconds=12),
    )  # fmt: skip
    assert (loaded.notify, loaded.handlers, loaded.queues) == (False, ("shop.mail", "shop.bills"), ())
    assert (loaded.payload_limit, loaded.keep_dead, loaded.timeout) == (1_048_576, None, None)
    assert (loaded.synchronous, loaded.initial_delay) == ("NORMAL", timedelta(0))
    assert (str(loaded.url), loaded.table_prefix, loaded.table_schema) == ("postgresql://me@db/app", "jobs_", "work")


def test_a_database_named_in_the_environment_is_found_like_any_other_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("Runner_Url", "jobs.db")
    monkeypatch.setenv("RUNNER_CONFIG", "")
    loaded = load()
    assert (str(loaded.url), loaded.config) == ("sqlite:///jobs.db", None)
    assert row(loaded, "url").origin == "RUNNER_URL in the environment"
    monkeypatch.setenv("RUNNER_BATCH", "3")
    assert (load().url, load().batch) == (loaded.url, 3)


@pytest.mark.parametrize(("typed", "shown"), [("700", "700 B"), ("1536B", "1.5 KiB"), ("3MiB", "3.0 MiB")])
def test_sizes_are_shown_as_people_write_them(typed: str, shown: str) -> None:
    assert row(load(payload_limit=typed), "payload_limit").value == shown


def test_settings_constructed_directly_do_not_look_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_BATCH", "3")
    assert Settings().batch == 500
    assert row(Settings(batch=7), "batch") == Row("batch", "7", "argument")


def test_checking_does_not_repeat_bad_values() -> None:
    with pytest.raises(InvalidSettings, match="batch") as caught:
        checked({"batch": SECRET})
    assert SECRET not in str(caught.value)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        load().batch = 3  # type: ignore[misc]


def test_a_production_profile_is_read_only_unless_it_says_otherwise(config: WriteConfig) -> None:
    config("[profiles.a]\nproduction = true\n[profiles.b]\nproduction = true\nread_only = false")
    assert (load().production, load().read_only) == (False, False)
    assert (load(profile="a").production, load(profile="a").read_only) == (True, True)
    assert (load(profile="b").production, load(profile="b").read_only) == (True, False)


# What is refused


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("mode", "fixed", "it must be 'fixed-rate' or 'fixed-delay'"),
        ("every", "soon", "it must be a duration such as"),
        ("every", "0s", "it must be greater than 0"),
        ("batch", "0", "it must be greater than or equal to 1"),
        ("batch", "many", "it must be a valid integer"),
        ("beat", "10s", "at most half of the lease"),
        ("table_prefix", "My-", "pattern"),
        ("table_prefix", "a" * 21, "at most 20 characters"),
        ("table_schema", "x; drop", "pattern"),
        ("table_schema", "work", "SQLite has no schemas"),
        ("handlers", "shop/mail.py", "pattern"),
        ("payload_limit", "big", "could not parse value and unit from byte string"),
        ("synchronous", "off", "it must be 'FULL' or 'NORMAL'"),
        ("log_format", "xml", "it must be 'auto', 'human' or 'json'"),
        ("notify", "perhaps", "it must be a valid boolean"),
    ],
)
def test_a_bad_value_is_named_together_with_its_place(
    name: str, value: str, why: str, config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why in (message := refusal(**{name: value}))
    assert f"argument {name}" in message
    path = config(f"[profiles.dev]\n{name} = '{value}'")
    assert why in (message := refusal(profile="dev"))
    assert f"{name} of profile dev in {path}" in message
    monkeypatch.setenv(f"RUNNER_{name.upper()}", value)
    assert why in (message := refusal())
    assert f"RUNNER_{name.upper()} in the environment" in message


def test_all_bad_values_are_named_at_once_and_what_follows_from_them_is_not() -> None:
    message = refusal(lease="soon", batch=0)
    assert "argument lease" in message
    assert "argument batch" in message
    assert "beat" not in message


def test_a_schema_of_postgresql_itself_is_refused() -> None:
    assert "begin with pg_" in refusal(url="postgresql://db/app", table_schema="pg_work")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("RUNNER_BACTH", "RUNNER_BATCH"), ("RUNNER_QUEUE", "RUNNER_QUEUES"), ("runner_slot", "RUNNER_SLOTS")],
)
def test_a_mistyped_variable_is_refused_with_the_name_that_was_meant(
    typed: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(typed, SECRET)
    assert f"{typed} in the environment" in (message := refusal())
    assert f"did you mean {meant}?" in message
    assert SECRET not in message


def test_a_variable_that_resembles_nothing_is_mentioned_and_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RUNNER_WEATHER", SECRET)
    with caplog.at_level(logging.WARNING):
        loaded = load()
    assert loaded == load()
    assert loaded.describe()[-1] == Row("RUNNER_WEATHER", "", "ignored: no setting has this name")
    assert "RUNNER_WEATHER is set" in caplog.text
    assert SECRET not in caplog.text


def test_variables_of_other_peoples_runners_are_none_of_our_business(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RUNNER_LIMIT", "4")  # Resembles a setting, and GitLab sets it.
    monkeypatch.setenv("RUNNER_OS", "Linux")
    assert load() == Settings()
    assert not caplog.records


def test_an_unknown_name_in_a_profile_or_an_argument_is_refused(config: WriteConfig) -> None:
    path = config("[profiles.dev]\nbacth = 3")
    message = refusal(profile="dev")
    assert f"bacth of profile dev in {path}" in message
    assert "did you mean batch?" in message
    assert "argument weather" in refusal(weather="fine")


@pytest.mark.parametrize("name", ["profile", "config"])
def test_a_profile_cannot_choose_a_profile_or_a_file(name: str, config: WriteConfig) -> None:
    config(f"[profiles.dev]\n{name} = 'x'")
    assert "cannot choose" in refusal(profile="dev")


def test_a_file_that_somebody_asked_for_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    assert f"(argument config): there is no file {missing}" in refusal(config=missing)
    monkeypatch.setenv("RUNNER_CONFIG", missing)
    assert f"(RUNNER_CONFIG in the environment): there is no file {missing}" in refusal()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[profiles", "not valid TOML"),
        (b"password = hunter2", "not valid TOML"),
        (b"\xff", "not UTF-8"),
        (b"batch = 3", "'batch' is unknown at the top"),
        (b"profiles = 3", "profiles must be tables"),
        (b"[profiles]\ndev = 3", "profiles must be tables"),
        (b"default_profile = 3", "default_profile must be the name"),
    ],
)
def test_a_broken_file_is_refused_with_its_path(content: bytes, why: str, config: WriteConfig) -> None:
    path = config("")
    path.write_bytes(content)
    message = refusal()
    assert str(path) in message
    assert why in message
    assert SECRET not in message


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in refusal(config=str(tmp_path))


def test_an_unknown_profile_is_refused_with_the_known_ones(config: WriteConfig) -> None:
    with pytest.raises(UnknownProfile, match=r"'prod'.*none"):
        load(profile="prod")
    config("[profiles.b]\n[profiles.a]")
    with pytest.raises(UnknownProfile, match=r"'prod'.*a, b"):
        load(profile="prod")


# Databases and their passwords


def test_a_url_may_hold_a_password_in_the_environment_but_not_in_the_file(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://me:hunter2@db/app"
    config(f"[profiles.dev]\nurl = '{url}'")
    message = refusal(profile="dev")
    assert "url of profile dev" in message
    assert "password_command" in message
    assert SECRET not in message
    monkeypatch.setenv("RUNNER_URL", url)
    assert load().url.password == SECRET


def test_a_bad_url_is_refused_with_its_place_and_without_its_text(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config("[profiles.dev]\nurl = 'mysql://me:hunter2@db'\n[profiles.odd]\nurl = 3")
    with pytest.raises(InvalidUrl, match=r"mysql://\*\*\* .*\(url of profile dev in ") as caught:
        load(profile="dev")
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidSettings, match=r"url of profile odd.*it must be text"):
        load(profile="odd")
    monkeypatch.setenv("RUNNER_URL", SECRET)
    with pytest.raises(InvalidUrl, match=r"URL \*\*\* .*\(RUNNER_URL in the environment\)"):
        load()
    with pytest.raises(InvalidUrl, match=r"it is not text \(argument url\)"):
        load(url=3)


def test_a_service_is_a_database_without_a_url(config: WriteConfig) -> None:
    config("[profiles.dev]\nservice = 'orders'\n[profiles.odd]\nservice = 'orders'\nurl = 'a.db'")
    assert str(load(profile="dev").url) == "postgresql:///?service=orders"
    assert "either a url or a service" in refusal(profile="odd")


def test_a_program_prints_the_password(config: WriteConfig) -> None:
    config(
        f"[profiles.dev]\nurl = 'postgresql://me@db/app'\npassword_command = {program('print(chr(104) + chr(105))')}"
    )
    assert load(profile="dev").url == parse_url("postgresql://me:hi@db/app")


def test_a_password_is_never_given_to_another_database(config: WriteConfig, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    config(
        "[profiles.dev]\nurl = 'postgresql://db/app'\n"
        f"password_command = {program(f'open({str(ran)!r}, chr(119)); print(1)')}"
    )
    assert load(profile="dev", url="postgresql://evil/app").url.password is None
    assert not ran.exists()
    assert load(profile="dev").url.password == "1"
    assert ran.exists()


def test_sqlite_knows_no_passwords(config: WriteConfig) -> None:
    config("[profiles.dev]\nurl = 'a.db'\npassword_command = 'pass show x'")
    assert "SQLite knows no passwords" in refusal(profile="dev")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; print('hunter2'); print('hunter2', file=sys.stderr); sys.exit(3)", "exit status 3"),
        ("", "first line is empty"),
        ("print(); print('hunter2')", "first line is empty"),
        ("print('hunter2' + chr(0))", "control characters"),
        ("import sys; sys.stdout.buffer.write(b'hunter2' + bytes([255]))", "not UTF-8"),
    ],
)
def test_a_program_that_prints_no_password_is_reported_without_its_words(
    code: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        read_password(f'"{sys.executable}" -I -c "{code}"', "here")
    message = "".join(traceback.format_exception_only(caught.value))
    assert "(here)" in message
    assert why in message
    assert SECRET not in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", "it is empty"),
        ("echo 'hunter2", "quotation mark is never closed"),
        ("no-such-program hunter2", "no-such-program cannot be started: No such file"),
        ("echo hunter2\0", "cannot be started"),
    ],
)
def test_a_program_that_cannot_run_is_reported_without_its_arguments(command: str, why: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        read_password(command, "here")
    assert why in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_program_runs_without_a_shell() -> None:
    assert read_password("echo $HOME; echo *", "here") == "$HOME; echo *"


def test_a_program_that_hangs_is_stopped_though_its_child_keeps_the_pipe_open(tmp_path: Path) -> None:
    finished = tmp_path / "finished"
    script = tmp_path / "slow.py"
    script.write_text(
        "import pathlib, subprocess, sys\n"
        "subprocess.run([sys.executable, '-I', '-c', 'import time; time.sleep(3)'])\n"
        f"pathlib.Path({str(finished)!r}).touch()\n"
    )
    with pytest.raises(InvalidSettings, match=r"took longer than 0\.2 seconds"):
        read_password(f"{sys.executable} -I {script}", "here", timeout=0.2)
    assert not finished.exists()


def test_a_profile_asked_for_by_name_is_not_overruled_by_a_forgotten_variable(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config("default_profile = 'dev'\n[profiles.dev]\nurl = 'postgresql://me@dev/app'\n[profiles.bare]\nbatch = 2")
    monkeypatch.setenv("RUNNER_URL", "postgresql://me:hunter2@prod/app")
    message = refusal(profile="dev")
    assert "RUNNER_URL in the environment" in message
    assert "another database than profile dev" in message
    assert SECRET not in message
    assert str(load().url) == str(load(profile="bare").url) == "postgresql://me:***@prod/app"
    monkeypatch.setenv("RUNNER_URL", "postgresql://me:hunter2@dev/app")
    assert load(profile="dev").url.password == SECRET


def test_weak_protection_is_shown() -> None:
    assert row(load(), "tls") == Row("tls", "not needed", "derived from url")
    assert row(load(url="postgresql://db/app"), "tls") == Row("tls", "verify-full", "derived from url")
    weak = load(url="postgresql://db/app?sslmode=require")
    assert row(weak, "tls") == Row("tls", "require", "weaker than verify-full")
    assert weak.url.tls.weak


def shown(loaded: Settings) -> str:
    """Everything that could be printed of settings."""
    return f"{loaded!r} {loaded} {loaded.describe()} {vars(loaded)}"


def explained(error: RunnerError) -> str:
    return f"{error!r} {error} {error.fields} {error.__cause__} {error.__suppress_context__}"


PLACES = [
    "postgresql://me:{}@db/app",
    "postgresql://me:{}/app",
    "postgresql://db/app?password={}",
    "postgresql://db/app?sslpassword={}",
    "mysql://me:{}@db",
    "sqlite://{}",
    "{}",
]


@given(
    secret=st.text("abcdefXYZ0123456789!#%&/:?@ ", min_size=1).map(lambda text: f"Secret{text}"),
    form=st.sampled_from(PLACES),
    place=st.sampled_from(["argument", "environment", "profile", "number"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_secret_is_shown_wherever_it_stands(secret: str, form: str, place: str, config: WriteConfig) -> None:
    text = form.format(secret)
    config(f"[profiles.dev]\nurl = '{text}'" if place == "profile" else "")
    with pytest.MonkeyPatch.context() as environment:
        if place == "environment":
            environment.setenv("RUNNER_URL", text)
        arguments = {"argument": {"url": text}, "profile": {"profile": "dev"}, "number": {"batch": text, "every": text}}
        try:
            said = shown(load(**arguments.get(place, {})))
        except RunnerError as error:
            said = explained(error)
    assert "Secret" not in said


def test_settings_travel_to_other_processes() -> None:
    loaded = load(url="postgresql://me:hunter2@db/app", batch=3)
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def test_naming_a_database_loads_neither_sqlalchemy_nor_a_driver_nor_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_URL", "jobs.db")
    heavy = {"sqlalchemy", "psycopg", "aiosqlite", "pydantic", "pydantic_settings"}
    code = f"import sys, runner.settings; runner.settings.load(); print({heavy} & {{*sys.modules}})"
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
