"""`runner work --reload` starts again after a change, and stops with its signal."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from runner.cli.reload import own_command, supervise
from runner.errors import PackageMissing

PROGRAM = """
import signal, sys, time
with open("starts", "a") as file:
    print({version}, file=file)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
{body}
"""


def write(folder: Path, version: int, body: str = "time.sleep(60)") -> None:
    (folder / "program.py").write_text(PROGRAM.format(version=version, body=body))


def until(folder: Path, starts: list[str]) -> None:
    """Wait until the program has started in these versions."""
    file, deadline = folder / "starts", time.monotonic() + 90
    while not file.exists() or file.read_text().split() != starts:
        assert time.monotonic() < deadline, starts
        time.sleep(0.02)


def test_a_change_starts_it_again_and_a_signal_ends_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 1)
    (tmp_path / ".venv").mkdir()

    def edit() -> None:
        until(tmp_path, ["1"])
        (tmp_path / ".venv" / "library.py").write_text("")  # is no reason to start again
        (tmp_path / "notes.txt").write_text("")
        write(tmp_path, 2, "raise SystemExit('broken')")
        until(tmp_path, ["1", "2"])
        write(tmp_path, 3)
        until(tmp_path, ["1", "2", "3"])
        os.kill(os.getpid(), signal.SIGTERM)

    editor = threading.Thread(target=edit)
    editor.start()
    before = signal.getsignal(signal.SIGTERM)
    assert supervise([sys.executable, "program.py"], tmp_path) == 7
    editor.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_command_is_repeated_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "runner", "work", "--reload", "-H", "shop"])
    assert own_command() == [sys.executable, "-m", "runner", "work", "-H", "shop"]


def test_the_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(PackageMissing, match=r"watchfiles is not installed, and --reload needs it.*tasktui\[reload\]"):
        supervise([sys.executable, "program.py"], tmp_path)
