"""bench: measure what the plan asks for, in a place apart, and report."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from runner.bench.draining import drain, pinned
from runner.bench.ground import Ground
from runner.bench.machine import cautions, describe
from runner.bench.place import Place, apart
from runner.bench.plan import PARTS, Plan
from runner.bench.probe import coarse_clock
from runner.bench.profile import profile
from runner.bench.report import Measurement, Report
from runner.bench.submitting import bulk, coalesced, one
from runner.bench.sustained import sustained
from runner.bench.waiting import idle, latency
from runner.settings import Settings

MEASURES: Mapping[str, Callable[[Ground], Awaitable[Measurement]]] = {
    part.__name__: part for part in (one, bulk, coalesced, drain, latency, pinned, sustained, idle, profile)
}

SHOW_EVERY = 0.25
"""Seconds."""

Progress = Callable[[str], None]
"""Shows a line in place of the last one."""


async def bench(settings: Settings, plan: Plan, announce: Progress, show: Progress) -> Report:
    """Measure, in a scratch place of the database's kind, which is gone afterwards.

    Args:
        settings: which database, and how runners work.
        plan: what to measure.
        announce: told where that will be, before anything is done.
        show: told how far it is.

    Returns:
        What was measured, and on what.

    Raises:
        InvalidSettings: when the database is one of production.
        StoreError: when it cannot be used.
        BenchFailed: when something cannot be measured.
    """
    async with apart(settings) as place:
        announce(f"The bench works in {place}, which is removed at the end.")
        notes = [*cautions(place), *filter(None, [coarse_clock()])]
        async with place.empty() as database:
            machine = await describe(database, place)
        measurements = await _measured(place, plan, show)
        return Report(str(place), plan, machine, measurements, notes)


async def _measured(place: Place, plan: Plan, show: Progress) -> list[Measurement]:
    measurements: list[Measurement] = []
    for repetition in range(1, plan.reps + 1):
        for part in plan.parts:
            title = f"{part} ({PARTS[part]})" if plan.reps == 1 else f"{part}, {repetition} of {plan.reps}"
            show(title)
            ground = Ground(place, plan, Standing(show, title))
            measured = await MEASURES[part](ground)
            measurements.append(_compared(replace(measured, part=part, repetition=repetition), measurements))
    show("")
    return measurements


class Standing:
    """Shows how far a part is, now and then: a terminal that is written to takes time from what is measured.

    Args:
        show: a line in place of the last one.
        title: of the part.
    """

    def __init__(self, show: Progress, title: str) -> None:
        self._show = show
        self._title = title
        self._next = 0.0

    def __call__(self, words: str) -> None:
        """Show these words, unless some were shown just now."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SHOW_EVERY
            self._show(f"{self._title}: {words}")


def _compared(measured: Measurement, before: Sequence[Measurement]) -> Measurement:
    """Add the ratio of `pinned` to the `drain` of the same repetition, if there was one."""
    for other in before:
        if (measured.part, other.part, other.repetition) == ("pinned", "drain", measured.repetition):
            ratio = measured.figures["rate"] / other.figures["rate"]
            return replace(measured, figures={**measured.figures, "ratio": ratio})
    return measured
