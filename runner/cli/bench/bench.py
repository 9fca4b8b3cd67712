"""Run the parts of a plan in a sandbox, and report."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from runner.cli.bench.drain import drain, idle, latency, pinned, profile, schedules, sustained, ticks
from runner.cli.bench.machine import cautions, coarse_clock, describe
from runner.cli.bench.plan import PARTS, BenchPlan
from runner.cli.bench.report import BenchReport, Measurement
from runner.cli.bench.sandbox import Sandbox, create_sandbox
from runner.cli.bench.submit import bulk, checkpoint, coalesced, one
from runner.cli.bench.workers import BenchContext
from runner.settings import Settings

MEASURES: Mapping[str, Callable[[BenchContext], Awaitable[Measurement]]] = {
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

MIN_INTERVAL = 0.25
"""Seconds between two progress lines."""

Progress = Callable[[str], None]
"""Replaces the progress line."""


async def bench(settings: Settings, plan: BenchPlan, announce: Progress, show: Progress) -> BenchReport:
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
