"""The graph of a workflow: its tasks, the dependencies between them, and its critical path."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import is_open
from runner.db.transaction import Transaction, clock
from runner.db.types import NO_JOIN
from runner.errors import WorkflowNotFound
from runner.model.step import reason_of
from runner.model.task import Shown, State
from runner.policy.critical_path import critical_path
from runner.queries.rows import as_text, moment, number, readable, text
from runner.queries.task_list.row import SHORT, displayed_state
from runner.queries.workflows.list import WorkflowRow, workflow_rows
from runner.store.dependencies.parents import parent_of

MOST_TASKS = 10_000
"""Maximum number of tasks of a graph, the oldest ones."""


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A task of a workflow.

    Args:
        seconds: the duration of the last attempt; the time since the claim for a running task; None before a claim.
        expected: the seconds that its critical path counts: those, or the mean of its handler in the workflow.
        parents: ids of its parents in the workflow.
        outside: the number of its parents outside of it.
        holds: True if it is dead or cancelled, and a task waits for it.
        critical: True if it is on the critical path.
        reason: the signal, sleep or task that a step of it waits for: `waits for signal paid`; None without one.
    """

    id: int
    handler: str
    key: str | None
    state: State
    shown: Shown
    seconds: float | None
    expected: float
    parents: tuple[int, ...]
    outside: int
    holds: bool
    critical: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class WorkflowGraph:
    """The graph of a workflow.

    Args:
        tasks: its tasks, by id.
        path: ids of the tasks on its critical path, first to last.
        more: True if it has more tasks than a graph shows.
    """

    workflow: WorkflowRow
    tasks: tuple[WorkflowNode, ...]
    path: tuple[int, ...]
    at: datetime
    more: bool = False


async def workflow_graph(tx: Transaction, id: int) -> WorkflowGraph:
    """Read the graph of a workflow.

    Raises:
        WorkflowNotFound: there is neither a row nor a task with this id.
    """
    rows, graphs, now = await tx.gather(workflow_rows(tx, [id]), graphs_of(tx, [id]), clock(tx))
    nodes, path = graphs.get(id, ((), ()))
    if not rows or not (rows[0].total or rows[0].submitted_at):
        raise WorkflowNotFound(id=id)
    return WorkflowGraph(rows[0], tuple(nodes), path, now, rows[0].total > len(nodes))


async def graphs_of(tx: Transaction, ids: Sequence[int]) -> dict[int, tuple[Sequence[WorkflowNode], tuple[int, ...]]]:
    """Read the tasks of workflows, at most MOST_TASKS, and their critical paths, by workflow."""
    found, edges, now = await tx.gather(_tasks(tx, ids), _edges(tx, ids), clock(tx))
    by_workflow: dict[int, dict[int, Any]] = defaultdict(dict)
    for task_id, row in found.items():
        by_workflow[row["workflow"]][task_id] = row
    return {workflow: _graph(rows, edges, now) for workflow, rows in by_workflow.items()}


async def _tasks(tx: Transaction, ids: Sequence[int]) -> dict[int, Mapping[Any, Any]]:
    found: dict[int, Mapping[Any, Any]] = {}
    statements = []
    for table in (tx.tables.history, tx.tables.task):
        column = table.c
        names = ["id", "workflow", "handler", "state", "claimed_at"] + ["duration"] * (table is tx.tables.history)
        key = sa.func.substr(column.key, 1, 200).label("key")
        columns = [
            *readable(tx, [column[name] for name in names]),
            key,
            displayed_state(tx.tables, table).label("shown"),
        ]
        if table is tx.tables.task:
            columns.append(sa.func.substr(column.error, 1, SHORT).label("error"))
        statements.append(_members(tx, table, ids, columns).limit(MOST_TASKS))
    for result in await tx.gather(*map(tx.execute, statements)):
        found |= {row["id"]: row for row in result.mappings().all()}
    return {id: found[id] for id in sorted(found)[:MOST_TASKS]}


