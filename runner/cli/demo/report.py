"""Prints a report as tables within 80 columns, or with whole cells in a pipe."""

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from runner.cli.demo.findings import DemoTotal, Findings
from runner.cli.output import widen_pipe
from runner.model.task import FINAL, State
from runner.settings import Settings
from runner.text.sanitize import clean, one_line

SAMPLES = "sample_handlers"
"""The package of the sample handlers."""


def advise(settings: Settings, findings: Findings) -> list[tuple[str, str]]:
    """Choose the commands that show the results of a round.

    Args:
        settings: settings of the demo; the commands repeat its --url or --profile.
        findings: results of the round.

    Returns:
        Each command with its purpose.
    """
    options = _database_options(settings)
    return [(f"{command}{options}", purpose) for command, purpose in _commands(findings)]


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
        seconds: duration.
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
    findings: Findings
    advice: Sequence[tuple[str, str]]

    @property
    def total(self) -> DemoTotal:
        """The sum over all handlers."""
        return sum_totals(self.findings.totals)


def sum_totals(totals: Iterable[DemoTotal]) -> DemoTotal:
    """Add up the totals of several handlers."""
    columns = [asdict(total) for total in totals]
    names = [name for name in DemoTotal.__dataclass_fields__ if name != "handler"]
    return DemoTotal("all", **{name: sum(column[name] for column in columns) for name in names})


def to_json(report: DemoReport) -> str:
    """Encode a report as one JSON object.

    The keys are the fields of Report and Findings; `total` is the sum of `totals`, and `advice` has only the commands.
    """
    data = asdict(report)
    findings = data.pop("findings")
    commands = [command for command, _ in report.advice]
    return json.dumps(data | {"total": asdict(report.total)} | findings | {"advice": commands}, indent=2)


MAX_WIDTH = 80
MAX_FILE = 28
"""Columns."""

MAX_CELL_LENGTH = 400
"""Characters."""

MAX_ROWS = 20
"""Rows shown per table."""

COUNTS = ("tasks", *map(str, FINAL), "unfinished", "retried")
OPTIONAL = (str(State.CANCELLED), "unfinished")
"""Columns that are omitted if all their values are 0."""

Row = Sequence[object]


def announce(tasks: int, location: str, notes: Sequence[str]) -> None:
    """Print how many tasks will be submitted, and to which database.

    Args:
        tasks: number of tasks.
        location: the database as people know it.
        notes: remarks on this run.
    """
    console = _console()
    for note in (*notes, f"Submitting {tasks:,} tasks to {location}"):
        console.print(clean(note), soft_wrap=True)


def show(report: DemoReport) -> None:
    """Print a report."""
    console, findings = _console(), report.findings
    console.print(_summary(report), style="bold")
    _print(console, "", *_totals(findings.totals, report.total))
    wide = console.width > MAX_WIDTH
    slowest = [
        (task.id, task.handler, _file(task.key, whole=wide), _milliseconds(task.seconds)) for task in findings.slowest
    ]
    _print(console, "Slowest tasks", [_number("id"), _text("handler"), _text("file"), _number("duration")], slowest)
    reasons = [(reason.attempts, reason.tasks, reason.handler, reason.reason) for reason in findings.reasons]
    columns = [_number("attempts"), _number("tasks"), _text("handler"), Column("reason", overflow="fold")]
    _print(console, "Failed attempts by reason", columns, reasons)
    dead = [(task.id, task.attempts, _file(task.key, whole=wide), task.reason) for task in findings.dead]
    columns = [_number("id"), _number("attempts"), _text("file"), _text("reason") if wide else _wide("reason")]
    _print(console, "Dead tasks", columns, dead)
    console.print(f"Database: {clean(report.location)}", soft_wrap=True)
    console.print("Try next:", style="bold")
    for command, purpose in report.advice:
        console.print(f"  {purpose:<34} {clean(command)}", soft_wrap=True)


def _console() -> Console:
    """A console for standard output, without markup: at most as wide as the report, except in a pipe."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not widen_pipe(console):
        console.width = min(console.width, MAX_WIDTH)
    return console


def _summary(report: DemoReport) -> str:
    finished = report.total.tasks - report.total.unfinished
    rate = finished / report.seconds if report.seconds else 0.0
    verb = "Stopped after" if report.interrupted else "Done in"
    return f"\n{verb} {report.seconds:.1f} s: {finished:,} tasks finished, {rate:,.0f} per second."


def _totals(totals: Sequence[DemoTotal], total: DemoTotal) -> tuple[list[Column], list[Row]]:
    counts = [name for name in COUNTS if name not in OPTIONAL or getattr(total, name)]
    rows: list[Row] = [
        (row.handler, *(f"{getattr(row, name):,}" for name in counts), _mean(row)) for row in (*totals, total)
    ]
    return [_text("handler"), *map(_number, counts), _number("mean time")], rows


def _mean(total: DemoTotal) -> str:
    finished = total.tasks - total.unfinished
    return _milliseconds(total.seconds / finished) if finished else "-"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _file(name: str | None, *, whole: bool) -> str:
    """A path; unless whole, truncated at its start because the end matters more."""
    text = clean(name or "-")
    return text if whole or len(text) <= MAX_FILE else f"…{text[1 - MAX_FILE :]}"


def _print(console: Console, title: str, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    if not rows:
        return
    table = Table(*columns, box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    table.expand = any(column.ratio for column in columns)
    for row in rows[:MAX_ROWS]:
        table.add_row(*(Text(one_line(str(cell), MAX_CELL_LENGTH)) for cell in row))
    console.print(table)
    if len(rows) > MAX_ROWS:
        console.print(f"  and {len(rows) - MAX_ROWS:,} more\n")


def _number(header: str) -> Column:
    return Column(header, justify="right", no_wrap=True)


def _text(header: str) -> Column:
    return Column(header, no_wrap=True, overflow="ellipsis")


def _wide(header: str) -> Column:
    """A column that takes the remaining width."""
    return Column(header, no_wrap=True, overflow="ellipsis", ratio=1)
