"""cycles: refuse new tasks that would wait for themselves, over however many others.

Nobody can wait for a task by its id before there is one, so a circle can only be closed by a handler and a key: by
submitting, as something that waits, what others wait for already.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.columns import NO_JOIN
from runner.errors import InvalidTask
from runner.schema import Tables, is_state
from runner.store.dialects import DIALECTS, by_column
from runner.store.parentage import is_open, parent_of
from runner.store.statement import Prepared
from runner.store.steps import Frame, Step, Steps
from runner.task import NewTask, Sibling, State

Name: TypeAlias = tuple[str, str]
Node: TypeAlias = int | Name | Sibling
"""A task, by its id, by its handler and key, or by its place among the new ones."""

MOST_NODES = 10_000
"""Tasks that are walked over before a search is given up; `runner check` finds what was missed."""

NAME_COLUMNS: dict[str, Any] = {"handler": sa.Text, "key": sa.Text}
NODE_COLUMNS: dict[str, Any] = {
    "place": sa.Integer,
    "parent_id": sa.BigInteger,
    "parent_handler": sa.Text,
    "parent_key": sa.Text,
}


def refuse_cycles(frame: Frame, tasks: Sequence[NewTask]) -> Steps[None]:
    """Refuse tasks that would wait for themselves.

    Two transactions that close a circle between them at the same moment do not see each other: see `runner check`.

    Args:
        frame: what the statements are for.
        tasks: to be submitted.

    Raises:
        InvalidTask: naming the way from the task back to itself.
    """
    new = {(task.handler, task.key): task for task in tasks if task.key is not None and task.after}
    if new:
        waited_for = {edge.parent for task in tasks for edge in task.after or ()} & new.keys()
        rows = yield _asking(frame, _waited_for, "name", NAME_COLUMNS, list(new))
        for name in waited_for | {(handler, key) for handler, key in rows}:
            if isinstance(name, tuple):
                yield from _walk(frame, name, new, tasks)


def _walk(frame: Frame, start: Name, new: Mapping[Name, NewTask], tasks: Sequence[NewTask]) -> Steps[None]:
    """Go from a new task to what it waits for, and on to what that waits for, level by level."""
    came: dict[Node, Node | None] = {start: None}
    told: dict[Node, str] = {}
    level: list[Node] = [start]
    while level and len(came) < MOST_NODES:
        known = {node: _known(node, new, tasks) for node in level}
        steps = [(node, edge.parent) for node, task in known.items() if task for edge in task.after or ()]
        steps += yield from _stored(frame, [node for node, task in known.items() if task is None], told)
        level = []
        for node, parent in steps:
            if parent == start or _known(parent, new, tasks) is new[start]:
                raise InvalidTask(field="after", value=" ".join(start), why=_told([*_way(came, node), start], told))
            if parent not in came:
                came[parent] = node
                level.append(parent)


def _known(node: Node, new: Mapping[Name, NewTask], tasks: Sequence[NewTask]) -> NewTask | None:
    """The new task that is meant; None for those that are stored."""
    if isinstance(node, Sibling):
        return tasks[node.place]
    return new.get(node) if isinstance(node, tuple) else None


def _stored(frame: Frame, nodes: Sequence[Node], told: dict[Node, str]) -> Steps[list[tuple[Node, Node]]]:
    """What stored tasks wait for; how they are called is noted in `told`."""
    if not nodes:
        return []
    places = [
        (place, None, *node) if isinstance(node, tuple) else (place, node, None, None)
        for place, node in enumerate(nodes)
    ]
    steps: list[tuple[Node, Node]] = []
    rows = yield _asking(frame, _edges, "node", NODE_COLUMNS, places)
    for place, task_id, handler, key, *parent in rows:
        told[nodes[place]] = f"task {task_id} ({' '.join(filter(None, (handler, key)))})"
        steps.append((nodes[place], parent[0] if parent[2] is None else (parent[1], parent[2])))
    return steps


def _way(came: Mapping[Node, Node | None], last: Node) -> list[Node]:
    way: list[Node] = []
    node: Node | None = last
    while node is not None:
        way.append(node)
        node = came[node]
    return way[::-1]


def _told(way: Sequence[Node], told: Mapping[Node, str]) -> str:
    names = [told.get(node) or (" ".join(node) if isinstance(node, tuple) else _called(node)) for node in way]
    return f"it would wait for itself: {', which waits for '.join(names)}"


def _called(node: int | Sibling) -> str:
    return f"the new task at place {node.place}" if isinstance(node, Sibling) else f"task {node}"


def _asking(frame: Frame, statement: Any, name: str, columns: dict[str, Any], rows: Collection[Any]) -> Step:
    return Step(statement(frame.tables, frame.driver), frame.dialect.parameters(name, by_column(columns, rows)))


@lru_cache
def _waited_for(tables: Tables, driver: sa.Dialect) -> Prepared:
    """Those of some names that blocked tasks wait for."""
    name, edge = DIALECTS[driver.name].rows("name", NAME_COLUMNS), tables.dependency
    named = (edge.c.parent_key == name.c.key) & (edge.c.parent_handler == name.c.handler)
    return Prepared(sa.select(name.c.handler, name.c.key).where(sa.exists().where(named, is_open(edge.c))), driver)


@lru_cache
def _edges(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The open edges of blocked tasks that are given by id, or by handler and key."""
    node, task, edge = DIALECTS[driver.name].rows("node", NODE_COLUMNS), tables.task, tables.dependency
    meant = sa.select(node.c.place, parent_of(tables, node).label("task_id")).offset(NO_JOIN)
    meant_ = meant.subquery("meant")
    found = meant_.join(task, task.c.id == meant_.c.task_id).join(edge, edge.c.task_id == task.c.id)
    columns = (edge.c.parent_id, edge.c.parent_handler, edge.c.parent_key)
    edges = sa.select(meant_.c.place, task.c.id, task.c.handler, task.c.key, *columns).select_from(found)
    blocked = is_state(task.c.state, State.BLOCKED) & is_open(edge.c)
    return Prepared(edges.where(blocked).limit(sa.literal_column(str(MOST_NODES))), driver)
