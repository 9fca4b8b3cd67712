"""Exit codes, error messages, and broken streams."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from runner.cli.app import CLI_COMMANDS, build
from runner.cli.exit_codes import Exit, exit_code_of
from runner.errors import DatabaseUnavailable, VersionConflict
from runner.model.task import NewTask
from tests.cli.conftest import PROGRAM, Call, Store
from tests.conftest import on_sqlite


def test_an_error_of_ours_has_its_own_code_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise VersionConflict(id=7, seen=1, state="gone", found=2)

    assert exit_code_of(fail) == Exit.CONFLICT
    assert capsys.readouterr().err.startswith("runner: Task 7 has changed")


def test_an_unexpected_error_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(lambda: 1 // 0) == Exit.ERROR
    output = capsys.readouterr().err
    assert "ZeroDivisionError" in output
    assert "Traceback" not in output


def test_a_cancelled_command_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def cancelled() -> int:
        raise asyncio.CancelledError

    assert exit_code_of(cancelled) == Exit.ERROR
    assert capsys.readouterr().err.startswith("runner: unexpected CancelledError. Set PYTHONDEVMODE=1")


def test_the_text_of_an_unexpected_error_ends_with_one_full_stop(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> int:
        raise RuntimeError("Event loop stopped before Future completed.")

    exit_code_of(stopped)
    assert capsys.readouterr().err.startswith(
        "runner: unexpected RuntimeError: Event loop stopped before Future completed. Set"
    )


def test_an_error_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise DatabaseUnavailable(url="\x1b]0;title\x07", why="\u202egone")

    exit_code_of(fail)
    assert set("\x1b\x07\u202e").isdisjoint(capsys.readouterr().err)


@on_sqlite
def test_a_file_that_is_no_database_is_named(cli: Call, tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text("root:x:0:0\n" * 100)
    result = cli("tasks", "--url", f"sqlite:///{file}")
    assert result.err.count("\n") == 1
    assert f"file is not a database ({file}). Stop all programs" in result.err


@on_sqlite
@pytest.mark.parametrize(
    ("words", "fact", "step"),
    [
        (("prune", "--archive", ""), "File exists (errno 17)", "name another folder"),
        (("show", 1, "--archive", ""), "Not a directory (errno 20)", "name a folder that runner prune --archive"),
        (("pull", 1, "--to", "/copy.db"), "Not a directory (errno 20)", "name another file"),
        (("incident", "--output", "/report.md"), "Not a directory (errno 20)", "name another file"),
    ],
)
def test_a_path_that_cannot_be_used_is_named_with_the_error_of_the_system_and_the_next_step(
    cli: Call, store: Store, tmp_path: Path, words: tuple[object, ...], fact: str, step: str
) -> None:
    store.submit(NewTask("a.b"))
    file = tmp_path / "passwd"  # "passwd: File exists" reads like a secret
    file.touch()
    *command, inside = words
    result = cli(*command, f"{file}{inside}")
    assert result.err.count("\n") == 1
    assert f"{file}{inside}" in result.err
    assert fact in result.err
    assert step in result.err
    assert file.read_bytes() == b""


def test_an_interrupt_has_its_own_exit_code() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert exit_code_of(interrupted) == Exit.INTERRUPTED


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("stats", "mail"), "Unexpected argument 'mail'. See runner stats --help."),
        (("submit", "a.b", "--payload", "{}"), "Unexpected argument '{}'. Write the payload without --payload. See"),
    ],
)
def test_an_unexpected_argument_is_named(call: Call, words: tuple[str, ...], text: str) -> None:
    result = call(*words)
    assert result.code == Exit.BAD_INPUT
    assert text in result.err


def test_ctrl_c_during_the_imports_prints_nothing(tmp_path: Path) -> None:
    stop = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    (tmp_path / "typing.py").write_text(stop)  # in the place of a module that the package imports first
    path = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([PROGRAM, "tasks"], env=path, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


WITHOUT_DATABASE = {"views"}


def test_every_command_of_the_table_exists_and_has_help(call: Call) -> None:
    for verb in CLI_COMMANDS:
        result = call(verb.name, "--help")
        assert result.code == 0, verb.name
        assert f"Usage: runner {verb.name}" in result.out
        assert ("--url" in result.out) is (verb.name not in WITHOUT_DATABASE), verb.name


def test_the_help_of_a_command_fits_eighty_columns() -> None:
    for verb in CLI_COMMANDS:
        command = getattr(import_module(f"runner.cli.{verb.module}"), verb.name)
        description = (inspect.getdoc(command) or "").partition("\nArgs:")[0]
        assert [line for line in description.splitlines()[1:] if len(line) > 80] == [], verb.name


def test_the_help_lists_every_command_and_exit_code(call: Call) -> None:
    result = call("--help").out
    assert all(f" {verb.name} " in result for verb in CLI_COMMANDS)
    assert all(f"\n{code:5}  " in result for code in Exit)


def test_without_arguments_the_help_is_shown(call: Call) -> None:
    assert call().out == call("--help").out


def test_a_mistyped_command_gets_a_suggestion(call: Call) -> None:
    result = call("sumbit")
    assert result.code == Exit.BAD_INPUT
    assert "did you mean 'submit'" in result.err


def test_an_option_before_the_command_is_rejected_with_advice(call: Call) -> None:
    result = call("--url", "sqlite:///x.db", "tasks")
    assert result.code == Exit.BAD_INPUT
    assert "put --url after the command" in result.err


def test_a_mistyped_option_is_bad_input(call: Call) -> None:
    result = call("tasks", "--limmit", 3)
    assert result.code == Exit.BAD_INPUT
    assert "--limit" in result.err


@pytest.mark.slow
def test_the_help_imports_no_heavy_package() -> None:
    code = "import sys; from runner.cli.app import run; run(['--help']); print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    modules = set(printed.splitlines()[-1].split())
    assert "runner.cli.app" in modules
    assert modules & {"sqlalchemy", "alembic", "apscheduler", "textual"} == set()


@pytest.mark.slow
def test_commands_are_imported_on_demand() -> None:
    build("tasks")
    code = "import sys; import runner.cli.app as app; app.build('tasks'); sys.exit('runner.cli.tasks' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runner", "stats", "--nonsense"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == Exit.BAD_INPUT
    assert "--nonsense" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["--help", "check", "stats"])
def test_a_broken_pipe_prints_no_error(command: str, tmp_path: Path) -> None:
    subprocess.run([PROGRAM, "migrate"], stderr=subprocess.PIPE, check=True, cwd=tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = subprocess.run([PROGRAM, command], stdout=writing, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    finally:
        os.close(writing)
    assert (process.returncode, process.stderr) == (Exit.BROKEN_PIPE, b"")


@pytest.mark.slow
def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    assert process.returncode == Exit.ERROR
    fact = b"runner: standard output: No space left on device (errno 28). "
    assert process.stderr == fact + b"The output is incomplete, and the command may have been executed.\n"


@pytest.mark.slow
def test_closed_streams_do_not_affect_the_command_or_its_database(call: Call, tmp_path: Path) -> None:
    command = f"{PROGRAM} submit a.b '{{}}' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False, cwd=tmp_path).returncode == 0
    assert '"handler": "a.b"' in call("tasks", "--json").out


@pytest.mark.slow
def test_characters_that_the_terminal_cannot_encode_are_replaced(call: Call) -> None:
    call("submit", "a.b")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run([PROGRAM, "tasks"], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0
    assert "? ready" in result.stdout


@pytest.mark.parametrize("term", ["handler:mail.send", "state:dead,cancelled", "error~Timeout", "payload.user:7"])
def test_a_negated_term_typed_as_an_option_gets_a_hint(call: Call, term: str) -> None:
    for verb in ("tasks", "retry"):
        result = call(verb, f"-{term}")
        assert (result.code, f"To negate a term of a filter, type '!{term}'." in result.err) == (Exit.BAD_INPUT, True)
    for other in ("-limit", "--handler:x", "-x:y"):
        assert "negate" not in call("tasks", other).err
