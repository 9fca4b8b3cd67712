"""Dependencies of new tasks: look up their parents before the insert, and write the rows with it."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.schema import Tables
from runner.db.schema.partitions import mark_submit
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.types import NO_JOIN, db_now
from runner.errors import InvalidTask
from runner.model.task import FINAL, BatchMember, DependsOn, NewTask, State
from runner.model.task_batch import TaskBatch
from runner.store.dependencies.parents import final_state, is_live, parent_of

Parent: TypeAlias = int | tuple[str, str] | BatchMember

CHUNK = 5_000
"""Parents, or dependencies, per statement."""

PARENT_COLUMNS: dict[str, Any] = {
    "position": sa.Integer,
    "parent_id": sa.BigInteger,
    "parent_handler": sa.Text,
    "parent_key": sa.Text,
}
NEW_DEPENDENCY_COLUMNS: dict[str, Any] = {
    "task_id": sa.BigInteger,
    "parent_id": sa.BigInteger,
    "parent_handler": sa.Text,
    "parent_key": sa.Text,
    "on_failure": sa.Text,
    "in_order": sa.Boolean,
    "parent_state": sa.Text,
    "satisfied": sa.Integer,
}


ORDER_COLUMNS: dict[str, Any] = {"order_key": sa.Text}


class ParentState(NamedTuple):
    """The task id of a parent, and its final state; None for values that do not exist yet."""

    id: int | None = None
    state: str | None = None


class DependencyRow(NamedTuple):
    """The dependencies of one new task.

    Args:
        open: number of open ones, including the predecessor.
        predecessor: the dependency on the task before it in its order key; None for the first one.
    """

    dependencies: tuple[tuple[DependsOn, ParentState], ...]
    open: int
    predecessor: DependsOn | None = None

    @property
    def summary(self) -> str | None:
        """The final states of the parents as JSON text; None while a dependency is open."""
        states = [state.state for _, state in self.dependencies]
        return None if self.open else json.dumps({"total": len(states)} | {end: states.count(end) for end in FINAL})


DependencyRows: TypeAlias = Sequence[DependencyRow | None]
"""The dependencies of each new task, in order; empty if no task has any."""


def dependency_rows(frame: Frame, tasks: Sequence[NewTask]) -> Steps[DependencyRows]:
    """Look up the parents of new tasks.

    At READ COMMITTED no parent is locked. If one finishes during the submit, its dependency is stored as open, and the
    next sweep resolves it. On PostgreSQL the transaction is marked, so that each parent that it finds alive leaves a
    row. At a higher isolation level the snapshot may be older than the mark, and parents are locked.

    Args:
        tasks: the tasks to submit, of which some have parents or an order key.

    Raises:
        InvalidTask: a parent does not exist; nothing was written.
    """
    alike: Sequence[NewTask] = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
    waiting = [task for task in alike if task.after is not None]
    ordered = any(task.order_key is not None for task in alike)
    states: Mapping[Parent, ParentState] = {}
    if waiting:
        _require_earlier_members(alike)
        parents = {cast("Parent", dependency.parent): None for task in waiting for dependency in task.after or ()}
        states = yield from _look_up(frame, [parent for parent in parents if not isinstance(parent, BatchMember)])
    predecessors = (yield from _predecessors(frame, alike)) if ordered else [None] * len(alike)
    per_task = [_dependency_row(task.after or (), states, last) for task, last in zip(alike, predecessors, strict=True)]
    return per_task * len(tasks) if isinstance(tasks, TaskBatch) else per_task


def insert_dependencies(frame: Frame, ids: Sequence[int], per_task: DependencyRows) -> Steps[None]:
    """Write the dependencies of new tasks.

    Args:
        per_task: the dependencies of each task; None for duplicates.
    """
    blocked = [(id, row) for id, row in zip(ids, per_task, strict=False) if row]
    rows = [_row(id, dependency, state, ids) for id, row in blocked for dependency, state in row.dependencies]
    rows += [_row(id, row.predecessor, ParentState(), ids, in_order=True) for id, row in blocked if row.predecessor]
    for first in range(0, len(rows), CHUNK):
        part = frame.dialect.row_parameters("dependency", NEW_DEPENDENCY_COLUMNS, rows[first : first + CHUNK])
        yield Step(_insertion(frame.tables, frame.driver), part)


def _require_earlier_members(tasks: Sequence[NewTask]) -> None:
    for position, task in enumerate(tasks):
        for parent, _ in task.after or ():
            if isinstance(parent, BatchMember) and not 0 <= parent.position < position:
                why = "a task can only depend on an earlier task of its batch"
                raise InvalidTask(field="after", value=f"position {parent.position} (from {position})", why=why)


def _look_up(frame: Frame, parents: Sequence[Parent]) -> Steps[Mapping[Parent, ParentState]]:
    states: dict[Parent, ParentState] = {}
    lock = None
    if parents and frame.dialect.row_locks:
        mark, lock = _marks(frame.tables, frame.driver)
        [(is_old, *_)] = yield Step(mark, {})
        lock = lock if is_old else None
    for first in range(0, len(parents), CHUNK):
        chunk = parents[first : first + CHUNK]
        rows = yield _states_step(frame, chunk)
        states |= {chunk[position]: ParentState(id, state) for position, id, state in rows}
        if lock is not None:
            live = [id for _, id, state in rows if state is None]
            yield Step(lock, frame.dialect.parameters("live", {"id": live}))
    for parent in parents:
        if isinstance(parent, int) and parent not in states:
            why = "there is no task with this id: it was never submitted, was pruned, or succeeded at a retention of 0s"
            raise InvalidTask(field="after", value=parent, why=why)
    return states


def _predecessors(frame: Frame, tasks: Sequence[NewTask]) -> Steps[list[DependsOn | None]]:
    """Return the task before each one in its order key: of the same submit, or the last live one."""
    keys = sorted({task.order_key.text for task in tasks if task.order_key is not None})
    last: dict[str, int | BatchMember] = {}
    for first in range(0, len(keys), CHUNK):
        part = frame.dialect.parameters("keys", {"order_key": keys[first : first + CHUNK]})
        rows = yield Step(_last_of_keys(frame.tables, frame.driver), part)
        last |= {key: id for key, id in rows if id is not None}
    predecessors: list[DependsOn | None] = []
    for position, task in enumerate(tasks):
        parent = last.get(task.order_key.text) if task.order_key is not None else None
        rule = task.order_key.on_failure if task.order_key is not None else "wait"
        predecessors.append(None if parent is None else DependsOn(parent, rule))
        if task.order_key is not None:
            last[task.order_key.text] = BatchMember(position)
    return predecessors


@lru_cache
def _marks(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    """The mark of a submit with parents, and a lock that fails if a parent has changed since the snapshot."""
    task, live = tables.task, DIALECTS[driver.name].rows("live", {"id": sa.BigInteger})
    locked = sa.select(task.c.id).where(task.c.id.in_(sa.select(live.c.id))).order_by(task.c.id)
    return Prepared(mark_submit(task), driver), Prepared(locked.with_for_update(key_share=True, read=True), driver)


@lru_cache
def _last_of_keys(tables: Tables, driver: sa.Dialect) -> Prepared:
    keys, task = DIALECTS[driver.name].rows("keys", ORDER_COLUMNS), tables.task
    last = sa.select(sa.func.max(task.c.id)).where(task.c.order_key == keys.c.order_key).correlate(keys)
    return Prepared(sa.select(keys.c.order_key, last.scalar_subquery()), driver)


def _row(
    task_id: int, dependency: DependsOn, state: ParentState, ids: Sequence[int], *, in_order: bool = False
) -> tuple[Any, ...]:
    parent: tuple[Any, ...]
    match dependency.parent:
        case BatchMember(position):
            parent = (ids[position], None, None)
        case (handler, key):
            parent = (state.id if state.state else None, handler, key)
        case id:
            parent = (id, None, None)
    holds = _is_blocking(dependency, state)
    # The next sweep cancels the task. It only finds parents whose stored state differs.
    parent_state = None if holds and dependency.on_failure == "cancel" else state.state
    return (task_id, *parent, dependency.on_failure, in_order, parent_state, int(not holds))


def _dependency_row(
    after: Sequence[DependsOn], states: Mapping[Parent, ParentState], predecessor: DependsOn | None
) -> DependencyRow | None:
    if not after and predecessor is None:
        return None
    dependencies = tuple(
        (dependency, states.get(cast("Parent", dependency.parent), ParentState())) for dependency in after
    )
    blocking = sum(_is_blocking(dependency, state) for dependency, state in dependencies)
    return DependencyRow(dependencies, blocking + (predecessor is not None), predecessor)


def _is_blocking(dependency: DependsOn, state: ParentState) -> bool:
    """Return True if a dependency is open: its parent has not finished, or not as required."""
    return state.state is None or (state.state != State.SUCCEEDED and dependency.on_failure != "run")


def _states_step(frame: Frame, parents: Sequence[Parent]) -> Step:
    rows = [
        (position, None, *parent) if isinstance(parent, tuple) else (position, parent, None, None)
        for position, parent in enumerate(parents)
    ]
    parameters = frame.dialect.row_parameters("parent", PARENT_COLUMNS, rows)
    return Step(_states_statement(frame.tables, frame.driver), parameters)


@lru_cache
def _states_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The position of each existing parent, its task id, and its final state unless it is live."""
    parents = DIALECTS[driver.name].rows("parent", PARENT_COLUMNS)
    named = sa.select(parents.c.position, parent_of(tables, parents).label("parent")).offset(NO_JOIN)
    named_ = named.subquery("named")
    live, past = is_live(tables, named_.c.parent), tables.history.alias("past")
    there = live | sa.select(past.c.id).where(past.c.id == named_.c.parent).offset(NO_JOIN).exists()
    state = sa.case((~live, final_state(tables, named_.c.parent)))
    return Prepared(sa.select(named_.c.position, named_.c.parent, state).where(there), driver)


@lru_cache
def _insertion(tables: Tables, driver: sa.Dialect) -> Prepared:
    new = DIALECTS[driver.name].rows("dependency", NEW_DEPENDENCY_COLUMNS)
    values = {name: new.c[name] for name in NEW_DEPENDENCY_COLUMNS if name != "satisfied"}
    satisfied_at = sa.case((new.c.satisfied == sa.literal_column("1"), db_now()))
    row = sa.select(*values.values(), satisfied_at)
    return Prepared(sa.insert(tables.dependency).from_select([*values, "satisfied_at"], row), driver)
