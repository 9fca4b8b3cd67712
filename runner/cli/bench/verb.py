"""`runner bench`: runs the parts of a plan in a sandbox, and prints throughput and latency on this machine."""

import asyncio
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from runner.cli.bench.drain import drain, idle, latency, pinned, profile, schedules, sustained, ticks
from runner.cli.bench.growth import GROWTH, growth
from runner.cli.bench.plan import PARTS, UNITS, BenchPlan, BenchReport, BenchSummary, Cost, Measurement, read_parts
from runner.cli.bench.sandbox import Sandbox, cautions, coarse_clock, create_sandbox, describe
from runner.cli.bench.strategies import STRATEGIES, markdown, strategy
from runner.cli.bench.submit import bulk, checkpoint, coalesced, one
from runner.cli.bench.workers import BenchContext
from runner.cli.exit_codes import Exit, Interruption, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection
from runner.cli.output import TableColumn, numbers, print_json, print_line, print_table, print_title
from runner.settings import Settings
from runner.text import formatting
from runner.text.sanitize import clean

MEASURES: dict[str, Callable[[BenchContext], Awaitable[Measurement]]] = {
    part.__name__: part
    for part in (
        one,
        bulk,
        coalesced,
        drain,
        latency,
        pinned,
        sustained,
        idle,
        schedules,
        ticks,
        checkpoint,
        profile,
    )
}
MEASURES |= {name: partial(growth, part=name) for name in GROWTH}
MEASURES |= {name: partial(strategy, part=name) for name in STRATEGIES}

MIN_INTERVAL = 0.25
"""Seconds between two progress lines."""

Progress = Callable[[str], None]
"""Replaces the progress line."""


async def run_bench(settings: Settings, plan: BenchPlan, announce: Progress, show: Progress) -> BenchReport:
    """Run a plan in a sandbox on the same kind of database, and remove the sandbox afterwards.

    Args:
        settings: the settings, with the database.
        plan: the parts to measure.
        announce: called with the location of the sandbox before anything else happens.
        show: called with progress lines.

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
        measurements = await _measure(sandbox, plan, show)
        return BenchReport(str(sandbox), plan, machine, measurements, notes)


async def _measure(sandbox: Sandbox, plan: BenchPlan, show: Progress) -> list[Measurement]:
    measurements: list[Measurement] = []
    for repetition in range(1, plan.reps + 1):
        for part in plan.parts:
            title = f"{part} ({PARTS[part]})" if plan.reps == 1 else f"{part}, {repetition} of {plan.reps}"
            show(title)
            context = BenchContext(sandbox, plan, ThrottledProgress(show, title))
            measurement = await MEASURES[part](context)
            measurements.append(_with_ratio(replace(measurement, part=part, repetition=repetition), measurements))
    show("")
    return measurements


class ThrottledProgress:
    """Shows the progress of a part at limited frequency: writing to a terminal takes time from the measurement.

    Args:
        show: replaces the progress line.
        title: title of the part.
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


def _with_ratio(measurement: Measurement, earlier: Sequence[Measurement]) -> Measurement:
    """Add the ratio of `pinned` to the `drain` of the same repetition, if there is one."""
    for other in earlier:
        if (measurement.part, other.part, other.repetition) == ("pinned", "drain", measurement.repetition):
            ratio = measurement.figures["rate"] / other.figures["rate"]
            return replace(measurement, figures={**measurement.figures, "ratio": ratio})
    return measurement


WIDTH, INDENT = 80, 10
"""Columns of the output, and of the labels at its left."""

FIGURES = (
    TableColumn("PART", no_wrap=True),
    TableColumn("MEDIAN", right=True, no_wrap=True),
    TableColumn("FIGURE", no_wrap=True),
    TableColumn("RANGE", right=True, no_wrap=True),
)
COSTS = (
    TableColumn("STEP", no_wrap=True),
    *numbers("CPU us", "WALL us", "CALLS"),
    TableColumn("DESCRIPTION"),
)

MOST_RUNNERS = 16

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]


