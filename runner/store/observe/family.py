"""family: the tasks that one waits for and those that wait for it, a few levels up and down."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from runner.people.terminal import one_line
from runner.store.observe.legible import text, words
from runner.store.observe.parents import Parent, parents
from runner.store.observe.tallies import Count, capped
from runner.store.observe.tasks import TaskRow, task_rows
from runner.store.parentage import is_open
from runner.store.transaction import Transaction
from runner.task import FINAL, State

LEVELS = 4
"""Levels that are told of, above and below."""

MOST = 20
"""Tasks that are told of in each level."""

CAP = 10_000
"""Children that are counted."""

NONE = Count()


@dataclass(frozen=True, slots=True)
class Kin:
    """One line of a family: that one task waits for another.

    Args:
        depth: levels away, from 0 for what is next to the task itself.
        edge: the number by which an operator can let go of it.
        task: the one that is told of: above the one that is waited for, below the one that waits; None when it is
            not submitted yet, or gone.
        text: a sentence, safe to show.
        open: the one still waits for the other.
    """

    depth: int
    edge: int
    task: TaskRow | None
    text: str
    open: bool

    @property
    def line(self) -> str:
        """The sentence below that of the one it hangs on, with its number before it."""
        return f"{f'[{self.edge}]':>8}  {'  ' * self.depth}{self.text}"


@dataclass(frozen=True, slots=True)
class Family:
    """What a task waits for, and what waits for it.

    Args:
        total: how many tasks it waits or waited for.
        waiting: how many of them it still waits for.
        ended: how many of them were seen to end, by their state.
        above: some of them, and what these wait for in turn; those that are waited for first.
        children: how many tasks wait or waited for it.
        below: some of them, and what waits for these in turn.
    """

    total: int = 0
    waiting: int = 0
    ended: Mapping[str, int] | None = None
    above: tuple[Kin, ...] = ()
    children: Count = NONE
    below: tuple[Kin, ...] = ()

    @property
    def progress(self) -> str:
        """How far it is, in words; empty where there is nothing to wait for."""
        if not self.total:
            return ""
        parts = [f"{number:,} {state}" for state, number in (self.ended or {}).items()]
        more = f": {', '.join(parts)}" if parts else ""
        return f"{sum((self.ended or {}).values()):,} of {self.total:,} have ended{more}"

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Titles, each with the lines below it; safe to show."""
        for title, kin, number in (
            ("what it waits for" if self.waiting else "what it waited for", self.above, Count(self.total)),
            ("what waits for it", self.below, self.children),
        ):
            if kin:
                next_to_it = sum(not each.depth for each in kin)
                told = f" ({next_to_it} of {number})" if number.number > next_to_it else ""
                yield f"{title}{told}", [each.line for each in kin]


@dataclass(frozen=True, slots=True)
class Child:
    """That a task waits for one of some others: see Parent."""

    task: TaskRow | None
    id: int
    parent: int
    edge: int
    on_failure: str
    open: bool


async def family(tx: Transaction, task: TaskRow) -> Family:
    """Tell what a task waits for, and what waits for it.

    Args:
        tx: an open transaction.
        task: the task.
    """
    total, waiting, ended = await _progress(tx, task.id)
    children = await _count(tx, task)
    return Family(
        total=total,
        waiting=waiting,
        ended=ended,
        above=await _above(tx, task) if total else (),
        children=children,
        below=await _below(tx, task) if children.number else (),
    )


async def _progress(tx: Transaction, id: int) -> tuple[int, int, dict[str, int]]:
    edge = tx.tables.dependency.c
    held, number = is_open(edge).label("held"), sa.func.count().label("number")
    rows = await tx.rows(
        sa.select(edge.parent_state, held, number).where(edge.task_id == id).group_by(edge.parent_state, held)
    )
    ended: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.parent_state is not None:
            ended[words(row.parent_state)] += row.number
    order = [*FINAL, *ended]
    known = {state: ended[state] for state in sorted(ended, key=order.index)}
    return sum(row.number for row in rows), sum(row.number for row in rows if row.held), known


