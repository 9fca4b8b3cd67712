"""Database URLs: accepted forms, rejected forms, and no password in any output."""

import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InvalidUrl, PasswordInArguments
from runner.urls import DatabaseUrl, Host, async_url, parse_url, redacted, refuse_password, sync_url
from runner.urls.libpq import Tls, is_local, tls_for

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGSYSCONFDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))


def connect_arguments(url: str) -> dict[str, Any]:
    """The arguments that psycopg would receive."""
    engine = sa.create_engine(sync_url(url))
    arguments = engine.dialect.create_connect_args(engine.url)[1]
    return {name: value for name, value in arguments.items() if name != "context"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:///file.db", "file.db"),
        ("sqlite:///folder/file", "folder/file"),
        ("sqlite:////var/lib/file.db", "/var/lib/file.db"),
        ("SQLite:///file.db", "file.db"),
        ("sqlite+aiosqlite:///file.db", "file.db"),
        ("file.db", "file.db"),
        ("./my tasks.sqlite", "./my tasks.sqlite"),
        ("/var/lib/100%.sqlite3", "/var/lib/100%.sqlite3"),
        ("  file.db\n", "file.db"),
    ],
)
def test_a_sqlite_database_is_a_url_or_a_path(text: str, path: str) -> None:
    path = str(Path.cwd() / path)
    assert parse_url(text) == DatabaseUrl("sqlite", path)
    assert async_url(text).drivername == "sqlite+aiosqlite"
    assert sync_url(text).drivername == "sqlite+pysqlite"
    assert async_url(text).database == sync_url(text).database == path
    assert parse_url(text).file == Path(path)


def test_a_database_on_a_server_is_no_file() -> None:
    assert parse_url("postgresql://db/app.db").file is None


