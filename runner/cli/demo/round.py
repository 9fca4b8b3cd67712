"""A round: source files of the Python that runs the demo, submitted as tasks, and their progress."""

import os
import socket
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema import is_state
from runner.db.transaction import Transaction
from runner.handlers.registry import Handler
from runner.model.task import NewTask, State
from runner.store.submit import submit_many

LIBRARY = Path(sysconfig.get_path("stdlib"))

FOREIGN = {"site-packages", "dist-packages", "__pycache__"}
"""Folders within the library that contain other packages, or no source."""

BROKEN = "test/tokenizedata"
"""Python's own test files that no parser accepts. Many distributions omit them."""

SUBSTITUTES = {
    "bad_syntax.py": b"def broken(:\n    pass\n",
    "bad_coding.py": b"# coding: uft-8\nprint('the coding line has a typo')\n",
    "undecodable.py": b"print('caf\xe9')\n",
    "too_large.py": b"# One of many lines that repeat this text.\n" * 6_500,
}
"""Files that fail, for a Python without the broken test files."""


class SourceFile(NamedTuple):
    """A source file.

    Args:
        path: absolute path.
        name: path relative to the library, with slashes.
    """

    path: Path
    name: str


def library(root: Path = LIBRARY) -> list[SourceFile]:
    """List the source files of the standard library.

    Args:
        root: folder of the library.

    Returns:
        The files in a fixed order that mixes small and large ones.
    """
    sources = [SourceFile(path, path.relative_to(root).as_posix()) for path in _files(root)]
    return sorted(sources, key=lambda source: (zlib.crc32(source.name.encode()), source.name))


def is_complete(sources: list[SourceFile]) -> bool:
    """True if the library includes its broken files."""
    return any(source.name.startswith(BROKEN) for source in sources)


def substitutes() -> list[SourceFile]:
    """Write substitutes for the broken files. They stay on disk because a task may be retried much later.

    Raises:
        OSError: no folder is writable.
    """
    folder = _folder()
    sources = [SourceFile(folder / name, f"demo/{name}") for name in SUBSTITUTES]
    for source in sources:
        source.path.write_bytes(SUBSTITUTES[source.path.name])
    return sources


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in FOREIGN]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _folder() -> Path:
    folder = platformdirs.user_cache_path("tasktui") / "demo"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home folder, or a read-only one
        return Path(tempfile.mkdtemp(prefix="tasktui-demo-"))
    return folder


class RoundProgress(NamedTuple):
    """The progress of a round.

    Args:
        submitted: tasks submitted so far.
        unfinished: tasks that have not finished.
        failures: failed attempts.
        dead: dead tasks.
    """

    submitted: int
    unfinished: int
    failures: int
    dead: int

    @property
    def finished(self) -> int:
        """Tasks that finished, successfully or not."""
        return self.submitted - self.unfinished


class Round:
    """The tasks submitted by one run of the demo.

    Args:
        database: the database.
    """

    def __init__(self, database: Database) -> None:
        self.by = f"runner demo, {socket.gethostname()} {os.getpid()}"
        self.first = 0
        """Lowest task id."""
        self.submitted = 0
        self._database = database

    async def submit(self, tasks: Sequence[NewTask], *, notify: bool = True) -> None:
        """Submit tasks in one transaction.

        Args:
            tasks: at least one task.
            notify: wake listening runners.
        """
        ids = await self._database.write(submit_many, tasks, notify=notify)
        self.first = self.first or ids[0]
        self.submitted += len(ids)

    async def progress(self) -> RoundProgress:
        """Read the progress of the round."""
        return RoundProgress(self.submitted, *await self._database.read(self._count))

    def owns(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """A condition for live or finished tasks of this round."""
        return (table.c.id >= self.first) & (table.c.submitted_by == self.by)

    async def _count(self, tx: Transaction) -> tuple[Any, ...]:
        task, history, attempt = tx.tables.task, tx.tables.history, tx.tables.attempt
        unfinished = sa.select(sa.func.count()).select_from(task).where(self.owns(task))
        dead = sa.select(sa.func.count()).where(is_state(history.c.state, State.DEAD), self.owns(history))
        # Attempts have no submitter: the bar also counts failures of a demo that runs at the same time.
        failures = sa.select(sa.func.count()).select_from(attempt).where(attempt.c.task_id >= self.first)
        counts = (query.scalar_subquery() for query in (unfinished, failures, dead))
        (row,) = await tx.rows(sa.select(*counts))
        return tuple(row)


PARSE, COUNT, DIGEST = HANDLERS = ("source.parse", "source.count", "source.digest")

FAILING: Mapping[str, str] = {
    # Not Python, or not in the encoding that it declares.
    "bad_coding.py": PARSE,
    "bad_coding2.py": PARSE,
    "bad_syntax.py": PARSE,
    "badsyntax_3131.py": PARSE,
    "bom.py": PARSE,
    "crlf.py": PARSE,
    "different_encoding.py": PARSE,
    "false_encoding.py": PARSE,
    "py2_test_grammar.py": PARSE,
    # Not in UTF-8.
    "badsyntax_pep3120.py": COUNT,
    "module_iso_8859_1.py": COUNT,
    "module_koi8_r.py": COUNT,
    "undecodable.py": COUNT,
    # Too large.
    "datetimetester.py": DIGEST,
    "test_typing.py": DIGEST,
    "too_large.py": DIGEST,
    "topics.py": DIGEST,
}
"""Files that fail, and the handler that each fails in. Without this table a handler might get none of them."""

RETRY = "200ms,500ms"
"""The handlers' own retry plans suit real outages and are too slow to watch."""

MAX_ATTEMPTS = 3


def deal(sources: list[SourceFile], handlers: Mapping[str, Handler], by: str) -> list[NewTask]:
    """Make a task for each file. Files that fail come first, so that their retries overlap with the other tasks.

    Args:
        sources: the files.
        handlers: the sample handlers by name.
        by: the submitter.
    """
    failing_first = sorted(sources, key=lambda source: source.path.name not in FAILING)
    return [_task(source, handlers[_handler_name(source)], by) for source in failing_first]


def _handler_name(source: SourceFile) -> str:
    return FAILING.get(source.path.name) or HANDLERS[zlib.crc32(source.name.encode()) % len(HANDLERS)]


def _task(source: SourceFile, handler: Handler, by: str) -> NewTask:
    return NewTask(
        handler=handler.name,
        payload=handler.signature.encode((), {"path": source.path}),
        queue=handler.defaults.queue,
        key=source.name,
        retry=RETRY,
        max_attempts=MAX_ATTEMPTS,
        submitted_by=by,
    )
