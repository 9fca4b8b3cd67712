"""cycles: reject new tasks that would depend on themselves, directly or through other tasks.

A new task has no id yet, so others wait for it by its handler and key. Only one that waits itself closes a cycle. Tasks
that continue a workflow have more dependents: those of the running task will wait for them too.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.schema import Tables, is_open
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.types import NO_JOIN
from runner.errors import InvalidTask
from runner.model.task import BatchMember, NewTask
from runner.policy.uniqueness import Contest
from runner.store.dependencies.parents import is_blocked, is_of_submit, parent_of
from runner.store.dependencies.submit import DependencyRow, DependencyRows, ParentState

Node: TypeAlias = int | tuple[str, str] | BatchMember
"""A task by id, by handler and key, or by its position among the new tasks."""

Start: TypeAlias = tuple[int | None, str | None, str | None]
"""A task by id, or by handler and key."""

MOST_NODES = 10_000
"""Maximum number of dependencies in a search; `runner check` finds cycles beyond it."""

START_COLUMNS: dict[str, Any] = {"position": sa.Integer, "id": sa.BigInteger, "handler": sa.Text, "key": sa.Text}
START_KEY = ("handler", "key")


class BlockedTask(NamedTuple):
    """A blocked task that waits for another one.

    Args:
        parent: the id of the other task; None for a start by handler and key.
        start: the position of that start; None for others.
        by_id: its submit named the other task by its id.
    """

    id: int
    handler: str
    key: str | None
    parent: int | None
    start: int | None
    by_id: bool


def refuse_cycles(
    frame: Frame, tasks: Sequence[NewTask], per_task: DependencyRows, outcome: Contest | None, continued: int | None
) -> Steps[None]:
    """Reject tasks that would depend on themselves, before their insert.

    Two concurrent transactions that close a cycle between them do not see each other; `runner check` finds such cycles.

    Args:
        per_task: the dependencies of each task; empty if no task has any.
        outcome: the duplicates among the tasks; None without unique keys.
        continued: the running task whose dependents will wait for the tasks too; None without one.

    Raises:
        InvalidTask: names the path from the task back to itself.
    """
    same: dict[int, Node] = {}
    if outcome is not None:
        same = {**outcome.existing, **{place: BatchMember(first) for place, first in outcome.same_submit.items()}}
    rows = {place: row for place, row in enumerate(per_task[: len(tasks)]) if row and place not in same}
    keyed = ((place, task) for place, task in enumerate(tasks) if task.key is not None and place not in same)
    named = {(task.handler, str(task.key)): place for place, task in keyed}
    awaited = [name for name, place in named.items() if place in rows]
    if not awaited and (continued is None or not (rows or same)):
        return
    nodes = [same.get(place, BatchMember(place)) for place in range(len(tasks))]
    new = {name: nodes[place] for name, place in named.items()}
    graph: dict[Node, list[Node]] = {nodes[place]: _parents(row, nodes, new) for place, row in rows.items()}
    closing = {new[name] for name in awaited} if continued is None else {*graph, *same.values()}
    starts: list[Start] = [(None, *name) for name in awaited] + [(continued, None, None)] * (continued is not None)
    below = yield from dependents_below(frame, starts)
    for dependent in below:
        parent: Node = new[awaited[dependent.start or 0]] if dependent.parent is None else dependent.parent
        held = closing if dependent.by_id and parent == continued else ()
        graph.setdefault(dependent.id, []).extend((parent, *held))
    if path := _path_back(graph, closing):
        labels: dict[Node, str] = {dependent.id: _label(dependent) for dependent in below}
        why = f"it would depend on itself: {' -> '.join(labels.get(node) or _name(node, tasks) for node in path)}"
        if continued is not None:
            why += f"; the tasks that wait for task {continued} wait for the new ones too"
        raise InvalidTask(field="after", value=labels.get(path[0]) or _name(path[0], tasks), why=why)


def dependents_below(frame: Frame, starts: Sequence[Start]) -> Steps[list[BlockedTask]]:
    """Search the blocked tasks that wait for other ones, directly or through others; one statement is executed."""
    rows = [(position, *start) for position, start in enumerate(starts)]
    parameters = frame.dialect.row_parameters("start", START_COLUMNS, rows)
    return [BlockedTask(*row) for row in (yield Step(_below(frame.tables, frame.driver), parameters))]


def _parents(row: DependencyRow, nodes: Sequence[Node], new: Mapping[tuple[str, str], Node]) -> list[Node]:
    """The parents of a new task, and its predecessor; a handler and a key name the new task that has them."""
    parents: list[Node] = []
    for dependency, state in (*row.dependencies, *([(row.predecessor, ParentState())] if row.predecessor else ())):
        match dependency.parent:
            case BatchMember(position):
                parents.append(nodes[position])
            case (_, _) as name:
                parents.append(new.get(name) or state.id or name)
            case id:
                parents.append(id)
    return parents


def _path_back(graph: Mapping[Node, Sequence[Node]], closing: Collection[Node]) -> list[Node]:
    """The path from one of some tasks through its parents back to itself; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        path: list[Node] = error.args[1][:0:-1]
        # The other cycles were there before.
        first = next((place for place, node in enumerate(path) if node in closing), None)
        return [] if first is None else [*path[first:], *path[: first + 1]]
    return []


