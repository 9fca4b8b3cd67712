"""parentage: which task an edge means, and whether that one has ended; as expressions for statements."""

from typing import Any

import sqlalchemy as sa

from runner.columns import NO_JOIN
from runner.schema import GONE, Tables, state_literal
from runner.task import FINAL, State

EDGE = ("id", "task_id", "parent_id", "parent_handler", "parent_key", "parent_state")
"""The columns of an edge by which it is judged."""

NOWHERE = sa.literal_column(f"'{GONE}'", sa.Text)


def is_open(edge: Any) -> sa.ColumnElement[bool]:
    """The condition that an edge is open, spelled so that its indexes match.

    Args:
        edge: the columns of the table of edges.
    """
    condition: sa.ColumnElement[bool] = edge.satisfied_at.is_(None)
    return condition


def is_any_open(edge: Any) -> sa.ColumnElement[bool]:
    """The condition that an edge is open, spelled so that the index of all open edges matches, in their order."""
    every: sa.ColumnElement[bool] = edge.id > sa.literal_column("0")
    return is_open(edge) & every


def is_blocked(tables: Tables, task_id: Any) -> sa.ColumnElement[bool]:
    """The condition that a task is blocked."""
    task = tables.task.alias("child")
    blocked = task.c.state == state_literal(State.BLOCKED)
    return sa.select(task.c.id).where(task.c.id == task_id, blocked).offset(NO_JOIN).exists()


def parent_of(tables: Tables, edge: sa.FromClause) -> sa.ColumnElement[int | None]:
    """The id of the task that an edge means now.

    A handler and a key stand for the task that was submitted last with them, whether it is live or has ended.

    Args:
        tables: of the installation.
        edge: whatever has the columns that name a parent.
    """
    latest = [
        sa.select(sa.func.max(tasks.c.id).label("id"))
        .where(tasks.c.key == edge.c.parent_key, tasks.c.handler == edge.c.parent_handler)
        .correlate(edge)
        for tasks in (tables.task.alias("keyed"), tables.history.alias("keyed"))
    ]
    both = sa.union_all(*latest).subquery("latest")
    by_key = sa.select(sa.func.max(both.c.id)).scalar_subquery()
    return sa.case((edge.c.parent_key.is_(None), edge.c.parent_id), else_=by_key)


def is_live(tables: Tables, task_id: Any) -> sa.ColumnElement[bool]:
    """The condition that a task is live."""
    task = tables.task.alias("parent")
    return sa.select(task.c.id).where(task.c.id == task_id).offset(NO_JOIN).exists()


def final_state(tables: Tables, task_id: Any) -> sa.ColumnElement[str]:
    """The state of a task that is not live."""
    history = tables.history.alias("past")
    # One row, unless somebody has copied a dead task back by hand and it then succeeded; which comes last by name too.
    state = sa.func.max(history.c.state)
    return sa.func.coalesce(sa.select(state).where(history.c.id == task_id).scalar_subquery(), NOWHERE)


def news(tables: Tables, some: sa.Select[Any] | sa.CompoundSelect[Any]) -> sa.Select[Any]:
    """Of some edges, those whose parents have ended otherwise than is written in them.

    Args:
        tables: of the installation.
        some: a selection of the columns EDGE, and of any others.

    Returns:
        What was selected, with the `parent` that is meant now and the `state` in which that has ended.
    """
    edge = some.subquery("edge")
    named = sa.select(edge, parent_of(tables, edge).label("parent")).offset(NO_JOIN).subquery("named")
    ended = named.c.parent.is_not(None) & ~is_live(tables, named.c.parent)
    judged = sa.select(named, final_state(tables, named.c.parent).label("state")).where(ended)
    judged_ = judged.offset(NO_JOIN).subquery("judged")
    seen, state = judged_.c.parent_state, judged_.c.state
    new = seen.is_(None) | (seen != state) | (judged_.c.parent_id != judged_.c.parent)
    return sa.select(judged_).where(new)


def summary(tables: Tables, task_id: Any) -> sa.ColumnElement[str]:
    """How the parents of a task have ended, as JSON text: see written."""
    edge = tables.dependency.alias("counted")
    counts = {state: sa.func.sum(sa.case((edge.c.parent_state == state_literal(state), 1), else_=0)) for state in FINAL}
    parts: Any = sa.literal_column("'{\"total\": '") + sa.cast(sa.func.count(), sa.Text)
    for state, count in counts.items():
        parts = parts + sa.literal_column(f"', \"{state.value}\": '") + sa.cast(count, sa.Text)
    whole = parts + sa.literal_column("'}'")
    return sa.select(whole).where(edge.c.task_id == task_id).scalar_subquery()
