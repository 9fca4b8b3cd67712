"""The parent of a dependency, and its final state."""

from typing import Any

import sqlalchemy as sa

from runner.db.schema import GONE, Tables, is_open, state_literal
from runner.db.types import NO_JOIN
from runner.model.task import FINAL, State

DEPENDENCY_COLUMNS = ("id", "task_id", "parent_id", "parent_handler", "parent_key", "parent_state")
"""The columns that identify a dependency and its parent."""


GONE_LITERAL = sa.literal_column(f"'{GONE}'", sa.Text)


def is_any_open(dependency: Any) -> sa.ColumnElement[bool]:
    """The condition that a dependency is open, in the form that matches the index of all open ones, in its order."""
    every: sa.ColumnElement[bool] = dependency.id > sa.literal_column("0")
    return is_open(dependency) & every


def is_blocked(tables: Tables, task_id: Any) -> sa.ColumnElement[bool]:
    """The condition that a task is blocked."""
    task = tables.task.alias("child")
    blocked = task.c.state == state_literal(State.BLOCKED)
    return sa.select(task.c.id).where(task.c.id == task_id, blocked).offset(NO_JOIN).exists()


def parent_of(tables: Tables, dependency: sa.FromClause) -> sa.ColumnElement[int | None]:
    """The id of the current parent of a dependency.

    A handler and a key refer to the task that was submitted last with them, live or finished.

    Args:
        dependency: a table or subquery with the columns that name a parent.
    """
    latest = [
        sa.select(sa.func.max(tasks.c.id).label("id"))
        .where(tasks.c.key == dependency.c.parent_key, tasks.c.handler == dependency.c.parent_handler)
        .correlate(dependency)
        for tasks in (tables.task.alias("keyed"), tables.history.alias("keyed"))
    ]
    both = sa.union_all(*latest).subquery("latest")
    by_key = sa.select(sa.func.max(both.c.id)).scalar_subquery()
    return sa.case((dependency.c.parent_key.is_(None), dependency.c.parent_id), else_=by_key)


def is_live(tables: Tables, task_id: Any) -> sa.ColumnElement[bool]:
    """The condition that a task is live."""
    task = tables.task.alias("parent")
    return sa.select(task.c.id).where(task.c.id == task_id).offset(NO_JOIN).exists()


def final_state(tables: Tables, task_id: Any) -> sa.ColumnElement[str]:
    """The state of a task that is not live."""
    history = tables.history.alias("past")
    # One row, unless a dead task was copied back manually and then succeeded; `succeeded` also sorts last.
    state = sa.func.max(history.c.state)
    return sa.func.coalesce(sa.select(state).where(history.c.id == task_id).scalar_subquery(), GONE_LITERAL)


def is_gone(tables: Tables, dependency: sa.FromClause) -> sa.ColumnElement[bool]:
    """The condition that a dependency names its parent by id, and that this task no longer exists."""
    gone = ~is_live(tables, dependency.c.parent_id) & (final_state(tables, dependency.c.parent_id) == GONE_LITERAL)
    return dependency.c.parent_key.is_(None) & gone


def is_of_submit(dependency: Any) -> sa.ColumnElement[bool]:
    """The condition that a dependency is one that the submit of its task named: no order key, and no call."""
    of_submit: sa.ColumnElement[bool] = ~dependency.in_order & dependency.step.is_(None)
    return of_submit


def is_calling(tables: Tables, task_id: Any) -> sa.ColumnElement[bool]:
    """The condition that only children block a task."""
    child, other = tables.dependency.alias("child_of").c, tables.dependency.alias("other_of").c
    waits = sa.select(child.id).where(child.task_id == task_id, is_open(child), child.step.is_not(None))
    others = sa.select(other.id).where(other.task_id == task_id, is_open(other), other.step.is_(None))
    return waits.offset(NO_JOIN).exists() & ~others.offset(NO_JOIN).exists()


def is_unread(tables: Tables, dependency: Any) -> sa.ColumnElement[bool]:
    """The condition that a call has not stored the end of its child yet."""
    step = tables.step.alias("calling").c
    pending = (step.task_id == dependency.task_id) & (step.name == dependency.step) & step.done_at.is_(None)
    return sa.select(step.name).where(pending).offset(NO_JOIN).exists()


def is_unresolved(tables: Tables, dependency: Any) -> sa.ColumnElement[bool]:
    """The condition that a dependency is open, or is a call that has not stored the end of its child yet."""
    unresolved: sa.ColumnElement[bool] = is_open(dependency) | (
        dependency.step.is_not(None) & is_unread(tables, dependency)
    )
    return unresolved


def is_awaited(tables: Tables, past: Any) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """The conditions that a dependency on a finished task is open or unread: by its id, or by its handler and key."""
    by_id, by_key = tables.dependency.alias("by_id").c, tables.dependency.alias("by_key").c
    same_key = (by_key.parent_key == past.key) & (by_key.parent_handler == past.handler)
    # A join would read all open dependencies for each chunk of finished tasks.
    own = sa.select(by_id.id).where(by_id.parent_id == past.id, is_unresolved(tables, by_id)).offset(NO_JOIN)
    named = sa.select(by_key.id).where(same_key, is_open(by_key)).offset(NO_JOIN)
    return own.exists(), named.exists()


def changed_parents(tables: Tables, some: sa.Select[Any] | sa.CompoundSelect[Any]) -> sa.Select[Any]:
    """The dependencies whose parents have ended in a state other than the stored one.

    Args:
        some: a selection of DEPENDENCY_COLUMNS and any others.

    Returns:
        The selection with the current `parent` and its final `state`.
    """
    dependency = some.subquery("dependency")
    named = sa.select(dependency, parent_of(tables, dependency).label("parent")).offset(NO_JOIN).subquery("named")
    is_final = named.c.parent.is_not(None) & ~is_live(tables, named.c.parent)
    judged = sa.select(named, final_state(tables, named.c.parent).label("state")).where(is_final)
    judged_ = judged.offset(NO_JOIN).subquery("judged")
    former, state = judged_.c.parent_state, judged_.c.state
    new = former.is_(None) | (former != state) | (judged_.c.parent_id != judged_.c.parent)
    return sa.select(judged_).where(new)


def summary(tables: Tables, task_id: Any) -> sa.ColumnElement[str]:
    """The final states of a task's parents as JSON text, see BatchResult."""
    dependency = tables.dependency.alias("counted")
    counts = {
        state: sa.func.sum(sa.case((dependency.c.parent_state == state_literal(state), 1), else_=0)) for state in FINAL
    }
    parts: Any = sa.literal_column("'{\"total\": '") + sa.cast(sa.func.count(), sa.Text)
    for state, count in counts.items():
        parts = parts + sa.literal_column(f"', \"{state.value}\": '") + sa.cast(count, sa.Text)
    # The predecessor in an order key, and a child, are not parents that the handler knows of.
    whole = sa.case((sa.func.count() > 0, parts + sa.literal_column("'}'")))
    own = (dependency.c.task_id == task_id) & is_of_submit(dependency.c)
    return sa.select(whole).where(own).scalar_subquery()
