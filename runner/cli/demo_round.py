"""A round of the demo: source files of this Python, submitted as tasks, with their progress and results."""

import os
import socket
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    try:
        folder = platformdirs.user_cache_path("tasktui") / "demo"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home folder, or a read-only one
        return Path(tempfile.mkdtemp(prefix="tasktui-demo-"))
    return folder


class RoundProgress(NamedTuple):
    """The progress of a round.

    Args:
        submitted: tasks submitted so far.
        unfinished: tasks that have not finished.
        failures: failed attempts.
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
    """The tasks submitted by one run of the demo."""

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

_NOT_PYTHON = (
    *("bad_coding.py", "bad_coding2.py", "bad_syntax.py", "badsyntax_3131.py", "bom.py", "crlf.py"),
    *("different_encoding.py", "false_encoding.py", "py2_test_grammar.py"),
)
_NOT_UTF_8 = ("badsyntax_pep3120.py", "module_iso_8859_1.py", "module_koi8_r.py", "undecodable.py")
_TOO_LARGE = ("datetimetester.py", "test_typing.py", "too_large.py", "topics.py")
FAILING: Mapping[str, str] = {
    **dict.fromkeys(_NOT_PYTHON, PARSE),
    **dict.fromkeys(_NOT_UTF_8, COUNT),
    **dict.fromkeys(_TOO_LARGE, DIGEST),
}
"""Files that fail, and the handler that each fails in. Without this table a handler might get none of them."""

RETRY = "200ms,500ms"
"""The handlers' own retry plans suit real outages and are too slow to watch."""

MAX_ATTEMPTS = 3


def deal(sources: list[SourceFile], handlers: Mapping[str, Handler], by: str) -> list[NewTask]:
    """Make a task for each file. Files that fail come first, so that their retries overlap with the other tasks."""
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


SLOWEST = 5
MAX_DEAD = 1_000
MAX_REASONS = 100
"""Rows to read at most."""


@dataclass(frozen=True, slots=True)
class DemoTotal:
    """Counts of one handler's tasks.

    Args:
        unfinished: tasks that have not finished.
        retried: tasks that finished after more than one attempt.
        seconds: total duration of the last attempts of finished tasks.
    """

    handler: str
    tasks: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    unfinished: int = 0
    retried: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SlowTask:
    """One of the slowest tasks.

    Args:
        seconds: duration of its last attempt.
    """

    id: int
    handler: str
    key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class FailureReason:
    """A failure group: failed attempts of one handler that differ only in numbers and quoted values.

    Args:
        reason: error of one of the attempts.
    """

    handler: str
    reason: str
    attempts: int
    tasks: int


@dataclass(frozen=True, slots=True)
class DeadTask:
    """A dead task and its last error."""

    id: int
    handler: str
    key: str
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of a round."""

    totals: Sequence[DemoTotal]
    slowest: Sequence[SlowTask]
    reasons: Sequence[FailureReason]
    dead: Sequence[DeadTask]


async def read_findings(tx: Transaction, demo_round: Round) -> Findings:
    """Read the results of a round."""
    return Findings(
        await _totals(tx, demo_round),
        await _slowest(tx, demo_round),
        await _reasons(tx, demo_round),
        await _dead(tx, demo_round),
    )


async def _totals(tx: Transaction, demo_round: Round) -> list[DemoTotal]:
    task, history = tx.tables.task, tx.tables.history
    finished = sa.select(
        history.c.handler,
        *(_count_if(is_state(history.c.state, state)) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)),
        sa.literal(0),
        _count_if(history.c.attempt > 1),
        sa.func.coalesce(sa.func.sum(history.c.duration), 0.0),
    )
    unfinished = sa.select(task.c.handler, *[sa.literal(0)] * 3, sa.func.count(), sa.literal(0), sa.literal(0.0))
    by_handler: dict[str, list[Any]] = {}
    for query, table in ((finished, history), (unfinished, task)):
        for handler, *counts in await tx.rows(query.where(demo_round.owns(table)).group_by(table.c.handler)):
            sums = by_handler.setdefault(handler, [0] * len(counts))
            by_handler[handler] = [left + right for left, right in zip(sums, counts, strict=True)]
    return [DemoTotal(handler, sum(counts[:4]), *counts) for handler, counts in sorted(by_handler.items())]


async def _slowest(tx: Transaction, demo_round: Round) -> list[SlowTask]:
    history = tx.tables.history
    query = sa.select(history.c.id, history.c.handler, history.c.key, history.c.duration).where(
        demo_round.owns(history)
    )
    query = (
        query.where(history.c.duration.is_not(None)).order_by(history.c.duration.desc(), history.c.id).limit(SLOWEST)
    )
    return [SlowTask(*row) for row in await tx.rows(query)]


async def _reasons(tx: Transaction, demo_round: Round) -> list[FailureReason]:
    attempt = tx.tables.attempt
    ids = [sa.select(table.c.id).where(demo_round.owns(table)) for table in (tx.tables.task, tx.tables.history)]
    attempt_count, task_count = sa.func.count().label("attempts"), sa.func.count(attempt.c.task_id.distinct())
    query = (
        sa.select(attempt.c.handler, attempt.c.error_type, sa.func.min(attempt.c.message), attempt_count, task_count)
        .where(attempt.c.task_id >= demo_round.first, attempt.c.task_id.in_(sa.union_all(*ids)))
        .group_by(attempt.c.handler, attempt.c.error_type, attempt.c.fingerprint)
        .order_by(attempt_count.desc(), attempt.c.handler, sa.func.min(attempt.c.task_id))
        .limit(MAX_REASONS)
    )
    rows = await tx.rows(query)
    return [
        FailureReason(handler, f"{kind}: {text}" if text else kind, *counts) for handler, kind, text, *counts in rows
    ]


async def _dead(tx: Transaction, demo_round: Round) -> list[DeadTask]:
    history = tx.tables.history
    query = sa.select(history.c.id, history.c.handler, history.c.key, history.c.attempt, history.c.error)
    query = (
        query.where(demo_round.owns(history), is_state(history.c.state, State.DEAD))
        .order_by(history.c.id)
        .limit(MAX_DEAD)
    )
    return [DeadTask(*row) for row in await tx.rows(query)]


def _count_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((condition, 1)))
