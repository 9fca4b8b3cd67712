"""The README keeps its word: its commands run, and its tables say what the code says."""

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from runner.cli.app import VERBS, build
from runner.cli.ending import MEANINGS
from runner.people.fields import FIELDS
from runner.people.filters import parse_filter
from runner.people.times import format_duration
from runner.policy.retry import parse_plan
from runner.settings import Settings, load
from runner.settings.values import NAMES
from runner.store.observe.tasks import STORED
from runner.task import MOVES, Shown
from tasktui.act.actions import ACTIONS
from tasktui.screens import MODES
from tests.conftest import on_postgresql, on_sqlite
from tests.shells import Refused, shell_of

PROJECT = Path(__file__).parent.parent
README = PROJECT / "README.md"
DOCS = PROJECT / "docs"
DOCUMENTED_URL = "postgresql://app@db.example.org/app"

AIMED = ("tasks", "retry", "terminate", "delay")
"""The verbs whose first word is a filter, or the number of a task."""

PROGRAMS = {
    # Everything is installed where the tests run, and a runner must end by itself.
    "uv": """#!/bin/sh
[ "$1" = run ] || exit 1
shift
case "$*" in *--until-idle*) ;; "runner work"*) set -- "$@" --until-idle ;; esac
exec "$@"
""",
    # Stands for the password manager of the documentation.
    "pass": "#!/bin/sh\nprintf 'a secret\\n'\n",
}


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]


def blocks(page: Path, language: str, section: str = "") -> list[Block]:
    """The fenced blocks of a page in one language, or only those under one heading of it."""
    text = page.read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = [Block(*match) for match in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]
    return [block for block in found if block.language == language]


def table(first_title: str, after: str, page: Path = README) -> list[list[str]]:
    """The rows of the table with that first title behind the words `after`, each cell without its blanks."""
    text = page.read_text().partition(after)[2]
    start = text.index(f"| {first_title} |")
    lines = text[start:].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines[2:]]


def code(text: object) -> str:
    return f"`{text}`"


