"""Results of a round, read from the database in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runner.cli.demo.round import Round
from runner.db.schema import is_state
from runner.db.transaction import Transaction
from runner.model.task import State

SLOWEST = 5
MAX_DEAD = 1_000
MAX_REASONS = 100
"""Rows to read at most."""


@dataclass(frozen=True, slots=True)
class DemoTotal:
    """Counts of one handler's tasks.

    Args:
        handler: name of the handler.
        tasks: all tasks.
        succeeded: succeeded tasks.
        dead: dead tasks.
        cancelled: cancelled tasks.
        unfinished: tasks that have not finished.
        retried: tasks that finished after more than one attempt.
        seconds: total duration of the last attempts of finished tasks.
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
class SlowTask:
    """One of the slowest tasks."""

    id: int
    handler: str
    key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class FailureReason:
    """A failure group: failed attempts of one handler that differ only in numbers and quoted values.

    Args:
        handler: name of the handler.
        reason: error of one of the attempts.
        attempts: number of attempts.
        tasks: number of tasks.
    """

    handler: str
    reason: str
    attempts: int
    tasks: int


@dataclass(frozen=True, slots=True)
class DeadTask:
    """A dead task and its last error."""

    id: int
    handler: str
    key: str
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of a round."""

    totals: Sequence[DemoTotal]
    slowest: Sequence[SlowTask]
    reasons: Sequence[FailureReason]
    dead: Sequence[DeadTask]


async def read_findings(tx: Transaction, demo_round: Round) -> Findings:
    """Read the results of a round.

    Args:
        tx: a read transaction.
        demo_round: the round.
    """
    return Findings(
        await _totals(tx, demo_round),
        await _slowest(tx, demo_round),
        await _reasons(tx, demo_round),
        await _dead(tx, demo_round),
    )


async def _totals(tx: Transaction, demo_round: Round) -> list[DemoTotal]:
    task, history = tx.tables.task, tx.tables.history
    finished = sa.select(
        history.c.handler,
        *(_count_if(is_state(history.c.state, state)) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)),
        sa.literal(0),
        _count_if(history.c.attempt > 1),
        sa.func.coalesce(sa.func.sum(history.c.duration), 0.0),
    )
    unfinished = sa.select(task.c.handler, *[sa.literal(0)] * 3, sa.func.count(), sa.literal(0), sa.literal(0.0))
    by_handler: dict[str, list[Any]] = {}
    for query, table in ((finished, history), (unfinished, task)):
        for handler, *counts in await tx.rows(query.where(demo_round.owns(table)).group_by(table.c.handler)):
            sums = by_handler.setdefault(handler, [0] * len(counts))
            by_handler[handler] = [left + right for left, right in zip(sums, counts, strict=True)]
    return [DemoTotal(handler, sum(counts[:4]), *counts) for handler, counts in sorted(by_handler.items())]


async def _slowest(tx: Transaction, demo_round: Round) -> list[SlowTask]:
    history = tx.tables.history
    query = sa.select(history.c.id, history.c.handler, history.c.key, history.c.duration).where(
        demo_round.owns(history)
    )
    query = (
        query.where(history.c.duration.is_not(None)).order_by(history.c.duration.desc(), history.c.id).limit(SLOWEST)
    )
    return [SlowTask(*row) for row in await tx.rows(query)]


async def _reasons(tx: Transaction, demo_round: Round) -> list[FailureReason]:
    attempt = tx.tables.attempt
    ids = [sa.select(table.c.id).where(demo_round.owns(table)) for table in (tx.tables.task, tx.tables.history)]
    attempt_count, task_count = sa.func.count().label("attempts"), sa.func.count(attempt.c.task_id.distinct())
    query = (
        sa.select(attempt.c.handler, attempt.c.error_type, sa.func.min(attempt.c.message), attempt_count, task_count)
        .where(attempt.c.task_id >= demo_round.first, attempt.c.task_id.in_(sa.union_all(*ids)))
        .group_by(attempt.c.handler, attempt.c.error_type, attempt.c.fingerprint)
        .order_by(attempt_count.desc(), attempt.c.handler, sa.func.min(attempt.c.task_id))
        .limit(MAX_REASONS)
    )
    rows = await tx.rows(query)
    return [
        FailureReason(handler, f"{kind}: {text}" if text else kind, *counts) for handler, kind, text, *counts in rows
    ]


async def _dead(tx: Transaction, demo_round: Round) -> list[DeadTask]:
    history = tx.tables.history
    query = sa.select(history.c.id, history.c.handler, history.c.key, history.c.attempt, history.c.error)
    query = (
        query.where(demo_round.owns(history), is_state(history.c.state, State.DEAD))
        .order_by(history.c.id)
        .limit(MAX_DEAD)
    )
    return [DeadTask(*row) for row in await tx.rows(query)]


def _count_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((condition, 1)))
