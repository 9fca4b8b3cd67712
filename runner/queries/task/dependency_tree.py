"""The dependencies and dependents of a task, a few levels deep."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.schema import is_open, is_state
from runner.db.transaction import Transaction
from runner.model.task import FINAL, State
from runner.queries.counting import Count, capped
from runner.queries.rows import as_text, text
from runner.queries.task.parents import Parent, parents
from runner.queries.task_list.row import TaskRow, task_rows
from runner.store.dependencies.parents import parent_of
from runner.text.sanitize import one_line

LEVELS = 4
"""The levels to read in each direction."""

MOST = 20
"""Maximum number of tasks of each level."""

CAP = 10_000
"""Maximum number of dependents to count."""

NONE = Count()


@dataclass(frozen=True, slots=True)
class Relative:
    """One dependency in the tree.

    Args:
        depth: its level, from 0 for the task's own dependencies and dependents.
        dependency_id: its id, as an operator unblocks it.
        task: the parent (above) or the dependent (below); None if it is not submitted yet, or no longer exists.
        text: a sentence, safe to print.
        open: True while the dependent waits for the parent.
    """

    depth: int
    dependency_id: int
    task: TaskRow | None
    text: str
    open: bool

    @property
    def line(self) -> str:
        """The sentence, indented by level, after the id."""
        return f"{f'[{self.dependency_id}]':>8}  {'  ' * self.depth}{self.text}"


@dataclass(frozen=True, slots=True)
class DependencyTree:
    """The dependencies and dependents of a task.

    Args:
        total: the number of its dependencies, open and resolved.
        waiting: the number of open ones.
        ended: the number of ended parents by their final state.
        above: some of its dependencies and theirs in turn, open ones first.
        children: the number of its dependents.
        below: some of its dependents and theirs in turn.
    """

    total: int = 0
    waiting: int = 0
    ended: Mapping[str, int] | None = None
    above: tuple[Relative, ...] = ()
    children: Count = NONE
    below: tuple[Relative, ...] = ()

    @property
    def progress(self) -> str:
        """The number of ended parents, in words; empty without dependencies."""
        if not self.total:
            return ""
        parts = [f"{number:,} {state}" for state, number in (self.ended or {}).items()]
        more = f": {', '.join(parts)}" if parts else ""
        return f"{sum((self.ended or {}).values()):,} of {self.total:,} have ended{more}"

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Titles, each with its lines; safe to print."""
        for title, kin, number in (
            ("dependencies", self.above, Count(self.total)),
            ("dependents", self.below, self.children),
        ):
            if kin:
                next_to_it = sum(not each.depth for each in kin)
                counts = f" ({next_to_it} of {number})" if number.number > next_to_it else ""
                yield f"{title}{counts}", [each.line for each in kin]


@dataclass(frozen=True, slots=True)
class TreeChild:
    """One dependent of some tasks: see Parent."""

    task: TaskRow | None
    id: int
    parent: int
    dependency_id: int
    on_failure: str
    open: bool


class DependencyProgress(NamedTuple):
    """The numbers of dependencies of a task: all, the open ones, and the resolved ones by state of the parent."""

    total: int
    waiting: int
    ended: dict[str, int]


async def dependency_tree(tx: Transaction, task: TaskRow, progress: DependencyProgress) -> DependencyTree:
    """Read the dependencies and dependents of a task."""
    children, above, below = await tx.gather(
        _count(tx, task), _above(tx, task) if progress.total else _no_parents(), _below(tx, task)
    )
    return DependencyTree(**progress._asdict(), above=above, children=children, below=below)


async def _no_parents() -> tuple[Relative, ...]:
    return ()


