"""cycles: reject new tasks that would depend on themselves, directly or through other tasks.

A task has no id before its submit, so only a handler and a key can close a cycle: through a new task that waits for
others and that has a key which others already wait for.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.schema import Tables, is_open, is_state
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.types import NO_JOIN
from runner.errors import InvalidTask
from runner.model.task import BatchMember, NewTask, State
from runner.store.dependencies.parents import parent_of

Name: TypeAlias = tuple[str, str]
Node: TypeAlias = int | Name | BatchMember
"""A task by id, by handler and key, or by its position among the new tasks."""

MOST_NODES = 10_000
"""Maximum number of tasks in a search; `runner check` finds cycles beyond it."""

NAME_COLUMNS: dict[str, Any] = {"handler": sa.Text, "key": sa.Text}
NODE_COLUMNS: dict[str, Any] = {
    "position": sa.Integer,
    "parent_id": sa.BigInteger,
    "parent_handler": sa.Text,
    "parent_key": sa.Text,
}


def refuse_cycles(frame: Frame, tasks: Sequence[NewTask]) -> Steps[None]:
    """Reject tasks that would depend on themselves.

    Two concurrent transactions that close a cycle between them do not see each other; `runner check` finds such cycles.

    Raises:
        InvalidTask: names the path from the task back to itself.
    """
    new = {(task.handler, task.key): task for task in tasks if task.key is not None and task.after}
    if new:
        waited_for = {dependency.parent for task in tasks for dependency in task.after or ()} & new.keys()
        rows = yield _query(frame, _waited_for, "name", NAME_COLUMNS, list(new))
        for name in waited_for | {(handler, key) for handler, key in rows}:
            if isinstance(name, tuple):
                yield from _walk(frame, name, new, tasks)


def _walk(frame: Frame, start: Name, new: Mapping[Name, NewTask], tasks: Sequence[NewTask]) -> Steps[None]:
    """Search the parents of a new task breadth-first."""
    predecessors: dict[Node, Node | None] = {start: None}
    labels: dict[Node, str] = {}
    level: list[Node] = [start]
    while level and len(predecessors) < MOST_NODES:
        new_tasks = {node: _new_task(node, new, tasks) for node in level}
        steps = [
            (node, dependency.parent) for node, task in new_tasks.items() if task for dependency in task.after or ()
        ]
        steps += yield from _stored(frame, [node for node, task in new_tasks.items() if task is None], labels)
        level = []
        for node, parent in steps:
            if parent == start or _new_task(parent, new, tasks) is new[start]:
                raise InvalidTask(
                    field="after", value=" ".join(start), why=_message([*_path(predecessors, node), start], labels)
                )
            if parent not in predecessors:
                predecessors[parent] = node
                level.append(parent)


def _new_task(node: Node, new: Mapping[Name, NewTask], tasks: Sequence[NewTask]) -> NewTask | None:
    """Return the new task for a node; None for stored tasks."""
    if isinstance(node, BatchMember):
        return tasks[node.position]
    return new.get(node) if isinstance(node, tuple) else None


def _stored(frame: Frame, nodes: Sequence[Node], labels: dict[Node, str]) -> Steps[list[tuple[Node, Node]]]:
    """Return the dependencies of stored tasks and add their names to `labels`."""
    if not nodes:
        return []
    node_rows = [
        (position, None, *node) if isinstance(node, tuple) else (position, node, None, None)
        for position, node in enumerate(nodes)
    ]
    steps: list[tuple[Node, Node]] = []
    rows = yield _query(frame, _dependencies, "node", NODE_COLUMNS, node_rows)
    for position, task_id, handler, key, *parent in rows:
        labels[nodes[position]] = f"task {task_id} ({' '.join(filter(None, (handler, key)))})"
        steps.append((nodes[position], parent[0] if parent[2] is None else (parent[1], parent[2])))
    return steps


def _path(predecessors: Mapping[Node, Node | None], last: Node) -> list[Node]:
    path: list[Node] = []
    node: Node | None = last
    while node is not None:
        path.append(node)
        node = predecessors[node]
    return path[::-1]


def _message(path: Sequence[Node], labels: Mapping[Node, str]) -> str:
    names = [labels.get(node) or (" ".join(node) if isinstance(node, tuple) else _name(node)) for node in path]
    return f"it would depend on itself: {' -> '.join(names)}"


def _name(node: int | BatchMember) -> str:
    return f"new task {node.position}" if isinstance(node, BatchMember) else f"task {node}"


def _query(frame: Frame, statement: Any, name: str, columns: dict[str, Any], rows: Collection[Any]) -> Step:
    return Step(statement(frame.tables, frame.driver), frame.dialect.row_parameters(name, columns, rows))


@lru_cache
def _waited_for(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The names that open dependencies refer to."""
    name, dependency = DIALECTS[driver.name].rows("name", NAME_COLUMNS), tables.dependency
    named = (dependency.c.parent_key == name.c.key) & (dependency.c.parent_handler == name.c.handler)
    return Prepared(
        sa.select(name.c.handler, name.c.key).where(sa.exists().where(named, is_open(dependency.c))), driver
    )


@lru_cache
def _dependencies(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The open dependencies of blocked tasks, by id or by handler and key."""
    node, task, dependency = DIALECTS[driver.name].rows("node", NODE_COLUMNS), tables.task, tables.dependency
    parent_ids = sa.select(node.c.position, parent_of(tables, node).label("task_id")).offset(NO_JOIN)
    parent_rows = parent_ids.subquery("parents")
    joined = parent_rows.join(task, task.c.id == parent_rows.c.task_id).join(
        dependency, dependency.c.task_id == task.c.id
    )
    columns = (dependency.c.parent_id, dependency.c.parent_handler, dependency.c.parent_key)
    dependencies = sa.select(parent_rows.c.position, task.c.id, task.c.handler, task.c.key, *columns).select_from(
        joined
    )
    blocked = is_state(task.c.state, State.BLOCKED) & is_open(dependency.c)
    return Prepared(dependencies.where(blocked).limit(sa.literal_column(str(MOST_NODES))), driver)
