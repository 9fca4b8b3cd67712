"""Findings: what became of a round, read back from the database in one look."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runner.demo.round import Round
from runner.schema import is_state
from runner.store.transaction import Transaction
from runner.task import State

SLOWEST = 5
MOST_DEAD = 1_000
MOST_REASONS = 100
"""Rows that are read at most."""


@dataclass(frozen=True, slots=True)
class Total:
    """What became of one handler's tasks.

    Args:
        handler: its name.
        tasks: all of them.
        succeeded: those that did.
        dead: those that were given up.
        cancelled: those that somebody terminated.
        unfinished: those that have not ended.
        retried: those that ended after more than one attempt.
        seconds: that the last attempts of the ended ones took together.
    """

    handler: str
    tasks: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    unfinished: int = 0
    retried: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Slow:
    """A task that took long."""

    id: int
    handler: str
    key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Reason:
    """Why attempts failed: those of one handler that differ at most in numbers and quoted values.

    Args:
        handler: its name.
        reason: as one of the attempts gives it.
        attempts: that failed for it.
        tasks: that these were attempts of.
    """

    handler: str
    reason: str
    attempts: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Given:
    """A task that was given up, and why."""

    id: int
    handler: str
    key: str
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What became of a round."""

    totals: Sequence[Total]
    slowest: Sequence[Slow]
    reasons: Sequence[Reason]
    dead: Sequence[Given]


async def find(tx: Transaction, demo: Round) -> Findings:
    """Read what became of a round.

    Args:
        tx: a reading transaction.
        demo: whose tasks are meant.
    """
    return Findings(await _totals(tx, demo), await _slowest(tx, demo), await _reasons(tx, demo), await _dead(tx, demo))


async def _totals(tx: Transaction, demo: Round) -> list[Total]:
    task, past = tx.tables.task, tx.tables.history
    ended = sa.select(
        past.c.handler,
        *(_count_if(is_state(past.c.state, state)) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)),
        sa.literal(0),
        _count_if(past.c.attempt > 1),
        sa.func.coalesce(sa.func.sum(past.c.duration), 0.0),
    )
    open_ = sa.select(task.c.handler, *[sa.literal(0)] * 3, sa.func.count(), sa.literal(0), sa.literal(0.0))
    found: dict[str, list[Any]] = {}
    for query, table in ((ended, past), (open_, task)):
        for handler, *counts in await tx.rows(query.where(demo.owns(table)).group_by(table.c.handler)):
            sums = found.setdefault(handler, [0] * len(counts))
            found[handler] = [one + other for one, other in zip(sums, counts, strict=True)]
    return [Total(handler, sum(counts[:4]), *counts) for handler, counts in sorted(found.items())]


async def _slowest(tx: Transaction, demo: Round) -> list[Slow]:
    past = tx.tables.history
    query = sa.select(past.c.id, past.c.handler, past.c.key, past.c.duration).where(demo.owns(past))
    query = query.where(past.c.duration.is_not(None)).order_by(past.c.duration.desc(), past.c.id).limit(SLOWEST)
    return [Slow(*row) for row in await tx.rows(query)]


async def _reasons(tx: Transaction, demo: Round) -> list[Reason]:
    tried = tx.tables.attempt
    ids = [sa.select(table.c.id).where(demo.owns(table)) for table in (tx.tables.task, tx.tables.history)]
    attempts, tasks = sa.func.count().label("attempts"), sa.func.count(tried.c.task_id.distinct())
    query = (
        sa.select(tried.c.handler, tried.c.error_type, sa.func.min(tried.c.message), attempts, tasks)
        .where(tried.c.task_id >= demo.first, tried.c.task_id.in_(sa.union_all(*ids)))
        .group_by(tried.c.handler, tried.c.error_type, tried.c.fingerprint)
        .order_by(attempts.desc(), tried.c.handler, sa.func.min(tried.c.task_id))
        .limit(MOST_REASONS)
    )
    rows = await tx.rows(query)
    return [Reason(handler, f"{kind}: {said}" if said else kind, *counts) for handler, kind, said, *counts in rows]


async def _dead(tx: Transaction, demo: Round) -> list[Given]:
    past = tx.tables.history
    query = sa.select(past.c.id, past.c.handler, past.c.key, past.c.attempt, past.c.error)
    query = query.where(demo.owns(past), is_state(past.c.state, State.DEAD)).order_by(past.c.id).limit(MOST_DEAD)
    return [Given(*row) for row in await tx.rows(query)]


def _count_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((condition, 1)))
