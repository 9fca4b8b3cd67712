"""`runner demo`: submits the files of the standard library as tasks, runs them with a progress bar, and reports."""

import asyncio
import contextlib
import logging
import platform
import random
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from runner.cli.demo_round import (
    HANDLERS,
    LIBRARY,
    DeadTask,
    DemoTotal,
    FailureReason,
    Findings,
    Round,
    RoundProgress,
    SlowTask,
    SourceFile,
    deal,
    is_complete,
    library,
    read_findings,
    substitutes,
)
from runner.cli.exit_codes import Interruption
from runner.cli.handlers import find_samples
from runner.cli.options import DEFAULT_CONNECTION, Connection
from runner.cli.output import console, print_json, print_line, print_table, print_title, widen_pipe
from runner.db.database import Database
from runner.db.migrations.apply import ensure
from runner.engine.runner import Engine
from runner.errors import DatabaseUnavailable, InvalidInput, InvalidSettings
from runner.handlers.discovery import discover
from runner.handlers.registry import Handler
from runner.model.duration import format_duration
from runner.model.task import FINAL, NewTask, State
from runner.settings import Settings
from runner.text.columns import Column, figure, thousands
from runner.text.document import Flat, JsonProperty
from runner.text.sanitize import count_noun, one_line

T = TypeVar("T")

WINDOW = 5.0
"""Seconds over which the rate is measured."""


class ProgressBar(Progress):
    """A progress bar on standard error; silent unless that is a terminal.

    Args:
        endless: the demo keeps submitting, so the total is unknown.
    """

    def __init__(self, *, endless: bool) -> None:
        console = Console(stderr=True)
        before, after = TextColumn("{task.fields[count]}"), TextColumn("{task.fields[pace]}")
        columns = (before, after) if endless else (before, BarColumn(bar_width=None), after)
        how: dict[str, Any] = {"auto_refresh": False, "transient": True, "expand": True}
        super().__init__(
            *columns, console=console, disable=not console.is_terminal, speed_estimate_period=WINDOW, **how
        )
        self._line = self.add_task("", total=None, count="", pace="")
        self._endless = endless

    def show(self, progress: RoundProgress) -> None:
        """Redraw the bar."""
        total, finished = progress.submitted, progress.finished
        count = f"{finished:,} done, {progress.unfinished:,} to do" if self._endless else f"{finished:,} of {total:,}"
        self.update(self._line, total=None if self._endless else total, completed=finished)
        self.update(self._line, refresh=True, count=count, pace=self._text(progress))

    def _text(self, progress: RoundProgress) -> str:
        (line,) = self.tasks
        pace = f"{line.speed or 0:,.0f}/s, {progress.failures:,} failed attempts, {progress.dead:,} dead"
        if self._endless:
            return f"{pace}, ctrl-c to stop"
        left = timedelta(seconds=line.time_remaining or 0)
        return f"{pace}, {format_duration(left)} left" if left else pace


POLL_INTERVAL = 0.2
"""Seconds between two progress updates."""

MIN_BACKLOG, REFILL = 20, 5
"""A demo that keeps running submits REFILL tasks when fewer than MIN_BACKLOG are unfinished."""

INCOMPLETE = "This Python lacks the broken test files of its library; substitutes replace them."


