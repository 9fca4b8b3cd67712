"""Measurements as data, and their summary over the repetitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from runner.cli.bench.load import TaskCounts
from runner.cli.bench.plan import BenchPlan


class Unit(NamedTuple):
    """The unit of a figure.

    Args:
        words: description for people.
        decimals: significant decimals.
    """

    words: str
    decimals: int


UNITS = {
    "rate": Unit("tasks/s", 0),
    "threads": Unit("tasks/s from threads", 0),
    "cpu_us": Unit("us of CPU per task", 1),
    "p50_ms": Unit("ms, median", 1),
    "p99_ms": Unit("ms, 99th percentile", 1),
    "ratio": Unit("of the rate of drain", 2),
    "first": Unit("tasks/s in the first third", 0),
    "last": Unit("tasks/s in the last third", 0),
    "flat": Unit("last third : first third", 2),
    "save_ms": Unit("ms per checkpoint, median", 2),
    "per_update": Unit("of a plain UPDATE", 2),
    "cpu_share": Unit("% of a core", 2),
}
"""The unit of every figure, in display order."""


class Cost(NamedTuple):
    """A share of a task's time.

    Args:
        what: step of the runner, or statement of the database.
        words: description for people.
        cpu_us: CPU microseconds per task.
        took_us: wall clock microseconds per task, including waits for the database; None if the step never waits.
        calls: number of calls in the whole measurement.
    """

    what: str
    words: str
    cpu_us: float | None
    took_us: float | None
    calls: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of one part.

    Args:
        figures: values by names from UNITS.
        tasks: number of submitted tasks.
        runners: number of runner processes.
        proof: counts of the executed tasks, if any were executed.
        costs: time per step, from `profile`.
        part: name of the part.
        repetition: counted from 1.
    """

    figures: Mapping[str, float]
    tasks: int
    runners: int = 0
    proof: TaskCounts | None = None
    costs: Sequence[Cost] = ()
    part: str = ""
    repetition: int = 0


class BenchSummary(NamedTuple):
    """A figure over all repetitions."""

    part: str
    figure: str
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The results of a bench.

    Args:
        place: location of the sandbox.
        plan: the plan.
        machine: description of the machine, by topic.
        measurements: in order of execution.
        notes: warnings for the reader.
    """

    place: str
    plan: BenchPlan
    machine: Mapping[str, str]
    measurements: Sequence[Measurement]
    notes: Sequence[str] = field(default_factory=list)

    @property
    def summaries(self) -> list[BenchSummary]:
        """Each figure of each part, in display order."""
        return [
            BenchSummary(part, figure, median(values), min(values), max(values))
            for part in self.plan.parts
            for figure in UNITS
            if (values := self._values(part, figure))
        ]

    @property
    def broken(self) -> list[Measurement]:
        """The measurements in which a task did not finish exactly once."""
        return [one for one in self.measurements if one.proof is not None and not one.proof.holds]

    def _values(self, part: str, figure: str) -> list[float]:
        return [one.figures[figure] for one in self.measurements if one.part == part and figure in one.figures]
