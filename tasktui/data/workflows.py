"""The data of the workflows screen: the workflows, and the graph of one of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from runner.db.transaction import Transaction, clock
from runner.errors import WorkflowNotFound
from runner.queries.workflows.critical import CriticalPath, critical_paths
from runner.queries.workflows.graph import WorkflowGraph, workflow_graph
from runner.queries.workflows.list import WorkflowRow, workflow_rows, workflows

MOST_WORKFLOWS = 100
"""Workflows of the list, the newest ones."""


@dataclass(frozen=True, slots=True)
class WorkflowBoard:
    """The workflows at one moment.

    Args:
        rows: the workflows, the newest one first.
        paths: the critical path of each workflow, by its id.
        graph: the graph of the workflow under the cursor; None without one.
    """

    at: datetime
    rows: tuple[WorkflowRow, ...]
    paths: Mapping[int, CriticalPath]
    graph: WorkflowGraph | None


async def read_workflows(
    tx: Transaction, id: int | None, also: int | None, *, name: str | None, unfinished: bool
) -> WorkflowBoard:
    """Read the workflows.

    Args:
        id: the workflow whose graph to read; None for the first one.
        also: a workflow that is listed in any case, if it has tasks; None for no other.
        name: only those with this name, in which each `*` is any text; None for all.
        unfinished: only those with a live task.
    """
    rows, at = await tx.gather(workflows(tx, MOST_WORKFLOWS, name=name, unfinished=unfinished), clock(tx))
    if also is not None and all(row.id != also for row in rows):
        rows += [row for row in await workflow_rows(tx, [also]) if row.total]
    id = id if any(row.id == id for row in rows) else rows[0].id if rows else None
    paths, graph = await tx.gather(critical_paths(tx, rows), _graph(tx, id))
    return WorkflowBoard(at, tuple(rows), paths, graph)


async def _graph(tx: Transaction, id: int | None) -> WorkflowGraph | None:
    try:
        return None if id is None else await workflow_graph(tx, id)
    except WorkflowNotFound:  # pruned since the list was read
        return None
