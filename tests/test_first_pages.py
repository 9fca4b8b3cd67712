"""The first pages of the site: a reader who follows them in an empty folder gets their results."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import on_postgresql, on_sqlite
from tests.pages import DOCS, DOCUMENTED_URL, RUNNER, blocks, follow, save, shell_environment

__all__ = ["shell_environment"]

INDEX, TUTORIAL, TOUR = DOCS / "index.md", DOCS / "tutorial.md", DOCS / "operators-tour.md"
WAIT_SECONDS = 60.0


def tab(title: str, folder: Path) -> list[str]:
    """Save the examples of a tab of the first page, and return its commands, without the installation."""
    section = INDEX.read_text().partition(f'=== "{title}"\n')[2].partition("\n=== ")[0].partition("\n## ")[0]
    page = folder / "tab.md"
    page.write_text(section)
    save(page, folder)
    install, *commands = [block.text for block in blocks(page, "sh")]
    assert install.startswith("pip install '.[console")
    return commands


@on_sqlite
def test_the_first_task_on_sqlite(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    commands = tab("SQLite", tmp_path)
    assert '"sent to ana"' in follow("\n".join(commands), tmp_path, shell_environment)


@pytest.mark.slow
@on_postgresql
def test_the_first_task_on_postgresql(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    commands = "\n".join(tab("PostgreSQL", tmp_path))
    assert DOCUMENTED_URL in commands
    commands = commands.replace(DOCUMENTED_URL, shell_environment["TASKTUI_URL"])
    assert '"sent to ana"' in follow(commands, tmp_path, shell_environment)


@contextmanager
def working(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """The second terminal: a runner."""
    with (folder / "work.log").open("wb") as log:
        runner = subprocess.Popen([RUNNER, "work", "-H", "tasks"], cwd=folder, env=environment, stderr=log)
        try:
            yield
        finally:
            runner.terminate()
            assert runner.wait(WAIT_SECONDS) == 0, (folder / "work.log").read_text()


def sees(command: str, folder: Path, environment: dict[str, str], *patterns: str) -> None:
    """Repeat a command until its output matches."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        output = follow(command, folder, environment)
        if all(re.search(pattern, output) for pattern in patterns):
            return
        assert time.monotonic() < until, f"{command}\n{output}\n{(folder / 'work.log').read_text()}"
        time.sleep(0.2)


@pytest.mark.slow
@on_sqlite
def test_the_tutorial(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    tasks, buy, more = (block.text for block in blocks(TUTORIAL, "python"))
    (tmp_path / "tasks.py").write_text(tasks)
    (tmp_path / "buy.py").write_text(buy)
    commands = [block.text for block in blocks(TUTORIAL, "sh")]
    migrate, sell, work, show, fail, look, mend, schedule = commands
    assert work == "runner work -H tasks\n"
    follow(migrate, tmp_path, shell_environment)
    assert "order 2" in follow(sell, tmp_path, shell_environment)
    with working(tmp_path, shell_environment):
        sees(show, tmp_path, shell_environment, "charged 499 for order 1")
        follow(fail, tmp_path, shell_environment)
        sees(
            "runner tasks",
            tmp_path,
            shell_environment,
            "4 +✗ dead .*cannot charge -5",
            "3 +↻ retrying",
        )
        follow(look, tmp_path, shell_environment)
        assert "runner undo" in follow(mend, tmp_path, shell_environment)
        sees("runner tasks", tmp_path, shell_environment, "4 +✓ succeeded", "3 +✓ succeeded")
    (tmp_path / "tasks.py").write_text(f"{tasks}\n\n{more}")
    with working(tmp_path, shell_environment):
        sees("runner schedules list", tmp_path, shell_environment, "close-the-day")
        follow(schedule, tmp_path, shell_environment)
        sees("runner tasks handler:shop.close", tmp_path, shell_environment, "✓ succeeded")
    total = "python -c \"import sqlite3; print(sqlite3.connect('tasktui.db').execute('SELECT * FROM day').fetchall())\""
    assert "[(4, 2544)]" in follow(total, tmp_path, shell_environment)


@pytest.mark.slow
@on_sqlite
def test_the_incident_of_the_tour_is_undone_and_mended(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    save(TOUR, tmp_path)
    (outage,) = [block.text for block in blocks(TOUR, "sh")]
    follow(outage, tmp_path, shell_environment)
    with working(tmp_path, shell_environment):
        sees("runner tasks state:dead --limit 300", tmp_path, shell_environment, "the payment gateway", "200 tasks")
    retried = follow("runner retry state:dead --yes 200 --spread 1h", tmp_path, shell_environment)
    undo = retried.partition("undo with: ")[2].strip()
    assert "200 changed" in follow(f"{undo} --yes 200", tmp_path, shell_environment)
    (tmp_path / "gateway.down").unlink()
    with working(tmp_path, shell_environment):
        assert "200 changed" in follow("runner retry state:dead --canary --yes 200", tmp_path, shell_environment)
        sees("runner tasks state:succeeded --limit 300", tmp_path, shell_environment, "200 tasks")