def test_a_tilde_is_expanded() -> None:
    assert (
        parse_url("~/tasks.db").database == parse_url("sqlite:///~/tasks.db").database == str(Path.home() / "tasks.db")
    )


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("postgresql://localhost/app", {"host": "localhost", "dbname": "app"}),
        ("postgres://localhost/app", {"host": "localhost", "dbname": "app"}),
        ("postgresql+psycopg://localhost/app", {"host": "localhost", "dbname": "app"}),
        ("postgresql+psycopg2://localhost/app", {"host": "localhost", "dbname": "app"}),
        ("postgresql+asyncpg://localhost/app", {"host": "localhost", "dbname": "app"}),
        ("postgresql://", {}),
        ("postgresql:///app", {"dbname": "app"}),
        ("postgresql://me@/app", {"user": "me", "dbname": "app"}),
        ("postgresql://me:@/app", {"user": "me", "dbname": "app"}),
        ("postgresql://m%40e:p%2F%3A%40s@[::1]:77/a%20b", {
            "user": "m@e", "password": "p/:@s", "host": "::1", "port": "77", "dbname": "a b",
        }),
        ("postgresql://me:a#b:c@/app", {"user": "me", "password": "a#b:c", "dbname": "app"}),
        ("postgresql://:5433/app", {"port": "5433", "dbname": "app"}),
        ("postgresql:///app?host=/run/pg&port=5433", {"host": "/run/pg", "port": "5433", "dbname": "app"}),
        ("postgresql://%2Frun%2Fpg/app", {"host": "/run/pg", "dbname": "app"}),
        ("postgresql:///?user=me&password=x%20y&dbname=app", {"user": "me", "password": "x y", "dbname": "app"}),
        ("postgresql://127.0.0.1:1,localhost/app", {"host": "127.0.0.1,localhost", "port": "1,", "dbname": "app"}),
        ("postgresql://127.0.0.1,localhost/app?port=7", {
            "host": "127.0.0.1,localhost", "port": "7,7", "dbname": "app",
        }),
        ("postgresql://localhost/app?connect_timeout=3&options=-c%20jit=off", {
            "host": "localhost", "dbname": "app", "connect_timeout": "3", "options": "-c jit=off",
        }),
        ("postgresql://db.example.org/app", {"host": "db.example.org", "dbname": "app", "sslmode": "verify-full"}),
        ("postgresql://db.example.org/app?sslmode=require", {
            "host": "db.example.org", "dbname": "app", "sslmode": "require",
        }),
    ],
)  # fmt: skip
def test_every_part_of_a_url_reaches_postgresql(text: str, arguments: dict[str, object]) -> None:
    assert connect_arguments(text) == arguments
    assert async_url(text).drivername == sync_url(text).drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("text", "shown", "why"),
    [
        ("mysql://me:hunter2@db/app", "mysql://***", "only SQLite and PostgreSQL"),
        ("postgresql+pg8000://me:hunter2@db/app", "postgresql+pg8000://***", "remove the driver"),
        ("hunter2", " ***: ", "no scheme"),
        ("hunter2 !://db", " ***: ", "only SQLite and PostgreSQL"),
        ("", " ***: ", "no scheme"),
        ("host=db password=hunter2 dbname=x.db", " ***: ", "neither a URL nor a file path"),
        ("file:hunter2.db", " ***: ", "neither a URL nor a file path"),
        ("sqlite://", "sqlite://***", "memory"),
        ("sqlite:///:memory:", "sqlite://***", "memory"),
        ("sqlite://hunter2.db", "sqlite://***", "three slashes"),
        ("sqlite:///file.db?key=hunter2", "sqlite://***", "SQLite options are settings"),
        ("postgresql://me:hun/ter2@db/app", "postgresql://***", "percent-encode special"),
        ("postgresql://me:hun@hunter2@db/app", "postgresql://***", "percent-encode special"),
        ("postgresql://me:1?hunter2@db/app", "postgresql://***", "percent-encode special"),
        ("postgresql://me:hunter2/app", "postgresql://***", "a port must be a number"),
        ("postgresql://me:hunter2%zz@db/app", "postgresql://***", "write %25"),
        ("postgresql://me:hunter2%ff@db/app", "postgresql://***", "not UTF-8"),
        ("postgresql://me:hunter2%0a@db/app", "postgresql://***", "control characters"),
        ("postgresql://me:hunter2\x00@db/app", "postgresql://***", "control characters"),
        ("postgresql://db:0/app", "postgresql://***", "1 to 65535"),
        ("postgresql://db:65536/app", "postgresql://***", "1 to 65535"),
        ("postgresql://db:\u0663/app", "postgresql://***", "1 to 65535"),
        ("postgresql://db:1:2/app", "postgresql://***", "host is not valid"),
        ("postgresql://a,b/app?port=1,2,3", "postgresql://***", "the number of ports differs"),
        ("postgresql://a/app?host=b", "postgresql://***", "set twice"),
        ("postgresql://a:1/app?port=1", "postgresql://***", "set twice"),
        ("postgresql://me:hunter2@a/app?password=hunter2", "postgresql://***", "password is set twice"),
        ("postgresql://a/app?sslmod=disable", "postgresql://***", "unknown"),
        ("postgresql://a/app?hunter2", "postgresql://***", "unknown"),
        ("postgresql://a/app?sslpassword=hunter2", "postgresql://***", "service file"),
        ("postgresql://a/app?sslmode=of", "postgresql://***", "sslmode must be one of"),
    ],
)
def test_an_invalid_url_is_rejected_without_repeating_it(text: str, shown: str, why: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        parse_url(text)
    assert shown in str(caught.value)
    assert why in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("file.db", f"sqlite:///{Path.cwd()}/file.db"),
        ("postgres://me:hunter2@db:5432/app?sslmode=require", "postgresql://me:***@db:5432/app?sslmode=require"),
        ("postgresql://db/app?password=hunter2", "postgresql://:***@db/app"),
        ("postgresql://[::1]:1,b/app", "postgresql://[::1]:1,b/app"),
        ("postgresql://%2Frun%2Fpg/app", "postgresql://%2Frun%2Fpg/app"),
        ("postgresql:///?service=orders", "postgresql:///?service=orders"),
    ],
)
def test_a_printed_url_omits_only_the_password(text: str, shown: str) -> None:
    assert redacted(text) == str(parse_url(text)) == shown
    assert repr(parse_url(text)) == f"DatabaseUrl({shown!r})"


words = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, categories=["L", "N", "P", "S"]), min_size=1)
secrets = words.map(lambda word: f"Secret{word}{word}")


@given(password=secrets, user=words, database=words)
def test_no_form_of_a_url_shows_its_password(password: str, user: str, database: str) -> None:
    text = f"postgresql://{quote(user, safe='')}:{quote(password, safe='')}@db/{quote(database, safe='')}"
    url = parse_url(text)
    assert (url.user, url.password, url.database) == (user, password, database)
    for shown in (str(url), repr(url), f"{url}", repr(async_url(url)), str(sync_url(url))):
        assert "Secret" not in shown
    assert parse_url(str(url)) == DatabaseUrl("postgresql", database, user, "***", (Host("db", None),))


