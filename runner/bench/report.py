"""Report: what was measured, as data, and summed up over the repetitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from runner.bench.load import Proof
from runner.bench.plan import Plan


class Unit(NamedTuple):
    """What a figure means.

    Args:
        words: for people.
        decimals: that tell something.
    """

    words: str
    decimals: int


UNITS = {
    "rate": Unit("tasks/s", 0),
    "threads": Unit("tasks/s from threads", 0),
    "cpu_us": Unit("us of CPU per task", 1),
    "p50_ms": Unit("ms, half are faster", 1),
    "p99_ms": Unit("ms, 99 of 100 are faster", 1),
    "ratio": Unit("of the rate of drain", 2),
    "first": Unit("tasks/s in the first third", 0),
    "last": Unit("tasks/s in the last third", 0),
    "flat": Unit("last third : first third", 2),
    "cpu_share": Unit("% of a core", 2),
}
"""Every figure, in the order in which those of a part are shown."""


class Cost(NamedTuple):
    """Where a part of a task's time went.

    Args:
        what: step of the runner, or statement of the database.
        words: for people.
        cpu_us: microseconds of CPU per task.
        took_us: microseconds per task from beginning to end, waiting for the database included; None where nothing
            is waited for.
        calls: how often, in the whole measurement.
    """

    what: str
    words: str
    cpu_us: float | None
    took_us: float | None
    calls: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One part, measured once.

    Args:
        figures: by their name in UNITS.
        tasks: that were submitted for it.
        runners: processes that were at work.
        proof: what became of the tasks, where they were run.
        costs: where the time went, from `profile`.
        part: its name.
        repetition: counted from 1.
    """

    figures: Mapping[str, float]
    tasks: int
    runners: int = 0
    proof: Proof | None = None
    costs: Sequence[Cost] = ()
    part: str = ""
    repetition: int = 0


class Summary(NamedTuple):
    """A figure over all repetitions."""

    part: str
    figure: str
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Report:
    """All that a bench led to.

    Args:
        place: where it worked.
        plan: what was asked for.
        machine: on what, topic by topic.
        measurements: in the order in which they were made.
        notes: what a reader must know.
    """

    place: str
    plan: Plan
    machine: Mapping[str, str]
    measurements: Sequence[Measurement]
    notes: Sequence[str] = field(default_factory=list)

    @property
    def summaries(self) -> list[Summary]:
        """Each figure of each part, in order."""
        return [
            Summary(part, figure, median(values), min(values), max(values))
            for part in self.plan.parts
            for figure in UNITS
            if (values := self._values(part, figure))
        ]

    @property
    def broken(self) -> list[Measurement]:
        """Those in which a task did not end exactly once."""
        return [one for one in self.measurements if one.proof is not None and not one.proof.holds]

    def _values(self, part: str, figure: str) -> list[float]:
        return [one.figures[figure] for one in self.measurements if one.part == part and figure in one.figures]
