"""The Django app: the test suite of a real project passes on each database, run by `manage.py test`."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import django
import pytest

from runner.cli.app import build
from tests.conftest import on_sqlite
from tests.pages import DOCS, blocks
from tests.test_transactions_page import django_database

PROJECT = Path(__file__).parent / "project"
PAGE = DOCS / "django.md"
HAS_TASKS = django.VERSION >= (6, 0)


def manage(
    *arguments: str, database: dict[str, object], code: int = 0, folder: Path = PROJECT, **environment: str
) -> str:
    """Run a command of the project, and return what it prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TASKTUI_", "PG"))}
    variables = {"DJANGO_DATABASE": json.dumps(database), "COLUMNS": "120", **environment}
    command = [sys.executable, "-W", "error", "manage.py", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=inherited | variables, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def database(database_url: str, tmp_path: Path) -> dict[str, object]:
    values = django_database(database_url)
    test = f"{values['NAME']}_django" if database_url.startswith("postgresql") else str(tmp_path / "tests.sqlite3")
    return {**values, "TEST": {"NAME": test}}


@pytest.fixture
def runner_settings(database_url: str) -> dict[str, object]:
    """The setting TASKTUI: on PostgreSQL the tables have a prefix."""
    return {"TABLE_PREFIX": "shop_"} if database_url.startswith("postgresql") else {}


@pytest.mark.slow
def test_the_suite_of_a_django_project_passes(database: dict[str, object], runner_settings: dict[str, object]) -> None:
    manage("test", "--noinput", database=database, DJANGO_RUNNER=json.dumps(runner_settings))


@pytest.mark.slow
@on_sqlite
def test_migrate_creates_tables_that_the_command_line_uses(database: dict[str, object]) -> None:
    assert "Applied revision" in manage("migrate", database=database)
    assert "Submitted task 1" in manage("runner", "submit", "shop.ship", '{"order": 1}', database=database)
    listed = manage("runner", "tasks", "state=waiting", "--settings", "project_settings", database=database)
    assert "shop.ship" in listed


DOCUMENTED_SETTINGS = """
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "secret"
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
SILENCED_SYSTEM_CHECKS = ["admin.E403", "admin.E408", "admin.E409", "admin.E410"]
"""


@pytest.fixture
def documented_project(tmp_path: Path) -> Path:
    """The project of docs/django.md, in the folder of the test."""
    modules = {"settings.py": DOCUMENTED_SETTINGS, "shop/__init__.py": ""}
    for block in blocks(PAGE, "python"):
        if "task import" in block.text or "django.tasks" in block.text or "TASKS" in block.text:
            name = {"# shop/tasks.py": "shop/tasks.py"}.get(block.first, "settings.py") if HAS_TASKS else ""
        elif block.first.startswith("# "):
            name = block.first.removeprefix("# ")
        else:
            name = "settings.py" if block.first[:1].isupper() else ""
        modules[name] = modules.get(name, "") + "\n" + block.text
    modules.pop("", None)
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "manage.py").write_text((PROJECT / "manage.py").read_text().replace("project_settings", "settings"))
    return tmp_path


@pytest.mark.slow
def test_the_documented_project_passes_its_tests(documented_project: Path) -> None:
    output = manage("test", "--noinput", database={}, folder=documented_project)
    assert "Ran 4 tests" in output


def test_every_documented_command_is_valid() -> None:
    commands = re.findall(r"^\$ python manage.py runner (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 5
    for verb, *arguments in map(shlex.split, commands):
        build(verb).parse_args([verb, *arguments], print_error=False, exit_on_error=False)
