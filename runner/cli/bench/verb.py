"""`runner bench`: throughput and latency of this machine, measured in a sandbox."""

import asyncio
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number

from runner.cli.bench.drain import drain, latency, sustained
from runner.cli.bench.plan import BenchPlan, BenchReport, BenchSummary, Measurement, Unit
from runner.cli.bench.sandbox import Sandbox, cautions, coarse_clock, create_sandbox, describe
from runner.cli.bench.submit import bulk, coalesced, one
from runner.cli.bench.workers import BenchContext
from runner.cli.exit_codes import Exit, Interruption, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection
from runner.cli.output import print_json, print_line, print_table, print_title
from runner.errors import InvalidInput
from runner.filter.fields import suggestion
from runner.settings import Settings
from runner.text.columns import Column, figure
from runner.text.document import Flat
from runner.text.sanitize import clean


class BenchPart(NamedTuple):
    """A part of the bench.

    Args:
        words: description for people.
    """

    words: str
    measure: Callable[[BenchContext], Awaitable[Measurement]]


PARTS = {
    "one": BenchPart("submit one by one, each committed", one),
    "bulk": BenchPart("submit many in one call", bulk),
    "coalesced": BenchPart("submit single tasks from many coroutines, then threads", coalesced),
    "drain": BenchPart("run a backlog of empty tasks", drain),
    "latency": BenchPart("from submit to start, on an idle runner", latency),
    "load": BenchPart("submit as fast as tasks run", sustained),
}
"""Every part of `runner bench`."""

GROUPS = {"submit": ("one", "bulk", "coalesced")}
"""Names of several parts."""


def read_parts(text: str, parts: Mapping[str, BenchPart], groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Parse names of parts and groups, separated by commas.

    Returns:
        The names in the order of `parts`; all of them if the text names none.

    Raises:
        InvalidInput: a name is unknown.
    """
    names = {name for name in (piece.strip() for piece in text.split(",")) if name}
    for group in names & groups.keys():
        names = names - {group} | {*groups[group]}
    for name in sorted(names - parts.keys()):
        hint = suggestion(name, (*parts, *groups))
        raise InvalidInput(why=f"unknown part {name!r}{hint}; parts: {', '.join([*parts, *groups])}")
    return tuple(name for name in parts if name in names or not names)


MIN_INTERVAL = 0.25
"""Seconds between two progress lines."""

Progress = Callable[[str], None]
"""Replaces the progress line."""


async def run_bench(
    settings: Settings, plan: BenchPlan, parts: Mapping[str, BenchPart], announce: Progress, show: Progress
) -> BenchReport:
    """Run a plan in a sandbox on the same kind of database, and remove the sandbox afterwards.

    Args:
        plan: the names and amounts of the parts to measure.
        announce: called with the location of the sandbox before anything else happens.

    Returns:
        The measurements, with a description of the machine.

    Raises:
        InvalidSettings: the database is marked as production.
        StoreError: the database cannot be used.
        BenchFailed: a part cannot be measured.
    """
    async with create_sandbox(settings) as sandbox:
        announce(f"The bench works in {sandbox} and removes it at the end.")
        notes = [*cautions(sandbox), *filter(None, [coarse_clock()])]
        async with sandbox.empty() as database:
            machine = await describe(database, sandbox)
        measurements = await _measure(sandbox, plan, parts, show)
        return BenchReport(str(sandbox), plan, machine, measurements, notes)


async def _measure(
    sandbox: Sandbox, plan: BenchPlan, parts: Mapping[str, BenchPart], show: Progress
) -> list[Measurement]:
    measurements: list[Measurement] = []
    for repetition in range(1, plan.reps + 1):
        for part in plan.parts:
            title = f"{part} ({parts[part].words})" if plan.reps == 1 else f"{part}, {repetition} of {plan.reps}"
            show(title)
            context = BenchContext(sandbox, plan, ThrottledProgress(show, title))
            measurement = await parts[part].measure(context)
            measurements.append(replace(measurement, part=part, repetition=repetition))
    show("")
    return measurements


class ThrottledProgress:
    """Shows the progress of a part at limited frequency: writing to a terminal takes time from the measurement.

    Args:
        show: replaces the progress line.
    """

    def __init__(self, show: Progress, title: str) -> None:
        self._show = show
        self._title = title
        self._next = 0.0

    def __call__(self, text: str) -> None:
        """Show the text, unless another one was shown a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + MIN_INTERVAL
            self._show(f"{self._title}: {text}")


WIDTH, INDENT = 80, 10
"""Columns of the output, and of the labels at its left."""

MOST_RUNNERS = 16

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]


class FigureDocument(NamedTuple):
    """A figure over all repetitions, with its unit in words."""

    summary: Annotated[BenchSummary, Flat()]
    unit: str


