"""The critical paths of the workflows of a list."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.db.transaction import Transaction
from runner.queries.workflows.graph import graphs_of
from runner.queries.workflows.list import WorkflowRow
from runner.text import formatting
from runner.text.document import JsonProperty
from runner.text.sanitize import count_noun, one_line

MOST_IN_LIST = 2_000
"""Maximum number of tasks for which a list computes critical paths, those of the newest workflows."""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The critical path of a workflow.

    Args:
        tasks: ids of its tasks, first to last.
        next: the first of them that has not finished, or is dead or cancelled and holds the next; None without one.
        handler: the handler of `next`.
        seconds: the seconds that its tasks take in total; expected ones for those that have not finished.
    """

    tasks: tuple[int, ...]
    next: int | None
    handler: str | None
    seconds: float

    @JsonProperty
    def text(self) -> str:
        """The next task and the number of those after it; the time in total if all have finished."""
        if self.next is None:
            return f"{count_noun(len(self.tasks), 'task')} in {formatting.duration(self.seconds)}"
        rest = len(self.tasks) - self.tasks.index(self.next) - 1
        return f"{self.next} {one_line(self.handler or '')}{f', then {rest:,} more' if rest else ''}"


async def critical_paths(tx: Transaction, rows: Sequence[WorkflowRow]) -> dict[int, CriticalPath]:
    """Compute the critical paths of workflows, by id; those beyond MOST_IN_LIST tasks are left out."""
    room, ids = MOST_IN_LIST, []
    for row in rows:
        if row.total <= room:
            ids.append(row.id)
            room -= row.total
    paths = {}
    for id, (nodes, path) in (await graphs_of(tx, ids)).items() if ids else ():
        by_id = {node.id: node for node in nodes}
        left = [by_id[each] for each in path if not by_id[each].state.final or by_id[each].holds]
        seconds = sum(by_id[each].expected for each in path)
        paths[id] = CriticalPath(path, left[0].id if left else None, left[0].handler if left else None, seconds)
    return paths
