"""Settings: precedence of the sources, rejected values and their messages, and no secret in any output."""

import errno
import grp
import logging
import os
import pickle
import pwd
import stat
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import platformdirs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ByteSize, ValidationError

from runner.errors import InvalidSettings, InvalidUrl, RunnerError, UnknownProfile
from runner.model.outcome import Delay
from runner.settings import DESCRIPTIONS, Row, Settings, load, profiles
from runner.settings.keywords import Keywords
from runner.settings.password_command import PasswordCommand, read_password
from runner.settings.receivers import parse_receiver
from runner.settings.settings import NAMES
from runner.urls import DatabaseUrl, parse_url

SECRET = "hunter2"
WriteConfig = Callable[[str], Path]


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [*os.environ]:
        if name.upper().startswith(("TASKTUI_", "PG")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(platformdirs, "user_config_path", lambda _: tmp_path / "home")


@pytest.fixture
def config(tmp_path: Path) -> WriteConfig:
    """Write the user's configuration file."""

    def write(text: str) -> Path:
        path = tmp_path / "home" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(0o600)
        return path

    return write


def refusal(**arguments: Any) -> str:
    with pytest.raises(InvalidSettings) as caught:
        load(**arguments)
    return str(caught.value)


def row(loaded: Settings, name: str) -> Row:
    return next(row for row in loaded.describe() if row.name == name)


def program(code: str) -> str:
    """A password_command that runs this Python, in TOML syntax."""
    return f"""'''"{sys.executable}" -I -c "{code}"'''"""


# Precedence of the sources


def test_without_any_source_the_defaults_apply() -> None:
    loaded = load()
    assert loaded == Settings()
    assert str(loaded.url) == f"sqlite:///{Path.cwd()}/tasktui.db"
    assert (loaded.poll_mode, loaded.poll_interval, loaded.claim_batch_size) == (
        "fixed-rate",
        timedelta(seconds=1),
        1_000,
    )
    assert (loaded.lease_timeout, loaded.heartbeat_interval) == (timedelta(seconds=15), timedelta(seconds=3))
    assert (loaded.retention_succeeded, loaded.retention_dead) == (timedelta(days=7), timedelta(days=180))
    assert (loaded.payload_limit, loaded.result_limit) == (262_144, 65_536)
    assert (loaded.profile, loaded.config, loaded.timeout) == (None, None, timedelta(minutes=15))


def test_precedence_is_arguments_environment_profile_defaults(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config("""
        default_profile = "dev"
        [profiles.dev]
        claim_batch_size = 2
        concurrency = 2
        threads = 2
    """)
    monkeypatch.setenv("TASKTUI_CLAIM_BATCH_SIZE", "3")
    monkeypatch.setenv("tasktui_concurrency", "3")
    loaded = load(claim_batch_size=4, concurrency=None)
    assert (loaded.claim_batch_size, loaded.concurrency, loaded.threads, loaded.settle_batch_size) == (4, 3, 2, 1_000)
    assert row(loaded, "claim_batch_size") == Row("claim_batch_size", "4", "argument claim_batch_size")
    assert row(loaded, "concurrency") == Row("concurrency", "3", "TASKTUI_CONCURRENCY in the environment")
    assert row(loaded, "threads") == Row("threads", "2", f"threads of profile dev in {path}")
    assert row(loaded, "settle_batch_size") == Row("settle_batch_size", "1000", "default")


def secret(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setenv("TASKTUI_SECRETS_DIR", str(folder))
    return folder


def test_secrets_are_stronger_than_the_profile_and_weaker_than_the_environment(
    config: WriteConfig, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config('default_profile = "dev"\n[profiles.dev]\nconcurrency = 2\nthreads = 2\nmax_attempts = 2')
    secret(secrets, "tasktui_concurrency", "3\n")
    path = secret(secrets, "TASKTUI_THREADS", " 3 ")
    secret(secrets, "tasktui_handlers", "shop.mail, shop.bills")
    monkeypatch.setenv("TASKTUI_CONCURRENCY", "4")
    loaded = load(claim_batch_size=5)
    assert (loaded.claim_batch_size, loaded.concurrency, loaded.threads, loaded.max_attempts) == (5, 4, 3, 2)
    assert loaded.handlers == ("shop.mail", "shop.bills")
    assert row(loaded, "threads") == Row("threads", "3", f"the secret {path.parent / 'tasktui_threads'}")


def test_a_secret_holds_the_url_with_its_password(secrets: Path) -> None:
    secret(secrets, "tasktui_url", "postgresql://me:hunter2@db/app?sslmode=disable\n")
    loaded = load()
    assert loaded.url.password == "hunter2"
    assert "hunter2" not in repr(loaded.describe())


def test_a_variable_may_name_the_file_of_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = secret(tmp_path, "url.txt", "postgresql://me@db/app\n")
    monkeypatch.setenv("TASKTUI_URL_FILE", str(path))
    loaded = load()
    assert str(loaded.url) == "postgresql://me@db/app"
    assert row(loaded, "url").origin == f"{path}, named by TASKTUI_URL_FILE"
    monkeypatch.setenv("TASKTUI_URL", "sqlite:///x.db")
    with pytest.raises(InvalidSettings, match=r"\(TASKTUI_URL_FILE\).*TASKTUI_URL is set too: remove one of them"):
        load()


def test_a_file_of_a_value_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKTUI_URL_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidSettings, match=r"TASKTUI_URL_FILE in the environment.*\(errno 2\)"):
        load()
    (tmp_path / "none").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSettings, match="it is not UTF-8 text"):
        load()


def test_a_folder_of_secrets_that_is_missing_is_refused_if_a_variable_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_SECRETS_DIR", str(tmp_path / "none"))
    with pytest.raises(InvalidSettings, match=r"TASKTUI_SECRETS_DIR in the environment.*errno 2"):
        load()


def test_a_misspelled_secret_is_refused_and_other_files_are_not_settings(secrets: Path) -> None:
    secret(secrets, "other_app_key", "x")
    secret(secrets, "tasktui_tls_key", "x")
    assert load() == Settings()
    secret(secrets, "tasktui_concurency", "7")
    with pytest.raises(InvalidSettings, match=r"tasktui_concurency.*did you mean tasktui_concurrency"):
        load()


def test_a_secret_that_is_not_valid_is_named_and_not_repeated(secrets: Path) -> None:
    secret(secrets, "tasktui_threads", "hunter2")
    with pytest.raises(InvalidSettings, match=r"the secret .*tasktui_threads") as caught:
        load()
    assert "hunter2" not in str(caught.value)


def test_the_constructor_reads_no_source(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret(secrets, "tasktui_threads", "3")
    monkeypatch.setenv("TASKTUI_CONCURRENCY", "4")
    assert (Settings().threads, Settings().concurrency) == (10, 100)
    monkeypatch.setenv("TASKTUI_ORIGINS", "x")
    assert load().origins.places["concurrency"] == "TASKTUI_CONCURRENCY in the environment"


def test_the_profile_is_selected_by_argument_then_environment_then_file(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config('default_profile = "a"\n[profiles.a]\n[profiles.b]\n[profiles.c]')
    assert load().profile == "a"
    assert row(load(), "profile") == Row("profile", "a", f"found in {path}")
    monkeypatch.setenv("TASKTUI_PROFILE", "b")
    assert load().profile == "b"
    assert load(profile="c").profile == "c"


def test_the_configuration_file_is_selected_by_argument_then_environment_then_default_path(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = config("")
    others = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for other in others:
        other.write_text("")
    assert load().config == usual
    monkeypatch.setenv("TASKTUI_CONFIG", str(others[0]))
    assert load().config == others[0]
    assert load(config=str(others[1])).config == others[1]


def test_handlers_have_no_more_transactions_than_tasks_run_unless_the_setting_allows_it() -> None:
    assert load().transaction_connections == 10
    assert load(concurrency=2, threads=1).transaction_connections == 3
    assert load(concurrency=2, threads=1, transaction_connections=30).transaction_connections == 30


def test_the_url_is_read_under_its_former_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_URL", "former.db")
    assert row(load(), "url") == Row("url", f"sqlite:///{Path.cwd()}/former.db", "RUNNER_URL in the environment")
    monkeypatch.setenv("TASKTUI_URL", "jobs.db")
    assert str(load().url).endswith("/jobs.db")


def test_text_values_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "poll_interval": "250ms", "lease_timeout": "1m", "notify": "off", "handlers": "shop.mail, shop.bills",
        "queues": "",
        "payload_limit": "1MiB", "retention_dead": "forever", "timeout": "none", "sqlite_synchronous": "normal",
        "initial_delay": "0", "url": "postgresql://me@db/app", "table_prefix": "jobs_", "table_schema": "work",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"TASKTUI_{name.upper()}", value)
    loaded = load()
    assert (loaded.poll_interval, loaded.lease_timeout, loaded.heartbeat_interval) == (
        timedelta(milliseconds=250), timedelta(minutes=1), timedelta(seconds=12),
    )  # fmt: skip
    assert (loaded.notify, loaded.handlers, loaded.queues) == (False, ("shop.mail", "shop.bills"), ())
    assert (loaded.payload_limit, loaded.retention_dead, loaded.timeout) == (1_048_576, None, None)
    assert (loaded.sqlite_synchronous, loaded.initial_delay) == ("NORMAL", timedelta(0))
    assert (str(loaded.url), loaded.table_prefix, loaded.table_schema) == ("postgresql://me@db/app", "jobs_", "work")


def test_the_url_in_the_environment_is_read_like_any_other_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("Tasktui_Url", "jobs.db")
    monkeypatch.setenv("TASKTUI_CONFIG", "")
    loaded = load()
    assert (str(loaded.url), loaded.config) == (f"sqlite:///{Path.cwd()}/jobs.db", None)
    assert row(loaded, "url").origin == "TASKTUI_URL in the environment"
    monkeypatch.setenv("TASKTUI_CLAIM_BATCH_SIZE", "3")
    assert (load().url, load().claim_batch_size) == (loaded.url, 3)


@pytest.mark.parametrize(("typed", "text"), [("700", "700 B"), ("1536B", "1.5 KiB"), ("3MiB", "3 MiB")])
def test_sizes_are_shown_with_units(typed: str, text: str) -> None:
    assert row(load(payload_limit=typed), "payload_limit").value == text


def test_constructing_settings_directly_reads_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKTUI_CLAIM_BATCH_SIZE", "3")
    assert Settings().claim_batch_size == 1_000
    assert row(Settings(claim_batch_size=7), "claim_batch_size") == Row("claim_batch_size", "7", "argument")


def test_errors_do_not_repeat_invalid_values() -> None:
    with pytest.raises(InvalidSettings, match="claim_batch_size") as caught:
        Settings(claim_batch_size=SECRET)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)


def test_constructing_settings_directly_checks_the_arguments() -> None:
    with pytest.raises(InvalidSettings, match=r"\(argument heartbeat_interval\): it must be greater than 0"):
        Settings(heartbeat_interval=timedelta(0))
    with pytest.raises(InvalidSettings, match=r"\(argument heartbeat_interval\): it must be at most half of the lease"):
        Settings(lease_timeout=timedelta(seconds=3), heartbeat_interval=timedelta(seconds=2))
    with pytest.raises(
        InvalidSettings, match=r"\(argument thread\): unknown setting 'thread'; did you mean 'threads'\?"
    ):
        Settings(thread=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidUrl, match=r"mysql://\*\*\*: .*\(argument url\)"):
        Settings(url=f"mysql://me:{SECRET}@db")  # type: ignore[arg-type]


def test_derived_defaults_also_apply_to_settings_constructed_directly() -> None:
    changed = Settings(production=True, lease_timeout=timedelta(seconds=20), concurrency=2, threads=1)
    assert (changed.read_only, changed.heartbeat_interval, changed.transaction_connections) == (
        True,
        timedelta(seconds=4),
        3,
    )


def test_settings_with_equal_values_and_different_origins_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKTUI_THREADS", "4")
    assert load() == Settings(threads=4) != Settings()
    assert hash(load()) == hash(Settings(threads=4))


def test_every_setting_has_a_description() -> None:
    assert DESCRIPTIONS.keys() == {name for name in Settings.model_fields if name != "origins"}
    assert all(DESCRIPTIONS.values())


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load().claim_batch_size = 3


def test_a_production_profile_is_read_only_by_default(config: WriteConfig) -> None:
    config("[profiles.a]\nproduction = true\n[profiles.b]\nproduction = true\nread_only = false")
    assert (load().production, load().read_only) == (False, False)
    assert (load(profile="a").production, load(profile="a").read_only) == (True, True)
    assert (load(profile="b").production, load(profile="b").read_only) == (True, False)


# Rejected values


def test_buckets_and_a_slice_are_refused_together() -> None:
    assert "a runner has buckets or a slice; choose one" in refusal(buckets="0-9", slice="live")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("poll_interval", "soon", "expected a duration such as"),
        ("poll_interval", "-1s", "expected a duration such as"),
        ("claim_batch_size", "0", "it must be greater than or equal to 1"),
        ("claim_batch_size", "many", "it must be a valid integer"),
        ("heartbeat_interval", "10s", "at most half of the lease"),
        ("transaction_connections", "0", "it must be greater than or equal to 1"),
        ("table_prefix", "My%", "must not contain '%'"),
        ("table_prefix", "a" * 21, "at most 20 bytes"),
        ("table_schema", "x$", "must not contain"),
        ("table_schema", "work", "SQLite has no schemas"),
        ("handlers", "shop/mail.py", "such as shop.mail"),
        ("payload_limit", "big", "could not parse value and unit from byte string"),
        ("sqlite_synchronous", "off", "it must be 'FULL' or 'NORMAL'"),
        ("log_format", "xml", "it must be 'auto', 'human' or 'json'"),
        ("listen", "9464", "expected HOST:PORT, such as 127.0.0.1:9464"),
        ("listen", "localhost:65536", "expected HOST:PORT"),
        ("listen", "::1:9464", "put an IPv6 address into brackets"),
        ("notify", "perhaps", "it must be a valid boolean"),
    ],
)
def test_an_invalid_value_is_reported_with_its_origin(
    name: str, value: str, why: str, config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why in (message := refusal(**{name: value}))
    assert f"argument {name}" in message
    path = config(f"[profiles.dev]\n{name} = '{value}'")
    assert why in (message := refusal(profile="dev"))
    assert f"{name} of profile dev in {path}" in message
    monkeypatch.setenv(f"TASKTUI_{name.upper()}", value)
    assert why in (message := refusal())
    assert f"TASKTUI_{name.upper()} in the environment" in message


def test_all_invalid_values_are_reported_without_consequential_errors() -> None:
    message = refusal(lease_timeout="soon", claim_batch_size=0)
    assert "argument lease_timeout" in message
    assert "argument claim_batch_size" in message
    assert "heartbeat" not in message


def test_a_reserved_postgresql_schema_is_rejected() -> None:
    assert "begin with pg_" in refusal(url="postgresql://db/app", table_schema="pg_work")


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        ("TASKTUI_CLAIM_BACTH_SIZE", "TASKTUI_CLAIM_BATCH_SIZE"),
        ("TASKTUI_QUEUE", "TASKTUI_QUEUES"),
        ("tasktui_concurency", "TASKTUI_CONCURRENCY"),
    ],
)
def test_a_misspelled_variable_is_rejected_with_a_suggestion(
    typed: str, suggestion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(typed, SECRET)
    assert f"{typed} in the environment" in (message := refusal())
    assert f"did you mean {suggestion}?" in message
    assert SECRET not in message


def test_an_unknown_variable_is_ignored_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TASKTUI_WEATHER", SECRET)
    with caplog.at_level(logging.WARNING):
        loaded = load()
    assert loaded == load()
    assert loaded.describe()[-1] == Row("TASKTUI_WEATHER", "", "ignored: not a setting")
    assert "TASKTUI_WEATHER is set" in caplog.text
    assert SECRET not in caplog.text


def test_variables_of_kubernetes_services_and_of_other_runners_are_ignored_silently(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR"):
        monkeypatch.setenv(f"TASKTUI_{name}", "tcp://10.0.0.1:80")
    monkeypatch.setenv("RUNNER_CONCURENCY", "4")
    assert load() == Settings()
    assert not caplog.records


def test_an_unknown_setting_in_a_profile_or_an_argument_is_rejected(config: WriteConfig) -> None:
    path = config("[profiles.dev]\nclaim_bacth_size = 3")
    message = refusal(profile="dev")
    assert f"claim_bacth_size of profile dev in {path}" in message
    assert "did you mean 'claim_batch_size'?" in message
    assert "argument weather" in refusal(weather="fine")


@pytest.mark.parametrize("name", ["profile", "config"])
def test_a_profile_cannot_set_profile_or_config(name: str, config: WriteConfig) -> None:
    config(f"[profiles.dev]\n{name} = 'x'")
    assert "cannot set profile or config" in refusal(profile="dev")


def test_an_explicit_configuration_file_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    assert f"(argument config): the file {missing} does not exist" in refusal(config=missing)
    monkeypatch.setenv("TASKTUI_CONFIG", missing)
    assert f"(TASKTUI_CONFIG in the environment): the file {missing} does not exist" in refusal()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[profiles", "not valid TOML"),
        (b"password = hunter2", "not valid TOML"),
        (b"\xff", "not UTF-8"),
        (b"threads = 3", "'threads' is not a top-level key"),
        (b"profiles = 3", "profiles must be tables"),
        (b"[profiles]\ndev = 3", "profiles must be tables"),
        (b"default_profile = 3", "default_profile must be the name"),
    ],
)
def test_an_invalid_file_is_rejected_with_its_path(content: bytes, why: str, config: WriteConfig) -> None:
    path = config("")
    path.write_bytes(content)
    message = refusal()
    assert str(path) in message
    assert why in message
    assert SECRET not in message


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in refusal(config=str(tmp_path))


AS_ANOTHER_USER = """
import os, sys
from runner.filter import saved
from runner.settings import load
load(), saved.load(saved.default_path())  # imports everything, before the interpreter may be out of reach
os.environ.pop("HOME", None) if sys.argv[1] == "unset" else os.environ.update(HOME=sys.argv[1])
os.setgroups([]), os.setgid(54321), os.setuid(54321)
row = next(row for row in load(url="~/tasks.db").describe() if row.name == "config")
print(saved.default_path(), row.origin, load(url="~/tasks.db").url, sep="|")
try:
    load(config=sys.argv[2])
except Exception as error:
    print(error)
"""


def as_another_user(home: str, config: Path) -> list[str]:
    arguments = [sys.executable, "-c", AS_ANOTHER_USER, home, str(config)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(config.parent)}
    return subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_default_file_in_the_home_of_another_user_counts_as_absent(tmp_path: Path, config: WriteConfig) -> None:
    home, foreign = tmp_path / "other", config("")
    home.mkdir(mode=0o700)
    found, refused = as_another_user(str(home), foreign)
    path = home / ".config" / "tasktui"
    reason = f"default: {path / 'config.toml'} counts as absent: Permission denied (errno {errno.EACCES})"
    assert found == f"{path / 'views.json'}|{reason}|sqlite:///{home}/tasks.db"
    assert f"(argument config): the file {foreign} cannot be read: Permission denied (errno 13)" in refused


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("home", ["unset", ""])
def test_a_user_without_a_home_needs_no_configuration_file(home: str, config: WriteConfig) -> None:
    found, _ = as_another_user(home, config(""))
    assert found == "/.config/tasktui/views.json|default|sqlite:////tasks.db"


@pytest.mark.parametrize("home", ["/dev/null", "/" + "long" * 100])
def test_a_default_file_below_no_folder_counts_as_absent(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_config_path", lambda name: Path(home, name))
    assert load().describe()


def test_an_own_default_file_that_cannot_be_read_is_rejected(config: WriteConfig) -> None:
    path = config("")
    path.unlink()
    path.mkdir()
    assert f"the file {path} cannot be read: Is a directory (errno 21)" in refusal()


def test_the_home_of_an_unknown_user_stays_as_it_is_written() -> None:
    assert parse_url("~no-such-user/tasks.db").database == str(Path.cwd() / "~no-such-user/tasks.db")


def test_a_fifo_or_a_device_is_not_a_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert f"(argument config): {fifo} is not a regular file" in refusal(config=fifo)
    assert "(argument config): /dev/zero is not a regular file" in refusal(config="/dev/zero")
    monkeypatch.setenv("TASKTUI_CONFIG", str(fifo))
    assert f"(TASKTUI_CONFIG in the environment): {fifo} is not a regular file" in refusal()


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_with_a_password_command_is_rejected_if_other_users_may_write_it(
    mode: int, config: WriteConfig, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    path = config(
        "default_profile = 'dev'\n[profiles.dev]\nurl = 'postgresql://db/app'\n"
        f"password_command = {program(f'open({str(ran)!r}, chr(119)); print(1)')}\n[profiles.bare]\nthreads = 2"
    )
    path.chmod(mode)
    message = refusal()
    assert f"password_command of profile dev in {path}" in message
    assert f"chmod go-w {path}" in message
    assert message == refusal(profile="bare")
    assert not ran.exists()
    path.chmod(0o644)
    assert load().url.password == "1"


COMMAND = "[profiles.dev]\npassword_command = 'pass show x'"


@pytest.mark.parametrize("mode", [0o757, 0o775])
def test_a_file_with_a_password_command_is_rejected_if_other_users_may_replace_it(
    mode: int, config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(COMMAND)
    monkeypatch.setattr(profiles, "_is_own_group", lambda _: False)
    for folder in (path.parent, tmp_path):
        folder.chmod(mode)
        message = refusal()
        assert f"password_command of profile dev in {path}" in message
        assert f"run chmod go-w {folder}" in message
        folder.chmod(0o700)
    load()
    path.parent.chmod(mode | stat.S_ISVTX)  # only its owner may replace the file
    load()


def test_the_private_group_of_the_user_may_write_the_folder_of_a_password_command(
    config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(COMMAND).parent.chmod(0o775)
    name = pwd.getpwuid(os.geteuid()).pw_name
    for group, members, trusted in ((name, [], True), (name, ["eve"], False), ("staff", [], False)):
        entry = grp.struct_group((group, "x", 1, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, entry=entry: entry)
        assert (tmp_path / "home").stat().st_mode & stat.S_IWGRP
        if trusted:
            load()
        else:
            assert "they may write the folder" in refusal()
    config(COMMAND).parent.chmod(0o757)
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group((name, "x", 1, [])))
    assert "they may write the folder" in refusal()


def test_links_to_a_file_with_a_password_command_are_followed(config: WriteConfig, tmp_path: Path) -> None:
    path, shared, target = config(COMMAND), tmp_path / "shared", tmp_path / "dotfiles"
    for folder in (shared, target):
        folder.mkdir()
    path.rename(target / "config.toml")
    path.symlink_to("../shared/inner")
    (shared / "inner").symlink_to(target / "config.toml")
    load()
    shared.chmod(0o777)  # others may point the inner link elsewhere
    assert f"run chmod go-w {shared}" in refusal()
    shared.chmod(0o755)
    target.chmod(0o777)
    assert f"run chmod go-w {target}" in refusal()
    target.chmod(0o755)
    (target / "config.toml").chmod(0o622)
    assert f"run chmod go-w {path}" in refusal()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_links_and_folders_of_another_user_are_rejected_for_a_password_command(
    config: WriteConfig, tmp_path: Path
) -> None:
    path, target = config(COMMAND), tmp_path / "config.toml"
    os.chown(path.parent, 12345, -1)
    assert f"another user owns the folder {path.parent}" in refusal()
    os.chown(path.parent, 0, -1)
    path.rename(target)
    path.symlink_to(target)
    os.lchown(path, 12345, -1)
    assert f"another user owns the link {path}" in refusal()


def test_a_file_without_a_password_command_may_be_writable_for_others(config: WriteConfig) -> None:
    config("[profiles.dev]\nthreads = 2").chmod(0o666)
    assert load(profile="dev").threads == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_with_a_password_command_is_rejected_if_another_user_owns_it(
    config: WriteConfig,
) -> None:
    path = config("[profiles.dev]\npassword_command = 'pass show x'")
    os.chown(path, 12345, -1)
    message = refusal()
    assert f"password_command of profile dev in {path}" in message
    assert "another user owns the file" in message


def test_an_unknown_profile_is_rejected_with_the_defined_ones(config: WriteConfig) -> None:
    with pytest.raises(UnknownProfile, match=r"'prod'.*none"):
        load(profile="prod")
    config("[profiles.b]\n[profiles.a]")
    with pytest.raises(UnknownProfile, match=r"'prod'.*a, b"):
        load(profile="prod")


# Databases and their passwords


def test_a_password_in_a_url_is_allowed_in_the_environment_but_not_in_the_file(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://me:hunter2@db/app"
    config(f"[profiles.dev]\nurl = '{url}'")
    message = refusal(profile="dev")
    assert "url of profile dev" in message
    assert "password_command" in message
    assert SECRET not in message
    monkeypatch.setenv("TASKTUI_URL", url)
    assert load().url.password == SECRET


def test_an_invalid_url_is_rejected_with_its_origin_and_without_its_text(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config("[profiles.dev]\nurl = 'mysql://me:hunter2@db'\n[profiles.odd]\nurl = 3")
    with pytest.raises(InvalidUrl, match=r"mysql://\*\*\*: .*\(url of profile dev in ") as caught:
        load(profile="dev")
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidSettings, match=r"url of profile odd.*expected text"):
        load(profile="odd")
    monkeypatch.setenv("TASKTUI_URL", SECRET)
    with pytest.raises(InvalidUrl, match=r"URL \*\*\*: .*\(TASKTUI_URL in the environment\)"):
        load()
    with pytest.raises(InvalidUrl, match=r"it is not text \(argument url\)"):
        load(url=3)


def test_a_service_replaces_a_url(config: WriteConfig) -> None:
    config("[profiles.dev]\nservice = 'orders'\n[profiles.odd]\nservice = 'orders'\nurl = 'a.db'")
    assert str(load(profile="dev").url) == "postgresql:///?service=orders"
    assert "both a url and a service" in refusal(profile="odd")


def test_a_password_command_provides_the_password(config: WriteConfig) -> None:
    config(
        f"[profiles.dev]\nurl = 'postgresql://me@db/app'\npassword_command = {program('print(chr(104) + chr(105))')}"
    )
    assert load(profile="dev").url == parse_url("postgresql://me:hi@db/app")


def test_a_password_is_never_sent_to_another_database(config: WriteConfig, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    config(
        "[profiles.dev]\nurl = 'postgresql://db/app'\n"
        f"password_command = {program(f'open({str(ran)!r}, chr(119)); print(1)')}"
    )
    assert load(profile="dev", url="postgresql://evil/app").url.password is None
    assert not ran.exists()
    assert load(profile="dev").url.password == "1"
    assert ran.exists()


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Mounts secrets as Kubernetes does: read-only files in a folder of their version, behind two links."""

    def mount(mode: int = 0o440, **secrets: str) -> Path:
        version = tmp_path / "secrets" / "..2026_11_28_06_30_00.123"
        version.mkdir(parents=True)
        for name, text in secrets.items():
            (version / name).write_text(text)
            (version / name).chmod(mode)
            (version.parent / name).symlink_to(Path("..data", name))
        (version.parent / "..data").symlink_to(version.name)
        monkeypatch.setenv("TASKTUI_SECRETS_DIR", str(version.parent))
        return version.parent

    return mount


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o444])
def test_secrets_are_read_as_containers_mount_them(mounted: Callable[..., Path], mode: int) -> None:
    folder = mounted(mode, tasktui_url="postgresql://me@db/app\n", tasktui_password=f"{SECRET}\n")
    loaded = load()
    assert (loaded.url.password, str(loaded.url)) == (SECRET, "postgresql://me:***@db/app")
    assert row(loaded, "password") == Row("password", "***", f"the secret {folder / 'tasktui_password'}")
    assert SECRET not in repr(loaded) + repr(loaded.describe())


def test_a_file_named_by_a_variable_holds_the_password(
    mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mounted(db_password=f"{SECRET}\n")
    monkeypatch.delenv("TASKTUI_SECRETS_DIR")
    monkeypatch.setenv("TASKTUI_URL", "postgresql://me@db/app")
    monkeypatch.setenv("TASKTUI_PASSWORD_FILE", str(folder / "db_password"))
    assert load().url.password == SECRET
    assert load(url="tasks.db").url.password is None, "a file has no password"
    monkeypatch.setenv("TASKTUI_URL", "postgresql://me:own@db/app")
    assert load().url.password == "own"


OTHER_USER = "import os; from runner.settings import load; load(); os.setgid(65534); os.setuid(65534); load()"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_secret_that_this_user_may_not_read_is_named() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        secret(folder, "tasktui_password", SECRET).chmod(0o440)
        environment = os.environ | {"TASKTUI_SECRETS_DIR": name}
        command = [sys.executable, "-c", OTHER_USER]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert f"the secrets in {folder} cannot be read: Permission denied (errno 13)" in done.stderr
    assert SECRET not in done.stderr


def test_a_secret_that_is_a_link_out_of_its_folder_is_refused(mounted: Callable[..., Path], tmp_path: Path) -> None:
    folder = mounted(tasktui_threads="3")
    assert load().threads == 3
    (folder / "tasktui_password").symlink_to(secret(tmp_path, "elsewhere", SECRET))
    message = refusal()
    assert f"the secret {folder / 'tasktui_password'}" in message
    assert f"it is a link to {tmp_path / 'elsewhere'}; set TASKTUI_PASSWORD_FILE instead" in message


def test_a_command_in_the_environment_provides_the_password(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(f"[profiles.dev]\nurl = 'postgresql://me@db/app'\npassword_command = {program('print(1)')}")
    monkeypatch.setenv("TASKTUI_PASSWORD_COMMAND", "printf 'own\\n'")
    loaded = load(profile="dev")
    assert loaded.url.password == "own"
    assert row(loaded, "password_command") == Row(
        "password_command", "***", "TASKTUI_PASSWORD_COMMAND in the environment"
    )
    monkeypatch.setenv("TASKTUI_PASSWORD", "two")
    assert "(TASKTUI_PASSWORD_COMMAND in the environment)" in (message := refusal(profile="dev"))
    assert "TASKTUI_PASSWORD in the environment is set too: remove one of them" in message


def test_a_password_in_the_file_is_rejected(config: WriteConfig) -> None:
    config("[profiles.dev]\nurl = 'postgresql://me@db/app'\npassword = 'hunter2'")
    message = refusal(profile="dev")
    assert "password of profile dev" in message
    assert SECRET not in message


def test_a_password_command_runs_again_for_a_failed_password_at_most_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    count.write_text("")
    script = tmp_path / "token.sh"
    script.write_text(f"echo x >> {count}; wc -l < {count} | tr -d ' '")
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    command = PasswordCommand(f"sh {script}", "here")
    assert (command.password, command.renew("1")) == ("1", None)
    now += 61
    assert command.renew("1") == "2"
    assert command.renew("1") == "2", "another connection has renewed it"
    assert command.renew("2") is None
    now += 61
    script.write_text("exit 1")
    assert command.renew("2") is None
    assert count.read_text() == "x\nx\n"


def test_sqlite_has_no_passwords(config: WriteConfig) -> None:
    config("[profiles.dev]\nurl = 'a.db'\npassword_command = 'pass show x'")
    assert "SQLite has no passwords" in refusal(profile="dev")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; print('hunter2'); print('hunter2', file=sys.stderr); sys.exit(3)", "exit status 3"),
        ("", "is empty or contains"),
        ("print(); print('hunter2')", "is empty or contains"),
        ("print('hunter2' + chr(0))", "control characters"),
        ("import sys; sys.stdout.buffer.write(b'hunter2' + bytes([255]))", "not UTF-8"),
    ],
)
def test_a_program_without_a_usable_password_is_reported_without_its_output(
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
        ("echo 'hunter2", "quotation mark is not closed"),
        ("no-such-program hunter2", "no-such-program cannot be started: No such file"),
        ("echo hunter2\0", "cannot be started"),
    ],
)
def test_a_program_that_cannot_start_is_reported_without_its_arguments(command: str, why: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        read_password(command, "here")
    assert why in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_program_runs_without_a_shell() -> None:
    assert read_password("echo $HOME; echo *", "here") == "$HOME; echo *"


def test_a_hanging_program_is_killed_even_if_its_child_keeps_the_pipe_open(tmp_path: Path) -> None:
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


def test_modules_are_separated_by_commas_in_each_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(handlers=("shop.tasks,mail", " reports ")).handlers == ("shop.tasks", "mail", "reports")
    monkeypatch.setenv("TASKTUI_HANDLERS", "shop.tasks, mail")
    assert load().handlers == ("shop.tasks", "mail")


def test_a_profile_argument_conflicts_with_another_url_in_the_environment(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config("default_profile = 'dev'\n[profiles.dev]\nurl = 'postgresql://me@dev/app'\n[profiles.bare]\nthreads = 2")
    monkeypatch.setenv("TASKTUI_URL", "postgresql://me:hunter2@prod/app")
    message = refusal(profile="dev")
    assert "TASKTUI_URL in the environment" in message
    assert "another database than the profile dev" in message
    assert SECRET not in message
    assert str(load().url) == str(load(profile="bare").url) == "postgresql://me:***@prod/app"
    monkeypatch.setenv("TASKTUI_URL", "postgresql://me:hunter2@dev/app")
    assert load(profile="dev").url.password == SECRET


def test_weak_protection_is_shown() -> None:
    assert row(load(), "tls") == Row("tls", "not needed", "derived from url")
    assert row(load(url="postgresql://db/app"), "tls") == Row("tls", "verify-full", "derived from url")
    weak = load(url="postgresql://db/app?sslmode=require")
    assert row(weak, "tls") == Row("tls", "require", "weaker than verify-full")
    assert weak.url.tls.weak


def all_texts(loaded: Settings) -> str:
    """All text forms of settings."""
    return f"{loaded!r} {loaded} {loaded.describe()} {vars(loaded)}"


def error_texts(error: RunnerError) -> str:
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
    source=st.sampled_from(["argument", "environment", "profile", "number"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_secret_from_any_source_is_shown(secret: str, form: str, source: str, config: WriteConfig) -> None:
    text = form.format(secret)
    config(f"[profiles.dev]\nurl = '{text}'" if source == "profile" else "")
    with pytest.MonkeyPatch.context() as environment:
        if source == "environment":
            environment.setenv("TASKTUI_URL", text)
        arguments = {
            "argument": {"url": text},
            "profile": {"profile": "dev"},
            "number": {"claim_batch_size": text, "poll_interval": text},
        }
        try:
            output = all_texts(load(**arguments.get(source, {})))
        except RunnerError as error:
            output = error_texts(error)
    assert "Secret" not in output


def test_settings_can_be_pickled() -> None:
    loaded = load(url="postgresql://me:hunter2@db/app", claim_batch_size=3)
    assert pickle.loads(pickle.dumps(loaded)) == loaded


RECEIVERS = (
    "ops=smtp://ops:hunter2@mail.example.com?from=a@example.com&to=b@example.com,hook=https://example.com/x#hunter2"
)


def test_receivers_and_the_ping_are_shown_without_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKTUI_ALERT_RECEIVERS", RECEIVERS)
    monkeypatch.setenv("TASKTUI_ALERT_PING", "https://example.com/ping/hunter2")
    loaded = load()
    assert parse_receiver(loaded.alert_receivers[0]).parts.password == "hunter2"
    assert row(loaded, "alert_receivers").value == "ops=smtp://mail.example.com, hook=https://example.com"
    assert row(loaded, "alert_ping").value == "https://example.com"
    assert "hunter2" not in repr(loaded)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hunter2", "a receiver has a name and an address"),
        ("ops=hunter2", "the address of receiver ops has no scheme or no host"),
        ("ops=smtp://", "the address of receiver ops has no scheme or no host"),
        ("ops=https://example.com:99999/hunter2", "the host or the port of receiver ops is not valid"),
        ("ops=https://a.example,ops=https://b.example", "two receivers have the name ops"),
    ],
)
def test_a_receiver_that_is_not_valid_is_refused_without_its_secrets(
    text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_ALERT_RECEIVERS", text)
    with pytest.raises(InvalidSettings) as caught:
        load()
    assert why in str(caught.value)
    assert "hunter2" not in str(caught.value)


KEYWORD_TYPES: dict[Any, Any] = {
    timedelta: Delay,
    ByteSize: int | str,
    DatabaseUrl: DatabaseUrl | str,
    Path: Path | str,
    tuple: Iterable[str],
}
"""The types of keywords by the type of the setting, if a setting accepts more than its type."""


def plain_type(annotation: Any) -> Any:
    """The type of a setting without its constraints and without None."""
    origin = get_origin(annotation)
    if origin in (Annotated, Union, UnionType):
        return plain_type(get_args(annotation)[0])
    return annotation if origin is Literal else origin or annotation


def test_type_checkers_know_the_settings_as_keywords() -> None:
    expected = {}
    for name in NAMES:
        annotation = Settings.model_fields[name].annotation
        plain = plain_type(annotation)
        expected[name] = KEYWORD_TYPES.get(plain, plain) | None
        if plain is int and NoneType in get_args(annotation):
            expected[name] |= str  # such as "none"
    assert get_type_hints(Keywords) == expected