class BenchDocument(NamedTuple):
    """The results of a bench.

    Args:
        database: the location of the sandbox.
        machine: the description of the machine, by topic.
        notes: warnings for the reader.
        exactly_once: False if a task did not finish exactly once.
        measurements: in the order of execution.
    """

    database: str
    plan: BenchPlan
    machine: Mapping[str, str]
    notes: Sequence[str]
    figures: list[FigureDocument]
    exactly_once: bool
    measurements: Sequence[Measurement]


DOCUMENTS = (BenchDocument,)


async def bench(
    *,
    tasks: AtLeastOne = 20_000,
    parts: str = "",
    runners: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_RUNNERS))] = 1,
    seconds: Annotated[float, Parameter(validator=Number(gt=0, lte=86_400))] = 30.0,
    reps: AtLeastOne = 1,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Measure submit and run throughput on this machine.

    Your tables are not touched. On SQLite the bench works in a temporary folder
    (of TMPDIR), on PostgreSQL in its own schema. It removes both at the end.

    Compare ratios within one run, not figures of two machines or two runs.

    Args:
        tasks: Size of a backlog.
        parts: Parts, such as one,drain; without them, all: one,
            bulk, coalesced (submit names these three), drain,
            latency, load.
        runners: Processes that drain a backlog.
        seconds: Duration of the part load.
        reps: Repetitions of the whole plan.
        json: Print one JSON document.
        connection: The database.
    """
    plan = BenchPlan(tasks, read_parts(parts, PARTS, GROUPS), runners, seconds, reps)
    report = await interruptible_bench(connection.settings(), plan, PARTS)
    if isinstance(report, int):
        return report
    print_json(document(report)) if json else print_report(report)
    return exit_code(report)


def exit_code(report: BenchReport) -> int:
    """The exit code of a report, after the broken measurements on standard error."""
    for broken in report.broken:
        print_stderr(f"{broken.part}, repetition {broken.repetition}: {broken.proof}")
    return Exit.ERROR if report.broken else Exit.OK


async def interruptible_bench(settings: Settings, plan: BenchPlan, parts: Mapping[str, BenchPart]) -> BenchReport | int:
    """Run the bench, or return the exit code of the signal that interrupted it."""
    measuring = asyncio.ensure_future(run_bench(settings, plan, parts, print_stderr, _show))

    def stop() -> None:
        measuring.cancel()

    with Interruption(stop) as interruption:
        try:
            return await measuring
        except asyncio.CancelledError:
            if not interruption.exit_code:
                raise
            _show("")
            print_stderr("runner: interrupted; the bench removed its tables")
            return interruption.exit_code


def document(report: BenchReport) -> BenchDocument:
    """A report for programs."""
    figures = [FigureDocument(summary, report.units[summary.figure].words) for summary in report.summaries]
    described = (report.database, report.plan, report.machine, report.notes)
    return BenchDocument(*described, figures, not report.broken, report.measurements)


def _show(text: str) -> None:
    """Replace the progress line, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{clean(text, WIDTH - 1)}", end="", file=sys.stderr, flush=True)


def print_report(report: BenchReport) -> None:
    """Print the machine, the figures, and the remarks."""
    for topic, value in report.machine.items():
        for line in textwrap.wrap(f"{topic:<{INDENT}}{value}", WIDTH, subsequent_indent=" " * INDENT):
            print_line(line)
    print_title(f"{report.plan.tasks:,} tasks, runners: {report.plan.runners}, repetitions: {report.plan.reps}")
    print_table(_figures(report.units), report.summaries)
    print_line("")
    for line in _remarks(report):
        for piece in textwrap.wrap(line, WIDTH):
            print_line(piece)


def _figures(units: Mapping[str, Unit]) -> tuple[Column[BenchSummary], ...]:
    def text(summary: BenchSummary, value: float) -> str:
        return f"{value:,.{units[summary.figure].decimals}f}"

    def spread(summary: BenchSummary) -> str:
        lowest, highest = text(summary, summary.lowest), text(summary, summary.highest)
        return f"{lowest} - {highest}" if lowest != highest else ""

    return (
        Column("PART", lambda summary: summary.part, fixed=True),
        figure("MEDIAN", lambda summary: text(summary, summary.median)),
        Column("FIGURE", lambda summary: units[summary.figure].words, fixed=True),
        figure("RANGE", spread),
    )


def _remarks(report: BenchReport) -> Iterator[str]:
    proofs = [one.proof for one in report.measurements if one.proof is not None]
    if proofs and not report.broken:
        yield f"Each of the {sum(proof.tasks for proof in proofs):,} tasks finished exactly once."
    yield from report.notes
