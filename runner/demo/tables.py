"""tables: a report for people, in 80 columns."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from runner.demo.findings import Total
from runner.demo.report import Report
from runner.people.terminal import clean, one_line
from runner.task import FINAL, State

WIDEST = 80
LONGEST_FILE = 28
"""Columns."""

MOST_ROWS = 20
"""Rows of one table that are shown."""

COUNTS = ("tasks", *map(str, FINAL), "unfinished", "retried")
SELDOM = (str(State.CANCELLED), "unfinished")
"""Columns that are left out when there is nothing in them."""

Row = Sequence[object]


def announce(tasks: int, place: str, notes: Sequence[str]) -> None:
    """Say what is going to happen, and where.

    Args:
        tasks: how many will be submitted.
        place: of the database, as people know it.
        notes: what is special about this run.
    """
    console = _console()
    for note in (*notes, f"{tasks:,} tasks go into {place}"):
        console.print(clean(note), soft_wrap=True)


def show(report: Report) -> None:
    """Print a report."""
    console, found = _console(), report.findings
    console.print(_summary(report), style="bold")
    _print(console, "", *_totals(found.totals, report.whole))
    slowest = [(slow.id, slow.handler, _file(slow.key), _milliseconds(slow.seconds)) for slow in found.slowest]
    _print(console, "The slowest", [_number("id"), _text("handler"), _text("file"), _number("took")], slowest)
    reasons = [(reason.attempts, reason.tasks, reason.handler, reason.reason) for reason in found.reasons]
    columns = [_number("attempts"), _number("tasks"), _text("handler"), Column("reason", overflow="fold")]
    _print(console, "Failed attempts by their reason", columns, reasons)
    dead = [(given.id, given.attempts, _file(given.key), given.reason) for given in found.dead]
    columns = [_number("id"), _number("attempts"), _text("file"), _rest("reason")]
    _print(console, "Dead, and why", columns, dead)
    console.print(f"All of it is in {clean(report.place)}", soft_wrap=True)
    console.print("Try next:", style="bold")
    for command, purpose in report.advice:
        console.print(f"  {purpose:<34} {clean(command)}", soft_wrap=True)


def _console() -> Console:
    """Standard output, as wide as the report at most; no text is taken for markup."""
    console = Console(markup=False, highlight=False, emoji=False)
    console.width = min(console.width, WIDEST)
    return console


def _summary(report: Report) -> str:
    ended = report.whole.tasks - report.whole.unfinished
    rate = ended / report.seconds if report.seconds else 0.0
    how = "Stopped after" if report.interrupted else "Done in"
    return f"\n{how} {report.seconds:.1f} s: {ended:,} tasks ended, {rate:,.0f} a second."


def _totals(totals: Sequence[Total], whole: Total) -> tuple[list[Column], list[Row]]:
    counts = [name for name in COUNTS if name not in SELDOM or getattr(whole, name)]
    rows: list[Row] = [
        (total.handler, *(f"{getattr(total, name):,}" for name in counts), _mean(total)) for total in (*totals, whole)
    ]
    return [_text("handler"), *map(_number, counts), _number("mean time")], rows


def _mean(total: Total) -> str:
    ended = total.tasks - total.unfinished
    return _milliseconds(total.seconds / ended) if ended else "-"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _file(name: str | None) -> str:
    """A path, cut at its beginning: its end tells more."""
    shown = clean(name or "-")
    return shown if len(shown) <= LONGEST_FILE else f"…{shown[1 - LONGEST_FILE :]}"


def _print(console: Console, title: str, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    if not rows:
        return
    table = Table(*columns, box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    table.expand = any(column.ratio for column in columns)
    for row in rows[:MOST_ROWS]:
        table.add_row(*(Text(one_line(str(cell), 400)) for cell in row))
    console.print(table)
    if len(rows) > MOST_ROWS:
        console.print(f"  and {len(rows) - MOST_ROWS:,} more\n")


def _number(header: str) -> Column:
    return Column(header, justify="right", no_wrap=True)


def _text(header: str) -> Column:
    return Column(header, no_wrap=True, overflow="ellipsis")


def _rest(header: str) -> Column:
    """A column that takes what the others leave it."""
    return Column(header, no_wrap=True, overflow="ellipsis", ratio=1)