class _Edge(NamedTuple):
    """A dependency: its parent, None for one that is not submitted yet, and whether the task waits for it."""

    parent: int | None
    open: bool


async def _edges(tx: Transaction, ids: Sequence[int]) -> dict[int, list[_Edge]]:
    """Read the dependencies of the tasks of workflows, beside the tasks, which would cost another round trip."""
    names = ("id", "task_id", "parent_id", "parent_handler", "parent_key", "satisfied_at")
    edges: dict[int, list[_Edge]] = defaultdict(list)
    statements = []
    for table in (tx.tables.history, tx.tables.task):
        tasks = _members(tx, table, ids, [table.c.id]).limit(MOST_TASKS).subquery("member")
        own = tx.tables.dependency.c
        each = sa.select(*(own[name] for name in names)).where(own.task_id == tasks.c.id).offset(NO_JOIN)
        joined, match = tx.dialect.for_each(tasks, each.correlate(tasks), tx.tables.dependency)
        edge = sa.select(*(match[name] for name in names)).select_from(joined).subquery("edge")
        columns = (parent_of(tx.tables, edge).label("parent"), is_open(edge.c).label("open"))
        statements.append(sa.select(edge.c.task_id, *columns).order_by(edge.c.id))
    for rows in await tx.gather(*map(tx.rows, statements)):
        for row in rows:
            edges[row.task_id].append(_Edge(row.parent, bool(row.open)))
    return edges


def _members(tx: Transaction, table: sa.Table, ids: Sequence[int], columns: Sequence[Any]) -> sa.Select[Any]:
    column = table.c
    members = sa.select(*columns).where(tx.dialect.one_of(column.workflow, ids), column.workflow.is_not(None))
    return members.order_by(column.workflow, column.id)


HELD = 1e9
"""Seconds that the critical path adds for a task that holds others, so that it leads through it."""


def _graph(
    rows: Mapping[int, Mapping[Any, Any]], edges: Mapping[int, Sequence[_Edge]], now: datetime
) -> tuple[list[WorkflowNode], tuple[int, ...]]:
    seconds = {id: _seconds(row, now) for id, row in rows.items()}
    done: dict[str, list[float]] = defaultdict(list)
    for id, row in rows.items():
        if row["state"] == State.SUCCEEDED and (took := seconds[id]) is not None:
            done[as_text(row["handler"])].append(took)
    means = {handler: sum(took) / len(took) for handler, took in done.items()}
    waited = {edge.parent for id in rows for edge in edges.get(id, ()) if edge.open}
    nodes = []
    for id, row in rows.items():
        state, handler, own = State(row["state"]), as_text(row["handler"]), edges.get(id, ())
        expected = max(means.get(handler, 0.0) if not state.final else 0.0, seconds[id] or 0.0)
        inside = tuple(dict.fromkeys(edge.parent for edge in own if edge.parent in rows and edge.parent is not None))
        holds = id in waited and state.final and state is not State.SUCCEEDED
        counts = sum(edge.parent not in rows for edge in own), holds
        shown = Shown(row["shown"])
        reason = reason_of(text(row["error"])) if shown in (Shown.SCHEDULED, Shown.RETRYING) else None
        node = WorkflowNode(id, handler, text(row["key"]), state, shown, seconds[id], expected, inside, *counts)
        nodes.append(replace(node, reason=reason))
    lengths = {node.id: node.expected + HELD * node.holds for node in nodes}
    path = critical_path(lengths, {node.id: node.parents for node in nodes})
    on_path = frozenset(path)
    return [replace(node, critical=node.id in on_path) for node in nodes], path


def _seconds(row: Mapping[Any, Any], now: datetime) -> float | None:
    if row["state"] == State.RUNNING:
        claimed_at = moment(row["claimed_at"])
        return max(0.0, (now - claimed_at).total_seconds()) if claimed_at else None
    return number(row["duration"]) if "duration" in row else None