async def _above(tx: Transaction, task: TaskRow) -> tuple[Kin, ...]:
    found: dict[int, list[Parent]] = {}
    level = [task.id]
    for depth in range(LEVELS):
        rows = await parents(tx, *level, closed=not depth, limit=MOST)
        found |= {id: [] for id in level}
        for row in rows:
            found[row.child].append(row)
        held = [row.task.id for row in rows if row.open and row.task and row.task.state is State.BLOCKED]
        level = [id for id in dict.fromkeys(held) if id not in found]
        if not level:
            break
    return tuple(_up(found, task.id, 0, frozenset()))


def _up(found: Mapping[int, Sequence[Parent]], id: int, depth: int, path: frozenset[int]) -> Iterator[Kin]:
    for parent in found.get(id, ()):
        circle = parent.task is not None and parent.task.id in path | {id}
        yield Kin(depth, parent.edge, parent.task, _waits(parent, circle=circle), parent.open)
        if parent.open and parent.task and not circle:
            yield from _up(found, parent.task.id, depth + 1, path | {id})


def _waits(parent: Parent, *, circle: bool) -> str:
    waits = "waits for" if parent.open else "waited for"
    name = one_line(parent.name)
    if parent.task is None:
        awaited = "not submitted yet" if parent.open else "not submitted by then"
        state = awaited if parent.id is None else "not there any more"
    else:
        key = f" {one_line(parent.key)}" if parent.key is not None else ""
        name, state = f"task {parent.task.id} {one_line(parent.task.handler)}{key}", str(parent.task.shown)
    rule = f"; if that fails: {one_line(parent.on_failure)}" if parent.open else ""
    by = f"; let go by {one_line(parent.satisfied_by)}" if parent.satisfied_by else ""
    return f"{waits} {name}: {state}{rule}{by}{'; a circle: neither can ever run' if circle else ''}"


async def _below(tx: Transaction, task: TaskRow) -> tuple[Kin, ...]:
    found: dict[int, list[Child]] = {}
    level = [task]
    for _ in range(LEVELS):
        rows = await _children(tx, level)
        found |= {row.id: [] for row in level}
        for row in rows:
            found[row.parent].append(row)
        below = {row.task.id: row.task for row in rows if row.task and row.task.id not in found}
        level = list(below.values())
        if not level:
            break
    return tuple(_down(found, task.id, 0, frozenset()))


def _down(found: Mapping[int, Sequence[Child]], id: int, depth: int, path: frozenset[int]) -> Iterator[Kin]:
    for child in found.get(id, ()):
        name = f"task {child.id} {one_line(child.task.handler)}" if child.task else f"task {child.id}"
        state = str(child.task.shown) if child.task else "not there any more"
        rule = f"; if it fails: {one_line(child.on_failure)}" if child.open else ""
        waits = "waits for it" if child.open else "waited for it"
        yield Kin(depth, child.edge, child.task, f"{name} {waits}: {state}{rule}", child.open)
        if child.id not in path:
            yield from _down(found, child.id, depth + 1, path | {id})


async def _children(tx: Transaction, level: Sequence[TaskRow]) -> list[Child]:
    """What waits for some tasks, so many at most of each."""
    edge, found = tx.tables.dependency.c, []
    for task in level[:MOST]:
        columns = (edge.id, edge.task_id, edge.on_failure, is_open(edge).label("open"))
        some = sa.select(*columns).where(_waits_for(tx, task)).limit(CAP).subquery()
        order = (sa.case((some.c.open, 0), else_=1), some.c.id)
        rows = await tx.rows(sa.select(*some.c).order_by(*order).limit(MOST))
        found += [(task.id, row) for row in rows]
    tasks = {task.id: task for task in await task_rows(tx, [row.task_id for _, row in found])}
    return [
        Child(tasks.get(row.task_id), row.task_id, parent, row.id, words(row.on_failure), bool(row.open))
        for parent, row in found
    ]


async def _count(tx: Transaction, task: TaskRow) -> Count:
    some = sa.select(tx.tables.dependency.c.id).where(_waits_for(tx, task)).limit(CAP + 1).subquery()
    number = int(await tx.scalar(sa.select(sa.func.count()).select_from(some)))
    return capped(number, CAP)


def _waits_for(tx: Transaction, task: TaskRow) -> sa.ColumnElement[bool]:
    edge = tx.tables.dependency.c
    by_id = edge.parent_id == task.id
    if text(task.key) is None:
        return by_id
    return by_id | ((edge.parent_key == task.key) & (edge.parent_handler == task.handler) & is_open(edge))
