"""`runner bench`: how fast it is, on this machine, this database and these settings."""

import asyncio
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from runner.bench import Plan, Report
from runner.bench import bench as measure
from runner.bench.plan import read_parts
from runner.bench.report import UNITS, Cost, Summary
from runner.cli.connection import NOWHERE, Connection
from runner.cli.ending import Exit, complain
from runner.cli.printing import Column, print_json, print_line, print_table, print_title
from runner.demo.interruption import Interruption
from runner.people import cells
from runner.people.terminal import clean
from runner.settings import Settings

WIDTH, INDENT = 80, 10
"""Columns: of the whole, and of the topics to the left."""

FIGURES = (
    Column("PART", whole=True),
    Column("MEDIAN", right=True, whole=True),
    Column("FIGURE", whole=True),
    Column("RANGE", right=True, whole=True),
)
COSTS = (
    Column("STEP", whole=True),
    Column("CPU us", right=True, whole=True),
    Column("TOOK us", right=True, whole=True),
    Column("CALLS", right=True, whole=True),
    Column("WHAT"),
)

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]


async def bench(
    *,
    tasks: AtLeastOne = 20_000,
    parts: str = "",
    runners: Literal[1, 2] = 1,
    seconds: Annotated[float, Parameter(validator=Number(gt=0, lte=86_400))] = 30.0,
    reps: AtLeastOne = 1,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Measure how fast tasks are submitted and run, and print it with the machine.

    Nobody's tables are touched: on SQLite it works in a temporary folder (of
    TMPDIR), on PostgreSQL in a schema of its own. Both are gone at the end.

    Compare ratios within one run, never figures of two machines or two hours.

    Args:
        tasks: Tasks of a backlog.
        parts: Some of one,bulk,coalesced,drain,latency,pinned,sustained,
            idle,profile.
        runners: Processes that work on a backlog: 1 or 2.
        seconds: How long the part sustained lasts; idle lasts a third of it.
        reps: How often everything is measured.
        json: Print one JSON document.
        connection: Which database.
    """
    plan = Plan(tasks, read_parts(parts), runners, seconds, reps)
    report = await _interruptible(connection.settings(), plan)
    if isinstance(report, int):
        return report
    print_json(document(report)) if json else _print(report)
    for broken in report.broken:
        complain(f"{broken.part}, repetition {broken.repetition}: {broken.proof}")
    return Exit.ERROR if report.broken else Exit.OK


async def _interruptible(settings: Settings, plan: Plan) -> Report | int:
    """Measure until the end, or until a signal: the exit code that it means."""
    measuring = asyncio.ensure_future(measure(settings, plan, complain, _show))

    def stop() -> None:
        measuring.cancel()

    with Interruption(stop) as interruption:
        try:
            return await measuring
        except asyncio.CancelledError:
            if not interruption.exit_code:
                raise
            _show("")
            complain("runner: interrupted, and nothing is left behind")
            return interruption.exit_code


def document(report: Report) -> dict[str, Any]:
    """A report for JSON."""
    return {
        "place": report.place,
        "plan": report.plan,
        "machine": report.machine,
        "notes": report.notes,
        "figures": [{**summary._asdict(), "unit": UNITS[summary.figure].words} for summary in report.summaries],
        "exactly_once": not report.broken,
        "measurements": report.measurements,
    }


def _show(text: str) -> None:
    """Put a line in the place of the last one, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{clean(text, WIDTH - 1)}", end="", file=sys.stderr, flush=True)


def _print(report: Report) -> None:
    for topic, value in report.machine.items():
        for line in textwrap.wrap(f"{topic:<{INDENT}}{value}", WIDTH, subsequent_indent=" " * INDENT):
            print_line(line)
    print_title(f"{report.plan.tasks:,} tasks, runners: {report.plan.runners}, repetitions: {report.plan.reps}")
    print_table(FIGURES, [_row(summary) for summary in report.summaries])
    for measurement in report.measurements:
        if measurement.costs:
            print_title(f"profile {measurement.repetition}: microseconds per task, in a runner slowed by watching it")
            print_table(COSTS, [_cost(cost) for cost in measurement.costs])
    print_line("")
    for line in _remarks(report):
        for piece in textwrap.wrap(line, WIDTH):
            print_line(piece)


def _row(summary: Summary) -> Sequence[str]:
    words, decimals = UNITS[summary.figure]
    median, lowest, highest = (f"{value:,.{decimals}f}" for value in summary[2:])
    return [summary.part, median, words, f"{lowest} - {highest}" if lowest != highest else ""]


def _cost(cost: Cost) -> Sequence[str]:
    cpu, took = (cells.NOTHING if value is None else f"{value:,.1f}" for value in (cost.cpu_us, cost.took_us))
    return [cost.what, cpu, took, f"{cost.calls:,}" if cost.calls else cells.NOTHING, cost.words]


def _remarks(report: Report) -> Iterator[str]:
    proven = [one.proof for one in report.measurements if one.proof is not None]
    if proven and not report.broken:
        yield f"Each of the {sum(proof.tasks for proof in proven):,} tasks that were run ended exactly once."
    yield from report.notes
