"""docs/testing.md: its examples work unchanged, and so does the plugin for pytest."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import DOCS, save


@pytest.mark.slow
def test_the_documented_tests_pass(tmp_path: Path) -> None:
    save(DOCS / "testing.md", tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:asyncio",
        "-W",
        "error",
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout


def pytest_of(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio"]
    return subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_plugin_of_pytest_loads_nothing_until_a_test_asks_for_its_fixture(tmp_path: Path) -> None:
    test = (
        "import sys\ndef test() -> None:\n    assert not {'runner', 'sqlalchemy', 'tasktui.app'} & set(sys.modules)\n"
    )
    (tmp_path / "test_nothing.py").write_text(test)
    ran = pytest_of(tmp_path, "-W", "error")
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_project_with_a_module_runner_keeps_its_tests_and_the_fixture_names_it(tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text("RUNS = 1\n")
    (tmp_path / "test_own.py").write_text("import runner\ndef test() -> None:\n    assert runner.RUNS\n")
    (tmp_path / "test_tasks.py").write_text("def test(task_store: object) -> None: ...\n")
    ran = pytest_of(tmp_path)
    assert "1 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert f"{tmp_path / 'runner.py'} hides the package runner of tasktui. Rename it" in ran.stdout
    assert "Traceback" not in ran.stdout
