"""How commands end: codes, one line instead of a traceback, streams that are away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli.app import VERBS, build
from runner.cli.ending import Exit, ended
from runner.errors import DatabaseAway, TaskMovedOn
from tests.cli.conftest import PROGRAM, Call, program


def test_an_error_of_ours_ends_with_its_own_code_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise TaskMovedOn(id=7, seen=1, state="gone", found=2)

    assert ended(fail) == Exit.MOVED_ON
    assert capsys.readouterr().err.startswith("runner: Task 7 has changed")


def test_what_nobody_foresaw_is_said_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(lambda: 1 // 0) == Exit.ERROR
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "Traceback" not in said


def test_an_error_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise DatabaseAway(url="\x1b]0;title\x07", why="\u202egone")

    ended(fail)
    assert set("\x1b\x07\u202e").isdisjoint(capsys.readouterr().err)


def test_an_interrupt_is_no_error() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert ended(interrupted) == Exit.INTERRUPTED


WITHOUT_DATABASE = {"view", "save", "forget"}


def test_every_verb_of_the_table_exists_and_explains_itself(call: Call) -> None:
    for verb in VERBS:
        told = call(verb.name, "--help")
        assert told.code == 0, verb.name
        assert f"Usage: runner {verb.name}" in told.out
        assert ("--url" in told.out) is (verb.name not in WITHOUT_DATABASE), verb.name


def test_the_help_names_every_verb_and_every_exit_code(call: Call) -> None:
    told = call("--help").out
    assert all(f" {verb.name} " in told for verb in VERBS)
    assert all(f"\n{code:5}  " in told for code in Exit)


def test_without_arguments_the_help_is_shown(call: Call) -> None:
    assert call().out == call("--help").out


def test_a_mistyped_verb_is_answered_with_the_nearest_one(call: Call) -> None:
    told = call("sumbit")
    assert told.code == Exit.BAD_INPUT
    assert "did you mean 'submit'" in told.err


def test_an_option_before_its_verb_is_put_right(call: Call) -> None:
    told = call("--url", "sqlite:///x.db", "tasks")
    assert told.code == Exit.BAD_INPUT
    assert "behind the verb" in told.err


def test_a_mistyped_option_is_bad_input(call: Call) -> None:
    told = call("tasks", "--limmit", 3)
    assert told.code == Exit.BAD_INPUT
    assert "--limit" in told.err


@pytest.mark.parametrize("module", ["sqlalchemy", "alembic", "apscheduler", "textual"])
def test_asking_for_help_loads_nothing_heavy(module: str) -> None:
    code = f"import sys; from runner.cli.app import run; run(['--help']); sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_verbs_are_imported_when_they_are_called() -> None:
    build("tasks")
    code = "import sys; import runner.cli.app as app; app.build('tasks'); sys.exit('runner.cli.tasks' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reader_that_goes_away_is_not_complained_of(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run([PROGRAM, "--help"], stdout=writing, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (Exit.UNHEARD, b"")


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    assert ended.returncode == Exit.ERROR
    assert ended.stderr == b"runner: No space left on device\n"


def test_closed_streams_hurt_neither_the_command_nor_its_database(call: Call, tmp_path: Path) -> None:
    command = f"{PROGRAM} submit a.b '{{}}' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False, cwd=tmp_path).returncode == 0
    assert '"handler": "a.b"' in call("tasks", "--json").out


def test_signs_that_the_terminal_does_not_know_are_replaced(call: Call) -> None:
    call("submit", "a.b")
    told = program("tasks", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert told.returncode == 0
    assert "? ready" in told.stdout
