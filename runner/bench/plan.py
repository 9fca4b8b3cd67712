"""Plan: what to measure, and how much of it."""

from dataclasses import dataclass

from runner.errors import InvalidInput
from runner.people.fields import suggestion

PARTS = {
    "one": "submit one by one, each committed",
    "bulk": "submit many in one call",
    "coalesced": "submit single tasks from many coroutines, then threads",
    "drain": "run a backlog of tasks that do nothing",
    "latency": "from the submit to the start, on an idle runner",
    "pinned": "as drain, while an old transaction elsewhere keeps dead rows",
    "sustained": "submit as fast as tasks are run",
    "idle": "what a runner costs that has nothing to do",
    "profile": "where the time of a task goes",
}
"""Every part, in the order in which they are measured, with what happens in it."""

MOST_ONE = 3_000
MOST_LATENCIES = 500
"""Tasks that the parts which submit one by one take at most."""

BULK_TIMES = 5
"""So many times the tasks of a backlog are submitted in one call, which else were over too soon."""

IDLE_SHARE = 1 / 3
"""Of `seconds`: for so long an idle runner is watched."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Args:
        tasks: of a backlog.
        parts: names out of PARTS.
        runners: processes that work on a backlog.
        seconds: for which the part `sustained` lasts; other parts go by it too.
        reps: how often everything is measured; the parts take turns within each repetition.
    """

    tasks: int = 20_000
    parts: tuple[str, ...] = tuple(PARTS)
    runners: int = 1
    seconds: float = 30.0
    reps: int = 1

    @property
    def one(self) -> int:
        """Tasks that are submitted one by one."""
        return min(self.tasks, MOST_ONE)

    @property
    def bulk(self) -> int:
        """Tasks that are submitted in one call."""
        return BULK_TIMES * self.tasks

    @property
    def latencies(self) -> int:
        """Tasks whose latency is measured."""
        return min(self.tasks, MOST_LATENCIES)

    @property
    def idle(self) -> float:
        """Seconds for which an idle runner is watched."""
        return self.seconds * IDLE_SHARE


def read_parts(text: str) -> tuple[str, ...]:
    """Read the names of parts, separated by commas.

    Args:
        text: as typed; empty for all of them.

    Returns:
        Their names, in the order of PARTS.

    Raises:
        InvalidInput: there is no such part.
    """
    asked = {name for name in (piece.strip() for piece in text.split(",")) if name}
    for name in sorted(asked - PARTS.keys()):
        known = ", ".join(PARTS)
        raise InvalidInput(why=f"there is no part {name!r}{suggestion(name, tuple(PARTS))}; there are {known}")
    return tuple(name for name in PARTS if name in asked or not asked)
