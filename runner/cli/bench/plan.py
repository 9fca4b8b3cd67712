"""The plan: the parts to measure, and their amounts."""

from dataclasses import dataclass

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
}
"""Every part with its description, in the order of execution."""

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
    """

    tasks: int = 20_000
    parts: tuple[str, ...] = tuple(PARTS)
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

    @property
    def idle(self) -> float:
        """Seconds of the parts `idle`, `schedules` and `ticks`."""
        return self.seconds * IDLE_SHARE


def read_parts(text: str) -> tuple[str, ...]:
    """Parse part names separated by commas.

    Args:
        text: the names; empty for all parts.

    Returns:
        The names in the order of PARTS.

    Raises:
        InvalidInput: a name is unknown.
    """
    names = {name for name in (piece.strip() for piece in text.split(",")) if name}
    for name in sorted(names - PARTS.keys()):
        hint = suggestion(name, tuple(PARTS))
        raise InvalidInput(why=f"unknown part {name!r}{hint}; parts: {', '.join(PARTS)}")
    return tuple(name for name in PARTS if name in names or not names)
