"""The README: its commands run, its examples work, and its tables match the code."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runner.model.task import Shown
from runner.queries.task_list.row import STORED
from tests.conftest import on_postgresql, on_sqlite
from tests.pages import (
    DOCS,
    DOCUMENTED_URL,
    PROJECT,
    README,
    blocks,
    code,
    execute,
    follow,
    meant_for,
    save,
    shell_environment,
    table,
)

__all__ = ["shell_environment"]

CONFIGURATION = DOCS / "configuration.md"
MAX_LINES = 150


def count_by_state(url: str, folder: Path) -> list[tuple[str, int]]:
    """The count of finished tasks by state, and of live tasks."""
    query = "SELECT state, count(*) FROM task_history GROUP BY state UNION ALL SELECT 'live', count(*) FROM task"
    shell: Any
    with psycopg.connect(url) if url else closing(sqlite3.connect(folder / "tasktui.db")) as shell:
        return [(state, count) for state, count in shell.execute(query).fetchall()]


def insert(folder: Path, environment: dict[str, str]) -> None:
    statements = [block.text for block in blocks(README, "sql") if meant_for(block, environment)]
    assert statements != []
    for text in statements:
        execute(text, folder, environment)


def test_the_readme_is_one_page() -> None:
    assert len(README.read_text().splitlines()) < MAX_LINES


FEATURES = (
    *("transactions", "unique-keys", "handlers", "submitting", "schedules", "durable-work", "workflows", "chunks"),
    *("status-and-changes", "limits", "encryption", "testing", "deploy", "monitor", "other-words"),
)
"""Pages of features that a newcomer looks for."""


def test_the_readme_links_the_page_of_each_feature() -> None:
    linked = re.findall(r"\]\(docs/([\w-]+)\.md", README.read_text())
    assert set(FEATURES) - set(linked) == set()


def test_the_navigation_lists_every_page() -> None:
    pages = (PROJECT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", pages, re.MULTILINE)
    assert sorted(set(listed)) == sorted(listed)
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} <= set(listed)


def test_the_checks_run_the_commands_of_the_readme() -> None:
    checks = (PROJECT / ".ci" / "run").read_text().splitlines()
    (develop,) = blocks(README, "text", "Develop")
    assert develop.text.splitlines() == ["pip install uv", "uv sync --locked", "uv run pytest"]
    assert {"uv sync --locked", "uv run pytest"} <= set(checks)


def test_the_figure_of_the_readme_is_on_the_page_of_figures() -> None:
    figures = (DOCS / "performance.md").read_text()
    rate, ratio = re.findall(r"at ([\d,]+) a second .* ([\d.]+) times", README.read_text())[0]
    assert f"{rate} (" in figures
    assert f"| {ratio} (" in figures


@pytest.mark.slow
@on_sqlite
def test_the_commands_after_the_demo_show_and_retry_a_dead_task(
    tmp_path: Path, shell_environment: dict[str, str]
) -> None:
    trial, commands = blocks(README, "sh", "Try it")
    assert trial.text.splitlines()[1:] == ["runner demo", "tasktui"]  # .ci/release runs the line before them
    output = follow(f"runner demo --tasks 60\n{commands.text}", tmp_path, shell_environment)
    assert "60 tasks finished" in output
    assert "retry: 1 changed" in output


@on_sqlite
def test_the_example_submits_tasks_and_a_runner_executes_them(
    tmp_path: Path, shell_environment: dict[str, str]
) -> None:
    save(README, tmp_path)
    (commands,) = blocks(README, "sh", "Write a task")
    submit, mark, work = commands.text.rpartition("runner work")
    assert "\n103\n" in follow(submit, tmp_path, shell_environment)
    with closing(sqlite3.connect(tmp_path / "tasktui.db")) as shell:
        assert shell.execute("SELECT cents FROM customer_order").fetchall() == [(499,)]
        assert shell.execute("SELECT key FROM task WHERE id = 103").fetchall() == [("user-10",)]
    insert(tmp_path, shell_environment)
    follow(mark + work, tmp_path, shell_environment)
    assert count_by_state("", tmp_path) == [("succeeded", 103), ("live", 1)]


@pytest.mark.slow
@on_postgresql
def test_the_example_works_on_postgresql_as_the_configuration_page_sets_it_up(
    tmp_path: Path, shell_environment: dict[str, str]
) -> None:
    save(README, tmp_path)
    (commands,) = blocks(CONFIGURATION, "sh", "Set up PostgreSQL")
    assert DOCUMENTED_URL in commands.text
    prepare, mark, work = commands.text.replace(DOCUMENTED_URL, shell_environment["TASKTUI_URL"]).rpartition(
        "runner work"
    )
    follow(prepare, tmp_path, shell_environment)
    insert(tmp_path, shell_environment)
    follow(mark + work, tmp_path, shell_environment)
    assert count_by_state(shell_environment["TASKTUI_URL"], tmp_path) == [("succeeded", 1), ("live", 0)]


def test_the_states_of_the_concepts_match_the_code() -> None:
    states = [[code(shown), code(STORED[shown]), shown.description] for shown in Shown]
    assert table("shown", "## Task states", DOCS / "concepts.md") == states