async def bench(
    *,
    tasks: AtLeastOne = 20_000,
    parts: str = "",
    runners: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_RUNNERS))] = 1,
    seconds: Annotated[float, Parameter(validator=Number(gt=0, lte=86_400))] = 30.0,
    reps: AtLeastOne = 1,
    scale: Annotated[float, Parameter(validator=Number(gt=0, lte=10))] = 1.0,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Measure submit and run throughput on this machine.

    Your tables are not touched. On SQLite the bench works in a temporary folder
    (of TMPDIR), on PostgreSQL in its own schema. It removes both at the end.

    Compare ratios within one run, not figures of two machines or two runs.

    Args:
        tasks: Size of a backlog.
        parts: Parts, such as one,drain,latency. Plain: one, bulk,
            coalesced, drain, latency, pinned, sustained, idle,
            schedules, ticks, checkpoint, profile. With growth, the
            time per task beside rows and twice as many: queues,
            lanes, paused, foreign, future, keys, dependents,
            payloads, sync, burst, runners, history. With
            strategies, the rate under each strategy beside a plain
            drain, with 1 and 2 runners: limit, narrow, tenants,
            rate, breaker, aged, weighted, order, unique, expiry,
            hosts, spread, tiers, scans, buckets, slices.
        runners: Processes that drain a backlog.
        seconds: Duration of the part sustained; idle, schedules and ticks
            take a third of it.
        reps: Repetitions of the whole plan.
        scale: Share of the rows of the growth parts: 0.1 is a tenth.
        json: Print one JSON document.
        connection: The database.
    """
    plan = BenchPlan(tasks, read_parts(parts), runners, seconds, reps, scale)
    report = await _interruptible(connection.settings(), plan)
    if isinstance(report, int):
        return report
    print_json(document(report)) if json else _print(report)
    for broken in report.broken:
        print_stderr(f"{broken.part}, repetition {broken.repetition}: {broken.proof}")
    return Exit.ERROR if report.broken else Exit.OK


async def _interruptible(settings: Settings, plan: BenchPlan) -> BenchReport | int:
    """Run the bench, or return the exit code of the signal that interrupted it."""
    measuring = asyncio.ensure_future(run_bench(settings, plan, print_stderr, _show))

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


def document(report: BenchReport) -> dict[str, Any]:
    """A report as a JSON object."""
    return {
        "database": report.database,
        "plan": report.plan,
        "machine": report.machine,
        "notes": report.notes,
        "figures": [{**summary._asdict(), "unit": UNITS[summary.figure].words} for summary in report.summaries],
        "exactly_once": not report.broken,
        "measurements": report.measurements,
    }


def _show(text: str) -> None:
    """Replace the progress line, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{clean(text, WIDTH - 1)}", end="", file=sys.stderr, flush=True)


def _print(report: BenchReport) -> None:
    for topic, value in report.machine.items():
        for line in textwrap.wrap(f"{topic:<{INDENT}}{value}", WIDTH, subsequent_indent=" " * INDENT):
            print_line(line)
    print_title(f"{report.plan.tasks:,} tasks, runners: {report.plan.runners}, repetitions: {report.plan.reps}")
    print_table(FIGURES, [_row(summary) for summary in report.summaries])
    for measurement in report.measurements:
        if measurement.costs:
            print_title(f"profile {measurement.repetition}: microseconds per task; measuring slows the runner down")
            print_table(COSTS, [_cost(cost) for cost in measurement.costs])
    print_line("")
    for line in markdown(report):
        print_line(line)
    for line in _remarks(report):
        for piece in textwrap.wrap(line, WIDTH):
            print_line(piece)


def _row(summary: BenchSummary) -> Sequence[str]:
    words, decimals = UNITS[summary.figure]
    median, lowest, highest = (f"{value:,.{decimals}f}" for value in summary[2:])
    return [summary.part, median, words, f"{lowest} - {highest}" if lowest != highest else ""]


def _cost(cost: Cost) -> Sequence[str]:
    cpu, took = (formatting.NOTHING if value is None else f"{value:,.1f}" for value in (cost.cpu_us, cost.took_us))
    return [cost.what, cpu, took, f"{cost.calls:,}" if cost.calls else formatting.NOTHING, cost.words]


def _remarks(report: BenchReport) -> Iterator[str]:
    proofs = [one.proof for one in report.measurements if one.proof is not None]
    if proofs and not report.broken:
        yield f"Each of the {sum(proof.tasks for proof in proofs):,} tasks finished exactly once."
    yield from report.notes