@pytest.fixture
def surroundings(tmp_path: Path, database_url: str) -> dict[str, str]:
    """The environment of somebody who follows the README in an empty folder."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in PROGRAMS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RUNNER_", "PG"))}
    url = {"RUNNER_URL": database_url} if database_url.startswith("postgresql") else {}
    return kept | {"PATH": path, "HOME": str(tmp_path), "COLUMNS": "100"} | url


def follow(text: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a block of shell, which must not fail, and return what it prints."""
    done = subprocess.run(
        ["sh", "-eu", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def execute(statements: str, folder: Path, environment: dict[str, str]) -> None:
    """Type statements into psql or sqlite3."""
    shell_of(environment.get("RUNNER_URL") or f"sqlite:///{folder / 'tasktui.db'}")(statements)


def meant_for(block: Block, environment: dict[str, str]) -> bool:
    """Whether a block of SQL names the shell of this database, or both."""
    return ("psql" if "RUNNER_URL" in environment else "sqlite3") in block.first


def ended(url: str, folder: Path) -> list[tuple[str, int]]:
    """How many tasks have ended, by state, and how many are still there."""
    question = "SELECT state, count(*) FROM task_history GROUP BY state UNION ALL SELECT 'live', count(*) FROM task"
    shell: Any
    with psycopg.connect(url) if url else closing(sqlite3.connect(folder / "tasktui.db")) as shell:
        return [(state, count) for state, count in shell.execute(question).fetchall()]


def save_python(folder: Path) -> None:
    for block in blocks(README, "python"):
        (folder / block.first.removeprefix("# ")).write_text(block.text)


def insert(folder: Path, environment: dict[str, str]) -> None:
    for block in blocks(README, "sql"):
        if meant_for(block, environment):
            execute(block.text, folder, environment)


@on_sqlite
def test_a_handler_is_written_its_tasks_are_submitted_and_run(tmp_path: Path, surroundings: dict[str, str]) -> None:
    save_python(tmp_path)
    (commands,) = blocks(README, "sh", "Write a handler")
    submit, mark, work = commands.text.rpartition("uv run runner work")
    printed = follow(submit, tmp_path, surroundings)
    assert "Submitted task 103." in printed
    insert(tmp_path, surroundings)
    follow(mark + work, tmp_path, surroundings)
    assert ended("", tmp_path) == [("succeeded", 104), ("live", 2)]


@on_postgresql
def test_the_same_works_on_postgresql(tmp_path: Path, surroundings: dict[str, str]) -> None:
    save_python(tmp_path)
    (commands,) = blocks(README, "sh", "PostgreSQL")
    assert DOCUMENTED_URL in commands.text
    prepare, mark, work = commands.text.replace(DOCUMENTED_URL, surroundings["RUNNER_URL"]).rpartition(
        "uv run runner work"
    )
    follow(prepare, tmp_path, surroundings)
    insert(tmp_path, surroundings)
    follow(mark + work, tmp_path, surroundings)
    assert ended(surroundings["RUNNER_URL"], tmp_path) == [("succeeded", 2), ("live", 1)]


@on_sqlite
def test_a_newcomer_can_look_at_the_demo_and_change_it(tmp_path: Path, surroundings: dict[str, str]) -> None:
    start, look = blocks(README, "sh", "See it work")
    assert start.text.splitlines() == ["pip install uv && uv run runner demo", "uv run pytest"]
    printed = follow(look.text, tmp_path, surroundings)
    assert "60 tasks ended" in printed
    assert "retry: 1 changed" in printed


def test_the_checks_run_the_command_that_the_readme_names() -> None:
    assert "uv run pytest" in (PROJECT / ".ci" / "run").read_text().splitlines()


@on_sqlite
def test_the_configuration_file_of_the_readme_is_one(
    tmp_path: Path, surroundings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    (profiles,) = blocks(README, "toml")
    (tmp_path / "config.toml").write_text(profiles.text)
    assert str(load(config=tmp_path / "config.toml").url) == "sqlite:////home/me/tasks.db"
    real = load(profile="prod", config=tmp_path / "config.toml")
    assert (real.url.password, real.production, real.slots) == ("a secret", True, 200)


def test_every_screen_and_every_action_of_the_console_is_listed() -> None:
    assert table("key", "## Watch and mend") == [[code(mode.key), mode.title] for mode in MODES.values()]
    assert table("key", "| `8` |") == [[code(action.key), action.name] for action in ACTIONS.values()]


def test_every_setting_is_listed_with_its_default() -> None:
    defaults = [[code(row.name), row.value] for row in Settings().describe() if row.name in NAMES]
    assert [row[:2] for row in table("setting", "## Settings")] == defaults


def test_every_verb_is_listed() -> None:
    assert table("verb", "## Command line") == [[code(verb.name), verb.help] for verb in VERBS]


def test_every_exit_code_is_listed() -> None:
    assert table("exit code", "## Command line") == [[str(end.value), said] for end, said in MEANINGS.items()]


def test_every_state_is_listed_with_what_is_stored_for_it() -> None:
    listed = [row[:2] for row in table("shown", "### States")]
    assert sorted(listed) == sorted([code(shown), code(STORED[shown])] for shown in Shown)


def test_every_move_is_listed() -> None:
    moves = [
        [code(verb), ", ".join(code(state) for state in move.sources if state), code(move.target)]
        for verb, move in MOVES.items()
    ]
    assert [row[:3] for row in table("verb", "### States")] == moves


def test_the_retry_plans_wait_as_long_as_the_readme_says() -> None:
    for plan, *waits, _ in table("plan", "### Retry plans"):
        delays = [parse_plan(plan.strip("`")).delay(failed, 0.5) for failed in range(1, len(waits) + 1)]
        assert waits == ["-" if delay is None else format_duration(delay) for delay in delays], plan


def test_what_the_readme_links_to_is_there() -> None:
    for page in (README, *sorted(DOCS.glob("*.md"))):
        links = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in link]
        assert [link for link in links if not (page.parent / link).exists()] == [], page


HANDLED = """
import documented
from datetime import datetime, UTC

print(documented.charge_each([1]), documented.charge.submit(order=2, cents=0))
documented.import_file.submit(path="/tmp", item={"name": "x"}, since=datetime.now(UTC))
documented.sync.submit("berlin")
documented.crunch.options(key="last").submit(rows=3)
documented.pay.submit(order=7)
documented.count.submit(order=7)
documented.import_file.options(key="stock").submit(path="/tmp", item={"name": "y"})
documented.ordered(9)
documented.close_the_day("monday", [1, 2])
"""

ORDERS = (
    "CREATE TABLE orders (id integer PRIMARY KEY, paid boolean, seen integer); INSERT INTO orders VALUES (7, false, 0)"
)


@on_sqlite
def test_the_documented_handlers_work(tmp_path: Path, surroundings: dict[str, str]) -> None:
    module = "\n\n".join(block.text for block in blocks(DOCS / "handlers.md", "python"))
    (tmp_path / "documented.py").write_text(module)
    (tmp_path / "submit.py").write_text(HANDLED)
    with closing(sqlite3.connect(tmp_path / "tasktui.db")) as shell:
        shell.executescript(ORDERS)
    follow("python submit.py && runner work -H documented --until-idle", tmp_path, surroundings)
    with closing(sqlite3.connect(tmp_path / "tasktui.db")) as shell:
        ended = shell.execute("SELECT handler, state, result FROM task_history ORDER BY id").fetchall()
        paid = shell.execute("SELECT paid, seen FROM orders").fetchall()
    assert ended == [
        ("shop.charge", "succeeded", '"charged 5 for order 1"'),
        ("shop.charge", "dead", None),
        ("shop.import", "succeeded", '{"path":"/tmp","item":"x"}'),
        ("shop.sync", "dead", None),
        ("shop.crunch", "succeeded", "3"),
        ("shop.pay", "succeeded", None),
        ("shop.count", "succeeded", "1"),
        ("shop.import", "succeeded", '{"path":"/tmp","item":"y"}'),
        ("shop.charge", "succeeded", '"charged 5 for order 9"'),
        ("shop.ship", "succeeded", None),
        ("shop.thank", "succeeded", None),
        ("shop.charge", "succeeded", '"charged 5 for order 1"'),
        ("shop.charge", "succeeded", '"charged 5 for order 2"'),
        ("shop.report", "succeeded", '"monday: 0 of 2 failed"'),
        ("shop.celebrate", "succeeded", None),
    ]
    assert paid == [(1, 1)]


@pytest.fixture
def migrated(migrated_url: str, tmp_path: Path) -> dict[str, str]:
    """The environment of somebody whose tables are there."""
    if migrated_url.startswith("postgresql"):
        return {"RUNNER_URL": migrated_url}
    (tmp_path / "test.db").rename(tmp_path / "tasktui.db")
    return {}


def test_the_documented_sql_works(tmp_path: Path, migrated: dict[str, str]) -> None:
    ours = [block for block in blocks(DOCS / "sql.md", "sql") if meant_for(block, migrated)]
    for block in ours:
        if "refused" not in block.first:
            execute(block.text, tmp_path, migrated)
    for block in blocks(DOCS / "operating.md", "sql"):
        execute(block.text, tmp_path, migrated)


def test_what_the_documentation_calls_refused_is_refused(tmp_path: Path, migrated: dict[str, str]) -> None:
    refused = [block for block in blocks(DOCS / "sql.md", "sql") if "refused" in block.first]
    statements = [line for block in refused if meant_for(block, migrated) for line in block.text.splitlines()[1:]]
    assert len(statements) >= 9
    for statement in statements:
        with pytest.raises(Refused):
            execute(statement, tmp_path, migrated)


def documented_commands() -> Iterator[str]:
    """Every line of shell in the README and the documentation that calls our command."""
    for page in (README, *sorted(DOCS.glob("*.md"))):
        for block in blocks(page, "sh"):
            yield from re.findall(r"^(?:uv run )?runner (.*)$", block.text, re.MULTILINE)


@pytest.mark.parametrize("command", sorted(set(documented_commands())))
def test_a_documented_command_is_one(command: str) -> None:
    verb, *words = shlex.split(command)
    build(verb).parse_args([verb, *words], print_error=False, exit_on_error=False)
    if verb in AIMED and words:
        parse_filter(words[0], datetime.now(UTC), UTC)


def test_every_field_of_a_filter_is_documented() -> None:
    documented = [[*row[:2], row[2].strip("`")] for row in table("field", "## Filters", DOCS / "operating.md")]
    assert documented == [[code(field.name), field.help, field.examples] for field in FIELDS.values()]
