"""The plan of a bench and its results: the parts to measure, their measurements, and the summary over repetitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from runner.cli.bench.load import TaskCounts
from runner.errors import InvalidInput
from runner.filter.fields import suggestion

PARTS = {
    "one": "submit one by one, each committed",
    "bulk": "submit many in one call",
    "coalesced": "submit single tasks from many coroutines, then threads",
    "drain": "run a backlog of empty tasks",
    "latency": "from submit to start, on an idle runner",
    "pinned": "as drain, while an old transaction keeps dead rows",
    "sustained": "submit as fast as tasks run",
    "idle": "cost of an idle runner",
    "schedules": "cost of an idle runner beside 10,000 schedules",
    "ticks": "lateness of schedules beside a backlog",
    "checkpoint": "store checkpoints one by one, each committed",
    "profile": "time per step of a task",
    "queues": "20,000 and 40,000 queues of one task each",
    "lanes": "50,000 and 100,000 queues and priorities",
    "paused": "beside 500,000 and 1,000,000 tasks of a paused queue",
    "foreign": "beside 1,000,000 and 2,000,000 due tasks of others",
    "future": "beside 1,000,000 and 2,000,000 tasks for later",
    "keys": "200,000 and 400,000 tasks with unique keys",
    "dependents": "100,000 and 200,000 dependents of one task",
    "payloads": "payloads of 100 and 200 KiB",
    "sync": "20,000 and 40,000 tasks of a plain function",
    "burst": "100,000 and 200,000 tasks, statistics of an empty table",
    "runners": "by 5 and 10 runners",
    "history": "beside 5,000,000 and 10,000,000 finished tasks",
    "limit": "under a concurrency limit",
    "narrow": "under a limit per runner",
    "tenants": "under a limit per tenant, with 50 tenants",
    "rate": "under a rate limit",
    "breaker": "with a closed breaker",
    "aged": "with aged priorities, beside strict ones",
    "weighted": "with weighted queues, beside strict ones",
    "order": "with an order key per 10 tasks",
    "unique": "with a unique key per task",
    "expiry": "with an expiry",
    "hosts": "for the host of the runners",
    "spread": "with spread scans",
    "tiers": "with tiers of scans",
    "scans": "with an own scan of the handler",
    "buckets": "from all buckets by name",
    "slices": "with a static slice per runner",
}
"""Every part with its description, in the order of execution."""

GROUPS = {
    "growth": tuple(PARTS)[list(PARTS).index("queues") : list(PARTS).index("limit")],
    "strategies": tuple(PARTS)[list(PARTS).index("limit") :],
}
"""The parts that measure growth, and the ratios of strategies; only a run that names them, or the group, has them."""

MAX_SINGLE = 3_000
MAX_LATENCIES = 500
"""Maximum number of tasks in parts that submit one by one."""

BULK_FACTOR = 5
"""The part `bulk` submits this many backlogs in one call; one alone would be too quick to measure."""

IDLE_SHARE = 1 / 3
"""The parts `idle`, `schedules` and `ticks` last this share of `seconds`."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The parts to measure and their amounts.

    Args:
        tasks: size of a backlog.
        parts: names from PARTS.
        runners: number of processes that drain a backlog.
        seconds: duration of the part `sustained`; other parts derive theirs from it.
        reps: repetitions; each repetition runs all parts in turn.
        scale: share of the rows of the growth parts.
    """

    tasks: int = 20_000
    parts: tuple[str, ...] = tuple(PARTS)
    runners: int = 1
    seconds: float = 30.0
    reps: int = 1
    scale: float = 1.0

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

    @property
    def idle(self) -> float:
        """Seconds of the parts `idle`, `schedules` and `ticks`."""
        return self.seconds * IDLE_SHARE


def read_parts(text: str) -> tuple[str, ...]:
    """Parse part names separated by commas.

    Args:
        text: the names, or those of GROUPS; empty for the other parts.

    Returns:
        The names in the order of PARTS.

    Raises:
        InvalidInput: a name is unknown.
    """
    names = {name for name in (piece.strip() for piece in text.split(",")) if name}
    for group, parts in GROUPS.items():
        names = names - {group} | ({*parts} if group in names else set())
    names = names or {*PARTS}.difference(*GROUPS.values())
    for name in sorted(names - PARTS.keys()):
        hint = suggestion(name, tuple(PARTS))
        raise InvalidInput(why=f"unknown part {name!r}{hint}; parts: {', '.join([*PARTS, *GROUPS])}")
    return tuple(name for name in PARTS if name in names)


class Unit(NamedTuple):
    """The unit of a figure.

    Args:
        words: description for people.
        decimals: significant decimals.
    """

    words: str
    decimals: int


HISTORY_WORK = {
    "page": "page of the list",
    "by_state": "page of dead tasks",
    "report": "report of a day",
    "failures": "list of failures",
    "prune": "pruned task",
}
"""The work that the part `history` measures besides the tasks."""

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
    "once_us": Unit("us per task", 1),
    "twice_us": Unit("us per task, twice the rows", 1),
    "growth": Unit("of the time per task", 2),
    **{
        f"{name}_{figure}": Unit(f"{unit} {words}{twice}", decimals)
        for name, words in HISTORY_WORK.items()
        for figure, unit, twice, decimals in (
            ("once_us", "us per", "", 0),
            ("twice_us", "us per", ", twice the rows", 0),
            ("growth", "of the time per", "", 2),
        )
    },
    "ratio_1": Unit("of a plain drain, 1 runner", 2),
    "ratio_2": Unit("of a plain drain, 2 runners", 2),
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
        database: location of the sandbox.
        plan: the plan.
        machine: description of the machine, by topic.
        measurements: in order of execution.
        notes: warnings for the reader.
    """

    database: str
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