async def dependency_progress(tx: Transaction, id: int) -> DependencyProgress:
    """Count the dependencies of a task."""
    dependency = tx.tables.dependency.c
    still_open, number = is_open(dependency).label("open"), sa.func.count().label("number")
    rows = await tx.rows(
        sa.select(dependency.parent_state, still_open, number)
        .where(dependency.task_id == id)
        .group_by(dependency.parent_state, still_open)
    )
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.parent_state is not None:
            counts[as_text(row.parent_state)] += row.number
    order = [*FINAL, *counts]
    ended_by_state = {state: counts[state] for state in sorted(counts, key=order.index)}
    total, waiting = sum(row.number for row in rows), sum(row.number for row in rows if row.open)
    return DependencyProgress(total, waiting, ended_by_state)


async def _above(tx: Transaction, task: TaskRow) -> tuple[Relative, ...]:
    parents_by_child: dict[int, list[Parent]] = {}
    level = [task.id]
    for depth in range(LEVELS):
        rows = await parents(tx, *level, closed=not depth, limit=MOST)
        parents_by_child |= {id: [] for id in level}
        for row in rows:
            parents_by_child[row.child].append(row)
        blocked_ids = [row.task.id for row in rows if row.open and row.task and row.task.state is State.BLOCKED]
        level = [id for id in dict.fromkeys(blocked_ids) if id not in parents_by_child]
        if not level:
            break
    return tuple(_up(parents_by_child, task.id, 0, frozenset()))


def _up(
    parents_by_child: Mapping[int, Sequence[Parent]], id: int, depth: int, path: frozenset[int]
) -> Iterator[Relative]:
    for parent in parents_by_child.get(id, ()):
        cycle = parent.task is not None and parent.task.id in path | {id}
        yield Relative(depth, parent.dependency_id, parent.task, _waits(parent, cycle=cycle), parent.open)
        if parent.open and parent.task and not cycle:
            yield from _up(parents_by_child, parent.task.id, depth + 1, path | {id})


def _waits(parent: Parent, *, cycle: bool) -> str:
    waits = "waits for" if parent.open else "waited for"
    name = one_line(parent.name)
    if parent.task is None:
        awaited = "not submitted yet" if parent.open else "never submitted"
        state = awaited if parent.id is None else "no longer exists"
    else:
        key = f" {one_line(parent.key)}" if parent.key is not None else ""
        name, state = f"task {parent.task.id} {one_line(parent.task.handler)}{key}", str(parent.task.shown)
    rule = f"; on failure: {one_line(parent.on_failure)}" if parent.open else ""
    by = f"; unblocked by {one_line(parent.satisfied_by)}" if parent.satisfied_by else ""
    return f"{waits} {name}: {state}{rule}{by}{'; cycle: none of them can ever run' if cycle else ''}"


async def _below(tx: Transaction, task: TaskRow) -> tuple[Relative, ...]:
    children_by_parent: dict[int, list[TreeChild]] = {}
    level = [task]
    for _ in range(LEVELS):
        rows = await _children(tx, level)
        children_by_parent |= {row.id: [] for row in level}
        for row in rows:
            children_by_parent[row.parent].append(row)
        below = {row.task.id: row.task for row in rows if row.task and row.task.id not in children_by_parent}
        level = list(below.values())
        if not level:
            break
    return tuple(_down(children_by_parent, task.id, 0, frozenset()))


def _down(
    children_by_parent: Mapping[int, Sequence[TreeChild]], id: int, depth: int, path: frozenset[int]
) -> Iterator[Relative]:
    for child in children_by_parent.get(id, ()):
        name = f"task {child.id} {one_line(child.task.handler)}" if child.task else f"task {child.id}"
        state = str(child.task.shown) if child.task else "no longer exists"
        rule = f"; on failure: {one_line(child.on_failure)}" if child.open else ""
        waits = "waits for it" if child.open else "waited for it"
        yield Relative(depth, child.dependency_id, child.task, f"{name} {waits}: {state}{rule}", child.open)
        if child.id not in path:
            yield from _down(children_by_parent, child.id, depth + 1, path | {id})


