"""Submits many tasks from lines. A bad line does not affect the others."""

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.cli.exit_codes import print_stderr
from runner.errors import DatabaseRefused, DuplicateTask, InvalidInput, InvalidTask, RunnerError
from runner.model.task import NewTask, SubmitResult

BLOCK = 64 * 1024


class InputLine(NamedTuple):
    """One line.

    Args:
        number: counted from 1.
        text: the line without its end; None if it is too long or not UTF-8.
        problem: the reason for a missing text.
    """

    number: int
    text: str | None
    problem: str = ""


@contextmanager
def open_input(path: str) -> Iterator[int]:
    """Open a file, or standard input for `-`, and yield its descriptor.

    Raises:
        InvalidInput: the file cannot be read.
    """
    if path == "-":
        yield 0
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
        os.read(descriptor, 0)  # a folder can be opened but not read
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(why=f"cannot read {path}: {why}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_lines(descriptor: int, limit: int) -> Iterator[InputLine | None]:
    """Read lines as they arrive.

    Args:
        descriptor: a file or a pipe.
        limit: maximum length of a line in bytes; longer lines are skipped.

    Yields:
        Each line that is not blank, and None when reading on would block, so that the lines so far need not wait.
    """
    number, remainder, too_long = 0, b"", False
    while block := os.read(descriptor, BLOCK):
        *lines, remainder = (remainder + block).split(b"\n")
        for raw in lines:
            number += 1
            yield from _line(number, raw, limit if not too_long else -1)
            too_long = False
        if len(remainder) > limit:
            remainder, too_long = b"", True
        if not select.select([descriptor], [], [], 0)[0]:
            yield None
    if remainder or too_long:
        yield from _line(number + 1, remainder, limit if not too_long else -1)


def _line(number: int, raw: bytes, limit: int) -> Iterator[InputLine]:
    if len(raw) > limit:
        yield InputLine(number, None, f"longer than {max(limit, 0) or 'allowed'} bytes")
        return
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        yield InputLine(number, None, "not UTF-8 text")
        return
    if text:
        yield InputLine(number, text)


CHUNK = 2_000
"""Tasks per transaction."""


class BadLine(NamedTuple):
    """A rejected line and the reason."""

    line: int
    reason: str


@dataclass
class Intake:
    """Parses lines and submits their tasks in chunks.

    Args:
        read: parses a line, or raises an error that explains the problem.
        submit: submits tasks in one transaction.
    """

    read: Callable[[str], NewTask]
    submit: Callable[[list[NewTask]], SubmitResult]
    submitted: int = 0
    duplicates: int = 0
    """Tasks that existed already."""
    ids: tuple[int, int] | None = None
    """The first and the last id."""
    last_line: int = 0
    """The number of the last submitted line."""
    bad: list[BadLine] = field(default_factory=list)
    _chunk: list[tuple[int, NewTask]] = field(default_factory=list)

    def take(self, line: InputLine | None) -> None:
        """Add a line; None marks a pause in the input, which submits the tasks so far."""
        if line is None:
            self.flush()
            return
        try:
            if line.text is None:
                self._reject(line.number, line.problem)
            else:
                self._chunk.append((line.number, self.read(line.text)))
        except RunnerError as error:
            self._reject(line.number, str(error))
        if len(self._chunk) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Submit the tasks so far."""
        if self._chunk:
            chunk, self._chunk = self._chunk, []
            self._submit(chunk)

    def _submit(self, chunk: list[tuple[int, NewTask]]) -> None:
        try:
            result = self.submit([task for _, task in chunk])
        except (DatabaseRefused, DuplicateTask, InvalidTask) as error:
            # The database rejects one of them: halve the chunk until the task is alone.
            if len(chunk) == 1:
                self._reject(chunk[0][0], str(error))
                return
            self._submit(chunk[: len(chunk) // 2])
            self._submit(chunk[len(chunk) // 2 :])
            return
        new = [id for index, id in enumerate(result.ids) if index not in result.duplicates]
        self.submitted += len(new)
        self.duplicates += len(result.duplicates)
        if new:
            self.ids = (self.ids[0] if self.ids else new[0], new[-1])
        self.last_line = chunk[-1][0]

    def _reject(self, number: int, reason: str) -> None:
        self.bad.append(BadLine(number, reason))
        print_stderr(f"line {number}: {reason}")


@contextmanager
def progress(descriptor: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar for the reading of a file, if standard error is a terminal.

    Args:
        descriptor: the file or pipe.

    Yields:
        A function that updates the bar.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import Progress

    from runner.cli.output import console

    status = os.fstat(descriptor)
    regular = stat.S_ISREG(status.st_mode)
    with Progress(console=console(errors=True), transient=True) as bar:
        bar_task = bar.add_task("submitting", total=status.st_size if regular else None)
        yield lambda: bar.update(bar_task, completed=os.lseek(descriptor, 0, os.SEEK_CUR) if regular else 0)
