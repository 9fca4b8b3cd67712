"""The PostgreSQL server of the tests."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.postgres import Server, ServerFailed, create_database, drop_database, find_programs
from tests.postgres.programs import BIN_VARIABLE

PROJECT = Path(__file__).parent.parent
WAIT_SECONDS = 90.0

START_AND_WAIT = """
from tests.postgres import Server, find_programs

with Server(find_programs()) as server:
    print(server.url(), flush=True)
    input()
"""


@pytest.fixture(scope="module")
def programs() -> Path:
    folder = find_programs()
    if folder is None:
        pytest.skip("there are no programs of PostgreSQL on this machine")
    return folder


@pytest.fixture(scope="module")
def server(programs: Path) -> Iterator[Server]:
    with Server(programs) as running:
        yield running


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("end", [Server.kill9, Server.stop], ids=["killed", "stopped"])
def test_a_restarted_server_keeps_its_url_and_committed_data(server: Server, end: Callable[[Server], None]) -> None:
    url = create_database(server)
    query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    end(server)
    with pytest.raises(psycopg.OperationalError):
        query(url, "SELECT 1")
    server.start()
    assert query(url, "SELECT answer FROM kept") == [(42,)]


def test_a_copied_database_has_the_templates_data_and_changes_independently(server: Server) -> None:
    template = create_database(server)
    query(template, "CREATE TABLE kept AS SELECT 42 AS answer")
    copy = create_database(server, template)
    query(copy, "UPDATE kept SET answer = 43")
    assert query(template, "SELECT answer FROM kept") == [(42,)]
    assert query(copy, "SELECT answer FROM kept") == [(43,)]


def test_a_database_in_use_can_be_dropped(server: Server) -> None:
    url = create_database(server)
    with psycopg.connect(url) as forgotten:
        drop_database(server, url)
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("SELECT 1")


def test_the_server_uses_an_unusual_time_zone(server: Server) -> None:
    assert query(server.url(), "SHOW timezone") == [("Asia/Kathmandu",)]


@pytest.mark.slow
def test_no_server_outlives_killed_tests(programs: Path) -> None:
    tests = subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert tests.stdout is not None
    url = tests.stdout.readline().strip()
    [(data,)] = query(url, "SHOW data_directory")
    tests.send_signal(signal.SIGKILL)
    tests.communicate()
    wait_until_gone(Path(str(data)).parent)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        query(url, "SELECT 1")


@pytest.mark.slow
def test_a_server_that_cannot_start_reports_the_reason_and_leaves_nothing(programs: Path) -> None:
    broken = Server(programs, max_connections="many")
    with pytest.raises(ServerFailed, match="max_connections"), broken:
        pass
    assert not broken.home.exists()


def test_a_folder_without_the_programs_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(BIN_VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError, match=BIN_VARIABLE):
        find_programs()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_programs_in_a_private_directory_run_from_a_copy(programs: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    package = programs.parent.parent
    shutil.copytree(programs.parent, closed / package.name / programs.parent.name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, closed / libraries.name)
    closed.chmod(0o700)
    with Server(closed / package.name / programs.parent.name / "bin") as server:
        assert query(server.url(), "SELECT 1") == [(1,)]


def wait_until_gone(path: Path) -> None:
    give_up = time.monotonic() + WAIT_SECONDS
    while path.exists():
        assert time.monotonic() < give_up, f"{path} is still there"
        time.sleep(0.02)