def _label(task: BlockedTask) -> str:
    return f"task {task.id} ({' '.join(filter(None, (task.handler, task.key)))})"


def _name(node: Node, tasks: Sequence[NewTask]) -> str:
    match node:
        case BatchMember(position):
            task = tasks[position]
            return f"{task.handler} {task.key}" if task.key else f"new task {position}"
        case (handler, key):
            return f"{handler} {key}"
    return f"task {node}"


@lru_cache
def _below(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The blocked tasks below the starts: one row for each open dependency, with its parent."""
    dialect, task, dependency = DIALECTS[driver.name], tables.task, tables.dependency
    start, first = dialect.rows("start", START_COLUMNS), task.alias("first")
    names = [sa.func.coalesce(start.c[name], first.c[name]).label(name) for name in START_KEY]
    none = sa.cast(sa.null(), sa.BigInteger).label("parent")
    seeds = sa.select(start.c.id, *names, none, start.c.position, sa.false().label("by_id"), sa.true().label("first"))
    below = seeds.select_from(start.outerjoin(first, first.c.id == start.c.id)).cte("below", recursive=True)
    by_id = (dependency.c.parent_id == below.c.id) & dependency.c.parent_key.is_(None)
    by_key = (dependency.c.parent_key == below.c.key) & (dependency.c.parent_handler == below.c.handler)
    # A later task with the same handler and key is the parent instead.
    by_key &= below.c.id.is_(None) | (parent_of(tables, dependency) == below.c.id)
    columns = [dependency.c[name] for name in ("id", "task_id", "parent_key", "in_order", "step")]
    waits = [
        sa.select(*columns).where(condition, is_open(dependency.c)).correlate(below) for condition in (by_id, by_key)
    ]
    each = sa.select(sa.union_all(*waits).subquery("waits")).offset(NO_JOIN).correlate(below)
    joined, wait = dialect.for_each(below, each, dependency)
    position = sa.case((below.c.first, below.c.position))
    # A planner that expects many dependents would join all blocked tasks.
    handler, key = (sa.select(task.c[name]).where(task.c.id == wait.task_id).scalar_subquery() for name in START_KEY)
    by_submit = is_of_submit(wait) & wait.parent_key.is_(None)
    dependents = sa.select(wait.task_id, handler, key, below.c.id, position, by_submit, sa.false()).select_from(joined)
    below = below.union(dependents.where(is_blocked(tables, wait.task_id)))
    rows = sa.select(*(below.c[name] for name in ("id", "handler", "key", "parent", "position", "by_id")))
    return Prepared(rows.where(~below.c.first).limit(sa.literal_column(str(MOST_NODES))), driver)
