"""Secrets: programs log in to a real server with the files and commands that containers and clouds provide."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.deploy.locked_server import PASSWORD, environment_of, locked, mounted, url_of
from tests.postgres import Server

__all__ = ["locked"]

pytestmark = pytest.mark.one_database

SUBMITS = """
import asyncio, sys
import psycopg
from shop import tasks
from runner.settings import password_command

password_command.RENEWAL_SECONDS = 0.0
submit = tasks.pack.submit if sys.argv[2] == "submit" else lambda: asyncio.run(tasks.pack.submit_async())
submit()
with psycopg.connect(sys.argv[1], autocommit=True) as owner:
    owner.execute("ALTER ROLE shop PASSWORD 'token 2'")
    owner.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'shop'")
submit()
submit()
"""


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = environment_of(folder, **environment)
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)


SLOW_SOURCES = [pytest.param(each, marks=pytest.mark.slow) for each in ("secrets folder", "url file", "command")]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["password file", *SLOW_SOURCES])
def test_every_source_of_a_password_logs_in(locked: Server, tmp_path: Path, source: str) -> None:
    url = url_of(locked)
    folder = mounted(tmp_path, tasktui_password=f"{PASSWORD}\n", whole_url=url.replace("@", ":correct%20horse@"))
    environment = {
        "password file": {"TASKTUI_URL": url, "TASKTUI_PASSWORD_FILE": str(folder / "tasktui_password")},
        "secrets folder": {"TASKTUI_URL": url, "TASKTUI_SECRETS_DIR": str(folder)},
        "url file": {"TASKTUI_URL_FILE": str(folder / "whole_url")},
        "command": {"TASKTUI_URL": url, "TASKTUI_PASSWORD_COMMAND": f"cat {folder / 'tasktui_password'}"},
    }[source]
    for words in (("migrate",), ("submit", "shop.pack"), ("work", "-H", "shop.tasks", "--until-idle")):
        done = run(tmp_path, "runner", *words, **environment)
        assert done.returncode == 0, done.stderr
    done = run(tmp_path, "runner", "check", "--json", "-H", "shop.tasks", **environment)
    assert PASSWORD not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("password", "refusal"),
    [({}, "no password supplied"), ({"TASKTUI_PASSWORD": "wrong"}, "password authentication failed")],
)
def test_a_login_without_its_password_is_told_where_to_give_it(
    locked: Server, tmp_path: Path, password: dict[str, str], refusal: str
) -> None:
    done = run(tmp_path, "runner", "tasks", TASKTUI_URL=url_of(locked), **password)
    assert done.returncode == 4
    assert "refuses the login" in done.stderr
    assert refusal in done.stderr
    assert "TASKTUI_PASSWORD_FILE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("submit", [pytest.param("submit", marks=pytest.mark.slow), "submit_async"])
def test_a_token_that_has_expired_is_renewed(locked: Server, tmp_path: Path, submit: str) -> None:
    url = url_of(locked)
    count = tmp_path / "count"
    count.write_text("")
    script = tmp_path / "token.sh"
    script.write_text(f'echo x >> "{count}"\n[ "$(wc -l < "{count}")" = 1 ] && echo "{PASSWORD}" || echo "token 2"\n')
    environment = {"TASKTUI_URL": url, "TASKTUI_PASSWORD_COMMAND": f"sh {script}"}
    try:
        assert run(tmp_path, "runner", "migrate", **environment).returncode == 0
        count.write_text("")
        done = run(tmp_path, sys.executable, "-c", SUBMITS, locked.url("shop"), submit, **environment)
        assert done.returncode == 0, done.stderr
    finally:
        with psycopg.connect(locked.url(), autocommit=True) as owner:
            owner.execute(f"ALTER ROLE shop PASSWORD '{PASSWORD}'".encode())
    assert count.read_text() == "x\nx\n"