async def _children(tx: Transaction, level: Sequence[TaskRow]) -> list[TreeChild]:
    """The dependents of some tasks, up to MOST of each."""
    dependency, statements = tx.tables.dependency.c, []
    for task in level[:MOST]:
        columns = (dependency.id, dependency.task_id, dependency.on_failure, is_open(dependency).label("open"))
        dependents = sa.select(*columns).where(_waits_for(tx, task)).limit(CAP).subquery()
        order = (sa.case((dependents.c.open, 0), else_=1), dependents.c.id)
        statements.append(sa.select(*dependents.c).order_by(*order).limit(MOST))
    found = zip(level, await tx.gather(*map(tx.rows, statements)), strict=False)
    rows_by_parent = [(task.id, row) for task, rows in found for row in rows]
    tasks = {task.id: task for task in await task_rows(tx, [row.task_id for _, row in rows_by_parent])}
    return [
        TreeChild(tasks.get(row.task_id), row.task_id, parent, row.id, as_text(row.on_failure), bool(row.open))
        for parent, row in rows_by_parent
    ]


async def _count(tx: Transaction, task: TaskRow) -> Count:
    dependents = sa.select(tx.tables.dependency.c.id).where(_waits_for(tx, task)).limit(CAP + 1).subquery()
    number = int(await tx.scalar(sa.select(sa.func.count()).select_from(dependents)))
    return capped(number, CAP)


def _waits_for(tx: Transaction, task: TaskRow) -> sa.ColumnElement[bool]:
    dependency = tx.tables.dependency.c
    by_id = dependency.parent_id == task.id
    if text(task.key) is None:
        return by_id
    return by_id | (
        (dependency.parent_key == task.key) & (dependency.parent_handler == task.handler) & is_open(dependency)
    )


MOST_CYCLES = 1_000
"""Maximum number of blocked tasks to start from, oldest first."""

MOST_LINKS = 10_000
"""Maximum number of dependencies to follow."""


async def dependency_cycles(tx: Transaction) -> list[tuple[int, ...]]:
    """Find cycles among the oldest blocked tasks and their dependencies.

    Returns:
        The ids of each cycle, lowest first; each task waits for the next, and the last for the first.
    """
    task = tx.tables.task.c
    blocked = sa.select(task.id).where(is_state(task.state, State.BLOCKED)).order_by(task.id).limit(MOST_CYCLES)
    level, parents_of, count = [row.id for row in await tx.rows(blocked)], dict[int, list[int]](), 0
    while level and count < MOST_LINKS:
        links = await _links(tx, level, MOST_LINKS - count)
        parents_of |= {id: [] for id in level}
        for child, parent in links:
            parents_of[child].append(parent)
        count += len(links)
        level = [parent for parent in dict.fromkeys(parent for _, parent in links) if parent not in parents_of]
    return _circles(parents_of)


async def _links(tx: Transaction, level: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """The (child, parent) pairs of some tasks, if the child is blocked."""
    task, dependency = tx.tables.task, tx.tables.dependency
    parent = parent_of(tx.tables, dependency).label("parent")
    statement = sa.select(dependency.c.task_id, parent).join(task, task.c.id == dependency.c.task_id)
    is_blocked = is_state(task.c.state, State.BLOCKED) & is_open(dependency.c)
    rows = await tx.rows(
        statement.where(is_blocked, tx.dialect.one_of(dependency.c.task_id, level))
        .order_by(dependency.c.id)
        .limit(limit)
    )
    return [(row.task_id, row.parent) for row in rows if row.parent is not None]


def _circles(parents_of: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """Depth-first search from each task, with a cycle cut off where the path meets itself."""
    cycles: set[tuple[int, ...]] = set()
    done: set[int] = set()
    for start in parents_of:
        if start in done:
            continue
        path, stack = [start], [(start, iter(parents_of[start]))]
        while stack:
            parent = next(stack[-1][1], None)
            if parent is None:
                done.add(stack.pop()[0])
                path.pop()
            elif parent in path:
                cycle = path[path.index(parent) :]
                lowest = cycle.index(min(cycle))
                cycles.add((*cycle[lowest:], *cycle[:lowest]))
            elif parent in parents_of and parent not in done:
                stack.append((parent, iter(parents_of[parent])))
                path.append(parent)
    return sorted(cycles)