@given(password=secrets, rest=st.sampled_from(["@db/app", "/app", "@", ""]))
def test_an_unencoded_password_is_parsed_or_not_repeated(password: str, rest: str) -> None:
    try:
        shown = redacted(f"postgresql://me:{password}{rest}")
    except InvalidUrl as error:
        shown = "".join(traceback.format_exception(error)) + repr(error) + str(error.fields)
    assert "Secret" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter2@db/app",
        "postgresql://:hunter2@db/app",
        "postgresql://db/app?password=hunter2",
        "postgresql://me:hun@ter2@db/app",
        "mysql://me:hunter2@db/app",
        "host=db password=hunter2",
    ],
)
def test_a_password_on_the_command_line_is_rejected_with_alternatives(text: str) -> None:
    with pytest.raises(PasswordInArguments, match=r"TASKTUI_URL.*PGPASSWORD.*pgpass.*password_command") as caught:
        refuse_password(text)
    assert SECRET not in str(caught.value)


def test_a_relative_path_keeps_its_folder_when_the_process_changes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = parse_url("sqlite:///file.db")
    monkeypatch.chdir("/")
    assert async_url(url).database == sync_url(url).database == str(url.file) == str(tmp_path / "file.db")


def test_a_relative_path_in_a_deleted_folder_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(InvalidUrl, match=r"the current folder cannot be read: No such file or directory \(errno 2\)"):
        parse_url("file.db")
    assert parse_url("/file.db").database == "/file.db"
    monkeypatch.chdir("/")


@pytest.mark.parametrize("text", ["file.db", "postgresql://me@db:5432/app?sslmode=require", "postgresql://me:@db/app"])
def test_a_url_without_a_password_is_accepted_on_the_command_line(text: str) -> None:
    refuse_password(text)


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1", "127.8.8.8", "::1", "/run/postgresql", "@abstract"])
def test_this_machine_is_local(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host", ["db", "localhost.example.org", "10.0.0.1", "0.0.0.0", "fe80::1", "127.0.0.1.example.org"]
)
def test_other_machines_are_not_local(host: str) -> None:
    assert not is_local(host)


@pytest.mark.parametrize(
    ("text", "mode", "weak"),
    [
        ("file.db", None, False),
        ("postgresql://localhost/app", None, False),
        ("postgresql://localhost/app?sslmode=disable", "disable", False),
        ("postgresql://db/app", "verify-full", False),
        ("postgresql://db/app?sslmode=verify-full", "verify-full", False),
        ("postgresql://db/app?sslmode=verify-ca", "verify-ca", True),
        ("postgresql://db/app?sslmode=disable", "disable", True),
        ("postgresql://localhost,db/app", "verify-full", False),
        ("postgresql://localhost/app?hostaddr=10.0.0.1", "verify-full", False),
        ("postgresql://db/app?hostaddr=127.0.0.1", None, False),
        ("postgresql:///app?service=missing", "verify-full", False),
    ],
)
def test_a_remote_server_must_be_verified_unless_the_url_sets_another_mode(
    text: str, mode: str | None, weak: bool
) -> None:
    tls = parse_url(text).tls
    assert (tls.mode, tls.weak) == (mode, weak)


def test_pgsslmode_sets_the_mode_unless_the_url_does() -> None:
    assert tls_for(["db"], {}, {"PGSSLMODE": "require"}) == Tls(local=False, sslmode="require")
    assert tls_for(["db"], {"sslmode": "verify-ca"}, {"PGSSLMODE": "disable"}).mode == "verify-ca"


def test_a_host_from_the_environment_counts() -> None:
    assert tls_for([], {}, {"PGHOST": "db"}) == Tls(local=False)
    assert tls_for(["localhost"], {}, {"PGHOST": "db"}) == Tls(local=True)
    assert tls_for([], {}, {"PGHOST": "db", "PGHOSTADDR": "127.0.0.1"}) == Tls(local=True)


@pytest.mark.parametrize(
    ("section", "tls"),
    [
        ("[orders]\nhost=db\nuser=100%sure\n", Tls(local=False)),
        ("# ours\n[orders]\nhost = localhost\n", Tls(local=True)),
        ("[orders]\nhost=db\nsslmode=require\n", Tls(local=False, sslmode="require")),
        ("[other]\nhost=localhost\n", Tls(local=False)),
        ("not a service file", Tls(local=False)),
    ],
)
def test_a_service_provides_the_host(section: str, tls: Tls, tmp_path: Path) -> None:
    (tmp_path / "services").write_text(section)
    environ = {"PGSERVICEFILE": str(tmp_path / "services")}
    assert tls_for([], {"service": "orders"}, environ) == tls
    assert tls_for([], {}, {**environ, "PGSERVICE": "orders"}) == tls


def test_a_service_is_also_read_from_the_system_folder(tmp_path: Path) -> None:
    (tmp_path / "pg_service.conf").write_text("[orders]\nhost=localhost\n")
    environ = {"PGSERVICEFILE": str(tmp_path / "missing"), "PGSYSCONFDIR": str(tmp_path)}
    assert tls_for([], {"service": "orders"}, environ) == Tls(local=True)
