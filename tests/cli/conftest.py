"""Fixtures that run the command line, in this process or as a program."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest

from runner.cli.app import run
from runner.cli.exit_codes import exit_code_of
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.model.outcome import Outcome
from runner.model.task import NewTask
from runner.store.submit import submit_many
from tests.databases import use
from tests.programs import Program
from tests.store.runners import Runner

T = TypeVar("T")

PROGRAM = Path(sys.executable).with_name("runner")
WAIT_SECONDS = 90.0


@dataclass(frozen=True)
class CallResult:
    """The exit code and output of a call."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., CallResult]


@pytest.fixture(autouse=True)
def _alone(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in this process."""

    def call(*arguments: object) -> CallResult:
        code = exit_code_of(lambda: run([str(argument) for argument in arguments]))
        captured = capsys.readouterr()
        return CallResult(code, captured.out, captured.err)

    return call


@pytest.fixture
def cli(call: Call, migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command line in this process, with a migrated database."""
    monkeypatch.setenv("TASKTUI_URL", migrated_url)
    return call


@dataclass(frozen=True)
class Store:
    """Direct access to the database of `cli`."""

    url: str

    def use(self, work: Callable[[Database], Awaitable[T]]) -> T:
        return use(self.url, work)

    def write(self, verb: Callable[[Transaction], Awaitable[T]]) -> T:
        return self.use(lambda database: database.write(verb))

    def claim(self, *handlers: str, outcome: Outcome | None = None) -> int:
        """Claim all due tasks, settle them if there is an outcome, and return the runner's id."""

        async def work(database: Database) -> int:
            runner = await Runner.enter(database, *handlers, host="web-1")
            for task in await runner.claim():
                if outcome is not None:
                    await runner.end(task, outcome)
            return runner.id

        return self.use(work)

    def submit(self, *tasks: NewTask) -> list[int]:
        return self.write(lambda tx: submit_many(tx, tasks))

    def tasks(self) -> list[dict[str, Any]]:
        async def read(tx: Transaction) -> list[dict[str, Any]]:
            rows = await tx.execute(tx.tables.task.select().order_by(tx.tables.task.c.id))
            return [dict(row) for row in rows.mappings()]

        return self.write(read)


@pytest.fixture
def store(migrated_url: str) -> Store:
    return Store(migrated_url)


class Running:
    """The command line in a process of its own, which is observed while it runs.

    Args:
        arguments: of the command line.
        folder: for the files with its output.
        terminal: path of the terminal for its input and its errors; empty for none.
    """

    def __init__(self, *arguments: object, folder: Path, terminal: str = "") -> None:
        self._log, self._errors = folder / "output", Path(terminal or folder / "errors")
        self.process = Program(
            "runner",
            *map(str, arguments),
            log=self._log,
            errors=self._errors,
            source=Path(terminal or os.devnull),
            directory=Path.cwd(),
            environment=os.environ,
        )

    @property
    def errors(self) -> str:
        """Its log so far."""
        return self._errors.read_text()

    def wait_for_output(self, text: str) -> None:
        """Wait until the process has printed a text."""
        self._wait_for(text, self._log)

    def wait_for_log(self, text: str) -> None:
        """Wait until the process has logged a text."""
        self._wait_for(text, self._errors)

    def _wait_for(self, text: str, file: Path) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (file.exists() and text in file.read_text()):
            assert self.process.poll() is None, self._errors.read_text()
            assert time.monotonic() < deadline, text
            time.sleep(0.01)

    def wait(self) -> CallResult:
        """Wait for the end of the process."""
        code = self.process.wait(WAIT_SECONDS)
        return CallResult(code, self._log.read_text(), self._errors.read_text() if self._errors.is_file() else "")


@contextmanager
def running(*arguments: object) -> Iterator[Running]:
    """Run the command line in a process of its own during the block."""
    with TemporaryDirectory() as folder:
        begun = Running(*arguments, folder=Path(folder))
        try:
            yield begun
        finally:
            begun.process.kill()


def answered(question: str, answer: bytes | Callable[[], object], *arguments: object) -> CallResult:
    """Run the command line on a terminal, and answer its question there; its errors are the text on the terminal.

    Args:
        question: the text to wait for.
        answer: typed then; or a function that is called instead.
        arguments: of the command line.
    """
    ours, theirs = pty.openpty()
    with TemporaryDirectory() as folder:
        asked = Running(*arguments, folder=Path(folder), terminal=os.ttyname(theirs))
        try:
            output = b""
            while question.encode() not in output:
                assert select([ours], [], [], WAIT_SECONDS)[0], output
                output += os.read(ours, 1024)
            if callable(answer):
                answer()
            else:
                os.write(ours, answer)
            result = asked.wait()
            while select([ours], [], [], 0)[0]:
                output += os.read(ours, 1024)
            return replace(result, err=output.decode().replace("\r\n", "\n"))
        finally:
            asked.process.kill()
            os.close(theirs)
            os.close(ours)


def program(
    *arguments: object, env: Mapping[str, str] = os.environ, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own.

    Args:
        arguments: of the command line.
        env: all of its environment variables.
        stdin: its standard input.
        cwd: its working directory; None for that of this process.
    """
    words = [str(argument) for argument in arguments]
    with TemporaryDirectory() as folder:
        source, log, errors = (Path(folder, name) for name in ("input", "output", "errors"))
        source.write_text(stdin)
        process = Program(
            "runner", *words, log=log, errors=errors, source=source, directory=cwd or Path.cwd(), environment=env
        )
        try:
            code = process.wait(WAIT_SECONDS)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, code, log.read_text(), errors.read_text())
