"""The plan of a bench, and its results: measurements of parts, with a summary over repetitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from runner.cli.bench.load import TaskCounts

MAX_SINGLE = 3_000
MAX_LATENCIES = 500
"""Maximum number of tasks in parts that submit one by one."""

BULK_FACTOR = 5
"""The part `bulk` submits this many backlogs in one call; one alone would be too quick to measure."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The parts to measure and their amounts.

    Args:
        tasks: size of a backlog.
        parts: names of the parts, in the order of execution.
        runners: number of processes that drain a backlog.
        seconds: duration of the part `load`.
        reps: repetitions; each repetition runs all parts in turn.
    """

    tasks: int = 20_000
    parts: tuple[str, ...] = ()
    runners: int = 1
    seconds: float = 30.0
    reps: int = 1

    @property
    def one(self) -> int:
        """Number of tasks submitted one by one."""
        return min(self.tasks, MAX_SINGLE)

    @property
    def bulk(self) -> int:
        """Number of tasks submitted in one call."""
        return BULK_FACTOR * self.tasks

    @property
    def latencies(self) -> int:
        """Number of tasks whose latency is measured."""
        return min(self.tasks, MAX_LATENCIES)


class Unit(NamedTuple):
    """The unit of a figure.

    Args:
        words: description for people.
    """

    words: str
    decimals: int


UNITS = {
    "rate": Unit("tasks/s", 0),
    "threads": Unit("tasks/s from threads", 0),
    "cpu_us": Unit("us of CPU per task", 1),
    "p50_ms": Unit("ms, median", 1),
    "p99_ms": Unit("ms, 99th percentile", 1),
    "first": Unit("tasks/s in the first third", 0),
    "last": Unit("tasks/s in the last third", 0),
    "flat": Unit("last third : first third", 2),
}
"""The unit of every figure, in display order."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of one part.

    Args:
        figures: values by names from UNITS.
        tasks: number of submitted tasks.
        runners: number of runner processes.
        proof: counts of the executed tasks, if any were executed.
        repetition: counted from 1.
    """

    figures: Mapping[str, float]
    tasks: int
    runners: int = 0
    proof: TaskCounts | None = None
    part: str = ""
    repetition: int = 0


class BenchSummary(NamedTuple):
    """A figure over all repetitions.

    Args:
        median: in the unit of the figure, as its lowest and highest value.
        lowest: in the unit of the figure.
        highest: in the unit of the figure.
    """

    part: str
    figure: str
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The results of a bench.

    Args:
        database: location of the sandbox.
        machine: description of the machine, by topic.
        measurements: in order of execution.
        notes: warnings for the reader.
        units: the unit of each figure, in display order.
    """

    database: str
    plan: BenchPlan
    machine: Mapping[str, str]
    measurements: Sequence[Measurement]
    notes: Sequence[str] = ()
    units: Mapping[str, Unit] = field(default_factory=lambda: UNITS)

    @property
    def summaries(self) -> list[BenchSummary]:
        """Each figure of each part, in display order."""
        return [
            BenchSummary(part, figure, median(values), min(values), max(values))
            for part in self.plan.parts
            for figure in self.units
            if (values := self._values(part, figure))
        ]

    @property
    def broken(self) -> list[Measurement]:
        """The measurements in which a task did not finish exactly once."""
        return [one for one in self.measurements if one.proof is not None and not one.proof.holds]

    def _values(self, part: str, figure: str) -> list[float]:
        return [one.figures[figure] for one in self.measurements if one.part == part and figure in one.figures]