async def demo(
    *,
    keep_running: bool = False,
    tasks: int | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Fill a queue with sample tasks and run them.

    Submits a task for each file of Python's standard library, runs them all, lets
    some fail and retry, and reports.

    Watch it with tasktui in another terminal.

    Args:
        keep_running: Keep submitting until ctrl-c.
        tasks: Submit only this many tasks at the start instead of all files.
        json: Print the report as one JSON document.
        connection: The database.
    """
    return await run_demo(connection.settings(), keep_running=keep_running, as_json=json, tasks=tasks)


async def run_demo(
    settings: Settings, *, keep_running: bool = False, as_json: bool = False, tasks: int | None = None
) -> int:
    """Submit real files as tasks, run them with failures and retries, and report.

    Args:
        keep_running: keep submitting until interrupted.
        as_json: print the report as JSON, and nothing else on standard output.
        tasks: number of tasks to submit at first, failing ones before others; None for all files.

    Returns:
        The exit code: 0, or 128 plus the number of the signal that interrupted the demo.

    Raises:
        InvalidInput: there is nothing to submit.
        InvalidSettings: the database is marked as production.
        StoreError: the database cannot be used.
    """
    _check(settings, tasks)
    sources, notes = _sources()
    handlers = _handlers()
    database = Database.of(settings)
    try:
        await ensure(database)
        demo_round = Round(database)
        deck = deal(sources, handlers, demo_round.by)[:tasks]
        if not as_json:
            announce(len(deck), _location(settings), notes)
        started_at = time.monotonic()
        await demo_round.submit(deck, notify=settings.notify)
        with _without_outcome_log():
            code = await _run(Engine(settings, handlers), demo_round, deck if keep_running else ())
        seconds = time.monotonic() - started_at
        findings = await database.read(read_findings, demo_round)
    finally:
        await database.dispose()
    report = DemoReport(
        database=database.url,
        location=_location(settings),
        first=demo_round.first,
        seconds=round(seconds, 3),
        interrupted=code != 0,
        notes=notes,
        findings=findings,
        advice=advise(settings, findings),
    )
    print_json(report) if as_json else print_report(report)
    return code


def _check(settings: Settings, tasks: int | None) -> None:
    if tasks is not None and tasks < 1:
        raise InvalidInput(why=f"{count_noun(tasks, 'task')}: too few for a demo")
    if settings.production:
        why = "the demo fills its database with sample tasks; name another database with --url or --profile"
        raise InvalidSettings(where="production", why=why)


def _location(settings: Settings) -> str:
    return str(settings.url if settings.url.file is None else settings.url.file.resolve())


def _sources() -> tuple[list[SourceFile], list[str]]:
    sources = library()
    notes = [
        f"One task for each of the {len(sources):,} source files of Python {platform.python_version()} in {LIBRARY}."
    ]
    if not is_complete(sources):
        sources += substitutes()
        notes.append(INCOMPLETE)
    return sources, notes


def _handlers() -> Mapping[str, Handler]:
    find_samples()
    registry = discover([SAMPLES], installed=False)
    return {name: registry.find(name) for name in HANDLERS}


@contextlib.contextmanager
def _without_outcome_log() -> Iterator[None]:
    """Omit the log lines of failed attempts: the report has them, and they would break the progress bar."""
    log = logging.getLogger("runner.outcome")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


async def _run(runner: Engine, demo_round: Round, deck: Sequence[NewTask]) -> int:
    """Run a round to its end. With a deck, submit more tasks from it until interrupted."""
    with Interruption(runner.stop) as interruption, ProgressBar(endless=bool(deck)) as bar:
        run_task = asyncio.ensure_future(runner.run())
        try:
            while not run_task.done():
                await _update(runner, demo_round, deck, bar)
                await asyncio.wait([run_task], timeout=POLL_INTERVAL)
        finally:
            runner.stop()
            await run_task
    return interruption.exit_code


async def _update(runner: Engine, demo_round: Round, deck: Sequence[NewTask], bar: ProgressBar) -> None:
    with contextlib.suppress(DatabaseUnavailable):  # the runner waits for the database too
        progress = await demo_round.progress()
        bar.show(progress)
        if not (progress.unfinished or deck):
            runner.stop()
        if deck and progress.unfinished < MIN_BACKLOG and not runner.stopping:
            await demo_round.submit(random.sample(deck, min(REFILL, len(deck))), notify=runner.settings.notify)


SAMPLES = "sample_handlers"
"""The package of the sample handlers."""


class DemoAdvice(NamedTuple):
    """A command to try next."""

    command: str
    purpose: str


def advise(settings: Settings, findings: Findings) -> list[DemoAdvice]:
    """Choose the commands that show the results of a round.

    Args:
        settings: settings of the demo; the commands repeat its --url or --profile.

    Returns:
        Each command with its purpose.
    """
    options = _database_options(settings)
    return [DemoAdvice(f"{command}{options}", purpose) for command, purpose in _commands(findings)]


def _commands(findings: Findings) -> Iterator[tuple[str, str]]:
    yield "tasktui", "watch and operate the queue"
    if findings.dead:
        yield f"runner tasks state:{State.DEAD}", "list the dead tasks"
        yield f"runner show {findings.dead[0].id}", "show one of them"
        yield f"runner retry {findings.dead[0].id}", "retry it"
    yield "runner stats", "summarize the queues"
    yield f"runner work -H {SAMPLES}", "run waiting tasks until ctrl-c"
    yield "runner demo --keep-running", "keep submitting tasks"


def _database_options(settings: Settings) -> str:
    origins = {row.name: row.origin for row in settings.describe()}
    if origins["url"].startswith("argument"):
        return f" --url {shlex.quote(str(settings.url))}"
    if settings.profile and origins["profile"].startswith("argument"):
        return f" --profile {shlex.quote(settings.profile)}"
    return ""


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The results of a demo.

    Args:
        database: URL without a password.
        location: the database as people know it; a file by its full path.
        first: lowest task id of the round.
        seconds: duration of the round.
        interrupted: the demo was stopped before its end.
        notes: remarks on this run.
        findings: results of the tasks.
        advice: commands to try next, each with its purpose.
    """

    database: str
    location: str
    first: int
    seconds: float
    interrupted: bool
    notes: Sequence[str]
    findings: Annotated[Findings, Flat()]
    advice: Sequence[DemoAdvice]

    @JsonProperty
    def total(self) -> DemoTotal:
        """The sum over all handlers."""
        return sum_totals(self.findings.totals)


DOCUMENTS = (DemoReport,)


def sum_totals(totals: Iterable[DemoTotal]) -> DemoTotal:
    """Add up the totals of several handlers."""
    columns = [asdict(total) for total in totals]
    names = [name for name in DemoTotal.__dataclass_fields__ if name != "handler"]
    return DemoTotal("all", **{name: sum(column[name] for column in columns) for name in names})


MAX_FILE = 28
"""Columns."""

MAX_REASON = 400
"""Characters."""

MAX_ROWS = 20
"""Rows shown per table."""

COUNTS = ("tasks", *map(str, FINAL), "unfinished", "retried")
OPTIONAL = (str(State.CANCELLED), "unfinished")
"""Columns that are omitted if all their values are 0."""


def announce(tasks: int, location: str, notes: Sequence[str]) -> None:
    """Print how many tasks will be submitted, and to which database.

    Args:
        notes: remarks on this run.
    """
    for note in (*notes, f"Submitting {tasks:,} tasks to {location}"):
        print_line(note)


def print_report(report: DemoReport) -> None:
    """Print a report."""
    findings = report.findings
    _print_rows(_summary(report), _total_columns(report.total), [*findings.totals, report.total])
    _print_rows("Slowest tasks", SLOWEST, findings.slowest)
    _print_rows("Failed attempts by reason", REASONS, findings.reasons)
    _print_rows("Dead tasks", DEAD, findings.dead)
    print_title(f"Database: {report.location}")
    print_line("Try next:", style="bold")
    for command, purpose in report.advice:
        print_line(f"  {purpose:<34} {command}")


def _summary(report: DemoReport) -> str:
    finished = report.total.tasks - report.total.unfinished
    rate = finished / report.seconds if report.seconds else 0.0
    verb = "Stopped after" if report.interrupted else "Done in"
    return f"{verb} {report.seconds:.1f} s: {finished:,} tasks finished, {rate:,.0f} per second."


def _total_columns(total: DemoTotal) -> list[Column[DemoTotal]]:
    counts = [name for name in COUNTS if name not in OPTIONAL or getattr(total, name)]
    heads = [figure(name.upper(), attrgetter(name), thousands) for name in counts]
    return [Column("HANDLER", lambda row: row.handler), *heads, figure("MEAN TIME", _mean)]


def _mean(total: DemoTotal) -> str:
    finished = total.tasks - total.unfinished
    return _milliseconds(total.seconds / finished) if finished else "-"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _file(name: str) -> str:
    """A path; on a terminal truncated at its start because the end matters more."""
    return name if widen_pipe(console()) or len(name) <= MAX_FILE else f"…{name[1 - MAX_FILE :]}"


def _reason(text: str) -> str:
    return one_line(text, MAX_REASON)


SLOWEST: tuple[Column[SlowTask], ...] = (
    figure("ID", lambda task: task.id),
    Column("HANDLER", lambda task: task.handler),
    Column("FILE", lambda task: task.key, _file),
    figure("DURATION", lambda task: task.seconds, _milliseconds),
)
REASONS: tuple[Column[FailureReason], ...] = (
    figure("ATTEMPTS", lambda reason: reason.attempts),
    figure("TASKS", lambda reason: reason.tasks),
    Column("HANDLER", lambda reason: reason.handler),
    Column("REASON", lambda reason: reason.reason, _reason),
)
DEAD: tuple[Column[DeadTask], ...] = (
    figure("ID", lambda task: task.id),
    figure("ATTEMPTS", lambda task: task.attempts),
    Column("FILE", lambda task: task.key, _file),
    Column("REASON", lambda task: task.reason, _reason),
)


def _print_rows(title: str, columns: Sequence[Column[T]], rows: Sequence[T]) -> None:
    if rows:
        print_title(title)
        print_table(columns, rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        print_line(f"  and {len(rows) - MAX_ROWS:,} more")
