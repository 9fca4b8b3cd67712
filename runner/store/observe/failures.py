"""failures: what goes wrong, grouped by what it has in common."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.columns import db_later, db_now
from runner.people.filters import Filter
from runner.schema import Tables
from runner.store.observe.filtering import conditions
from runner.store.observe.legible import legible, moment, text, words
from runner.store.observe.subjects import Condition, attempts
from runner.store.observe.tallies import Count
from runner.store.transaction import Transaction
from runner.task import MOVES, State

WINDOW = 20_000
"""Attempts that are looked at for one list of groups, the latest ones."""

LATELY = 600.0
"""Seconds by which it is told whether something still goes wrong, and how often."""

BURYING = [verb for verb, move in MOVES.items() if move.target is State.DEAD]


@dataclass(frozen=True, slots=True)
class Failures:
    """Failed attempts of one kind.

    Args:
        fingerprint: what they have in common: the handler, the error's type and its message, numbers and ids masked.
        count: how many.
        buried: how many of them were the end of their task.
        tasks: how many tasks they belong to.
        lately: how many of them ended in the last LATELY seconds.
        first: when the first of them ended.
        last: when the last one ended.
        handler: whose tasks failed.
        error_type: of the last one.
        message: of the last one.
        traceback: of the last one; None when there is none.
        task_id: the task of the last one.
    """

    fingerprint: str
    count: Count
    buried: int
    tasks: int
    lately: int
    first: datetime | None
    last: datetime | None
    handler: str
    error_type: str
    message: str
    traceback: str | None
    task_id: int

    @property
    def rate(self) -> float:
        """How many there were a minute lately."""
        return self.lately / (LATELY / 60)


async def failures(
    tx: Transaction, wanted: Filter | None = None, since: datetime | None = None, limit: int = 50, window: int = WINDOW
) -> list[Failures]:
    """Group failed attempts by fingerprint, the most frequent first.

    Args:
        tx: an open transaction; one statement is executed.
        wanted: a filter on attempts; of a task's fields those that an attempt has.
        since: only what ended from then on, aware.
        limit: the most groups.
        window: the most attempts to look at; when there are more, the counts are of the latest ones.

    Returns:
        The groups, each with its last attempt as the example.

    Raises:
        InvalidFilter: the filter names a field that an attempt does not have.
    """
    recent, edge = _recent(tx, wanted or Filter(), since, window)
    statement = _with_examples(tx, _grouped(tx.tables, recent, limit), recent, edge)
    return [_failures(row) for row in (await tx.execute(statement)).mappings().all()]


def _recent(tx: Transaction, wanted: Filter, since: datetime | None, window: int) -> tuple[sa.CTE, Any]:
    """The latest attempts that the filter lets through, numbered from the last; and where the window ends, if it does.

    The window is of all attempts in the time asked for, so that a filter that few pass does not walk over all of them.
    """
    tried, ended_at = tx.tables.attempt.c, tx.tables.attempt.c.ended_at
    within = _bounds(tx, wanted) + ([ended_at >= since] if since else [])
    last = sa.select(ended_at).where(*within).order_by(ended_at.desc()).offset(window - 1).limit(1)
    edge = last.scalar_subquery()
    place = sa.func.row_number().over(order_by=(ended_at.desc(), tried.task_id.desc(), tried.fence.desc()))
    columns = (tried.task_id, tried.fence, tried.fingerprint, tried.verb, ended_at, place.label("place"))
    passed = conditions(wanted, attempts(tx.tables), tx.dialect) or []
    inside = sa.or_(edge.is_(None), ended_at >= edge)
    return sa.select(*columns).where(*within, *passed, inside).cte("recent"), edge


def _bounds(tx: Transaction, wanted: Filter) -> list[Condition]:
    times = Filter(tuple(term for term in wanted.terms if term.field in ("since", "until")))
    return conditions(times, attempts(tx.tables), tx.dialect) or []


def _grouped(tables: Tables, recent: sa.CTE, limit: int) -> sa.Subquery:
    count, place = sa.func.count(), sa.func.min(recent.c.place)
    columns = (
        recent.c.fingerprint,
        count.label("count"),
        sa.func.sum(sa.case((recent.c.verb.in_(BURYING), 1), else_=0)).label("buried"),
        sa.func.count(recent.c.task_id.distinct()).label("tasks"),
        sa.func.sum(sa.case((recent.c.ended_at >= db_later(db_now(), -LATELY), 1), else_=0)).label("lately"),
        sa.func.min(recent.c.ended_at, type_=tables.attempt.c.ended_at.type).label("first"),
        place.label("place"),
    )
    grouped = sa.select(*columns).group_by(recent.c.fingerprint)
    return grouped.order_by(count.desc(), place).limit(limit).subquery("grouped")


def _with_examples(tx: Transaction, grouped: sa.Subquery, recent: sa.CTE, edge: Any) -> sa.Select[Any]:
    tried = tx.tables.attempt
    last = grouped.join(recent, recent.c.place == grouped.c.place)
    example = last.join(tried, (tried.c.task_id == recent.c.task_id) & (tried.c.fence == recent.c.fence))
    names = ("fingerprint", "ended_at", "handler", "error_type", "message", "traceback", "task_id")
    numbers = [grouped.c[name] for name in ("count", "buried", "tasks", "lately")]
    first = tx.dialect.legible(grouped.c.first).label("first")
    columns = [*legible(tx, [tried.c[name] for name in names]), *numbers, first, edge.is_not(None).label("more")]
    return sa.select(*columns).select_from(example).order_by(grouped.c["count"].desc(), grouped.c.place)


def _failures(row: Any) -> Failures:
    return Failures(
        fingerprint=words(row["fingerprint"]),
        count=Count(row["count"], bool(row["more"])),
        buried=int(row["buried"]),
        tasks=row["tasks"],
        lately=int(row["lately"]),
        first=moment(row["first"]),
        last=moment(row["ended_at"]),
        handler=words(row["handler"]),
        error_type=words(row["error_type"]),
        message=words(row["message"]),
        traceback=text(row["traceback"]),
        task_id=row["task_id"],
    )
