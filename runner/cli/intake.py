"""Intake: many tasks from lines into the database; a bad line costs no good one."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.cli.ending import complain
from runner.cli.lines import Line
from runner.errors import DatabaseRefused, DuplicateTask, InvalidTask, RunnerError
from runner.task import NewTask, Receipt

CHUNK = 2_000
"""Tasks that are submitted in one transaction."""


class Bad(NamedTuple):
    """A line that became no task, and why."""

    line: int
    reason: str


@dataclass
class Intake:
    """Takes lines in.

    Args:
        read: makes a line a task, or raises what is wrong with it.
        submit: puts tasks into the database in one transaction, and tells what became of them.
    """

    read: Callable[[str], NewTask]
    submit: Callable[[list[NewTask]], Receipt]
    submitted: int = 0
    duplicates: int = 0
    """Tasks that were there already."""
    ids: tuple[int, int] | None = None
    """The first and the last id."""
    last_line: int = 0
    """The number of the last line whose task is in the database."""
    bad: list[Bad] = field(default_factory=list)
    _batch: list[tuple[int, NewTask]] = field(default_factory=list)

    def take(self, line: Line | None) -> None:
        """Take a line; None stands for a pause, in which what is there is submitted."""
        if line is None:
            self.flush()
            return
        try:
            if line.text is None:
                self._refuse(line.number, line.problem)
            else:
                self._batch.append((line.number, self.read(line.text)))
        except RunnerError as error:
            self._refuse(line.number, str(error))
        if len(self._batch) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Submit what has been taken."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._submit(batch)

    def _submit(self, batch: list[tuple[int, NewTask]]) -> None:
        try:
            receipt = self.submit([task for _, task in batch])
        except (DatabaseRefused, DuplicateTask, InvalidTask) as error:
            # One is not to the database's liking, or no duplicate, or waits for what is not: halve until it is alone.
            if len(batch) == 1:
                self._refuse(batch[0][0], str(error))
                return
            self._submit(batch[: len(batch) // 2])
            self._submit(batch[len(batch) // 2 :])
            return
        new = [id for place, id in enumerate(receipt.ids) if place not in receipt.duplicates]
        self.submitted += len(new)
        self.duplicates += len(receipt.duplicates)
        if new:
            self.ids = (self.ids[0] if self.ids else new[0], new[-1])
        self.last_line = batch[-1][0]

    def _refuse(self, number: int, reason: str) -> None:
        self.bad.append(Bad(number, reason))
        complain(f"line {number}: {reason}")


@contextmanager
def progress(descriptor: int) -> Iterator[Callable[[], None]]:
    """Show on a terminal how far the reading of a file has come.

    Args:
        descriptor: of the file or pipe that is read.

    Yields:
        A function to call now and then.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import Progress

    from runner.cli.printing import console

    status = os.fstat(descriptor)
    regular = stat.S_ISREG(status.st_mode)
    with Progress(console=console(errors=True), transient=True) as bar:
        work = bar.add_task("submitting", total=status.st_size if regular else None)
        yield lambda: bar.update(work, completed=os.lseek(descriptor, 0, os.SEEK_CUR) if regular else 0)
