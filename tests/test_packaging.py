"""The installed programs: optional packages, shell completion, and files that hide the package `runner`."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from runner.cli.app import CLI_COMMANDS
from runner.cli.exit_codes import Exit
from tests.cli.conftest import Call, _alone, call
from tests.conftest import SqliteDatabases
from tests.pages import DOCS, blocks

__all__ = ["_alone", "call"]


@pytest.mark.parametrize("program", ["runner", "tasktui"])
@pytest.mark.parametrize("namesake", ["runner.py", "runner/__init__.py"])
def test_a_file_that_hides_the_package_is_named_and_not_imported(tmp_path: Path, program: str, namesake: str) -> None:
    file = tmp_path / "app" / namesake
    file.parent.mkdir(parents=True)
    file.write_text("raise RuntimeError('imported')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "app")}
    command = [str(Path(sys.executable).with_name(program)), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == Exit.CONFIGURATION
    assert done.stderr.startswith(f"{program}: {file} hides the package runner of tasktui. Rename it")


BARE = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("cyclopts", "rich", "textual"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.modules["textual"] = None
import tasktui.__main__ as programs

program, *sys.argv[1:] = sys.argv[1:]
sys.exit(getattr(programs, program)())
"""


def bare(program: str, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of a program of an installation without extras."""
    done = subprocess.run(
        [sys.executable, "-c", BARE, program, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.parametrize(
    ("program", "arguments", "extra"),
    [
        ("main", (), "console"),
        ("main", ("--help",), "console"),
        ("main", ("work", "-H", "shop"), "runner"),
        ("run_command_line", ("tasks",), "runner"),
    ],
)
def test_a_bare_installation_names_the_command_to_type(program: str, arguments: tuple[str, ...], extra: str) -> None:
    code, text = bare(program, *arguments)
    assert code == Exit.CONFIGURATION
    assert text.endswith(f"is not installed. Run: pip install 'tasktui[{extra}]'")
    assert "\n" not in text


@pytest.mark.parametrize("program", ["main", "run_command_line"])
def test_a_bare_installation_prints_its_version(program: str) -> None:
    assert bare(program, "--version") == (0, version("tasktui"))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--version",), ("tasks", "--help"), ("work", "--help")])
def test_both_programs_run_every_command(arguments: tuple[str, ...]) -> None:
    outputs = []
    for program in ("runner", "tasktui"):
        command = [str(Path(sys.executable).with_name(program)), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        outputs.append(done.stdout.replace(f"Usage: {program}", "Usage: PROGRAM"))
    assert outputs[0] == outputs[1] != ""


@pytest.mark.parametrize("namesake", ["runner.py", "runner/__init__.py", "runner"])
def test_handlers_that_mean_their_own_module_runner_get_an_explanation(
    call: Call, tmp_path: Path, namesake: str
) -> None:
    file = tmp_path / (namesake if namesake.endswith(".py") else f"{namesake}/pool.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text("pool = []")
    (tmp_path / "shop_jobs.py").write_text("from runner import pool")
    result = call("work", "-H", "shop_jobs")
    assert result.code == Exit.CONFIGURATION
    assert f"Your {namesake} and tasktui's package have the same name: rename yours" in result.err
    assert "rename yours" not in call("work", "-H", "shop_jbs").err


def test_postgresql_without_its_driver_names_the_extra(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    result = call("tasks", "--url", "postgresql://127.0.0.1:1/nothing")
    assert result.code == Exit.CONFIGURATION
    assert "pip install 'tasktui[postgres]'" in result.err


ONLY_SUBMITS = """
import asyncio, importlib.abc, sys

extras = "aiosqlite alembic apscheduler cronsim cyclopts greenlet platformdirs rich textual".split()

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in extras:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import runner

@runner.schedule("0 3 * * *", id="nightly")
@runner.handler("shop.greet")
def greet(name: str = "Ada") -> str: ...

url, new = sys.argv[1:]
runner.connect(url=url)
task = greet.submit(name="Ada")
asyncio.run(greet.submit_async(name="Bob"))
for call in (lambda: task.result(timeout=0), lambda: runner.unfinished(greet, "x"), lambda: connect_new()):
    def connect_new():
        runner.connect(url=new)
        greet.submit(name="Eve")
    try:
        call()
    except runner.errors.RunnerError as error:
        print(type(error).__name__, error)
"""


def test_nine_packages_are_enough_to_submit_and_to_read_results(sqlite: SqliteDatabases, tmp_path: Path) -> None:
    url, new = sqlite.migrated(tmp_path), f"sqlite:///{tmp_path}/new.db"
    command = [sys.executable, "-c", ONLY_SUBMITS, url, new]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    timed_out, missing, tables = done.stdout.splitlines()
    assert timed_out.startswith("TimedOut Task 1 ")
    needs = "The package greenlet is not installed, and this call needs it. Run: pip install 'tasktui[runner]'."
    assert missing == f"PackageMissing {needs}"
    assert "creating the task tables needs it. Run: pip install 'tasktui[runner]', or run `runner migrate`" in tables


def test_time_zones_come_with_the_runner_on_a_system_without_any() -> None:
    program = str(Path(sys.executable).with_name("runner"))
    command = [program, "schedules", "preview", "--cron", "30 9 * * *", "--tz", "Europe/Berlin"]
    environment = os.environ | {"PYTHONTZPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "09:30:00 CE" in done.stdout, done.stderr


@pytest.mark.parametrize("shell", ["bash", *(pytest.param(shell, marks=pytest.mark.slow) for shell in ("fish", "zsh"))])
def test_a_shell_completes_every_command(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert call("--install-completion", "--shell", shell).code == Exit.OK
    text = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    assert not {verb.name for verb in CLI_COMMANDS if verb.name not in text}


@pytest.mark.slow
def test_the_example_of_the_page_for_new_projects_works(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for block in blocks(DOCS / "add-to-your-project.md", "python"):
        (tmp_path / block.first.removeprefix("# ")).write_text(block.text)
    command = [sys.executable, "-W", "error", "-c", "from shop.app import buy; print(buy(7))"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
    command = [sys.executable, "-m", "runner", "work", "-H", "shop.tasks", "--until-idle"]
    assert "confirm order 7" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
