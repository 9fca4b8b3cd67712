"""settle: write down what executing tasks led to."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import db_later, db_now, seconds
from runner.outcome import Done, Failure, Outcome
from runner.policy.verdict import Standing, Verdict, judge
from runner.schema import state_literal
from runner.storable import to_storable
from runner.store.attempts import Tried, record, started
from runner.store.dialects import by_column, same_id
from runner.store.move import IN_NO_HANDS, Ending, finish, make_way
from runner.store.transaction import Transaction
from runner.task import MOVES

ERROR_LIMIT = 16 * 1024
"""Bytes of an error that are kept."""


class Settlement(NamedTuple):
    """What one attempt led to.

    Args:
        id: the task's.
        fence: that its claim handed out.
        outcome: of the attempt.
        duration: seconds that it took; None when it was not started.
        retry: the handler's retry plan, for a task that has none of its own.
    """

    id: int
    fence: int
    outcome: Outcome
    duration: float | None = None
    retry: str = "1m,5m,20m"


@dataclass
class Settled:
    """What became of a batch.

    Args:
        verbs: the move that each accepted settlement made, by task id.
        fenced: ids of tasks that were not this runner's any more; nothing was changed.
    """

    verbs: dict[int, str] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)


async def settle(tx: Transaction, holder: int, batch: Sequence[Settlement]) -> Settled:
    """Write the outcomes of a batch, each if its fence still holds: the careful way, with the rows locked.

    Args:
        tx: an open transaction.
        holder: the runner that executed the tasks.
        batch: at most one settlement for each task.

    Returns:
        What was accepted, and what was fenced out. Settling a second time what was accepted before changes nothing
        and reports it as fenced.
    """
    settled = Settled()
    rows = await _lock(tx, holder, [item.id for item in batch])
    verdicts: list[tuple[Settlement, Any, Verdict]] = []
    for item in batch:
        row = rows.get(item.id)
        if row is None or row.fence != item.fence:
            settled.fenced.add(item.id)
        else:
            verdicts.append((item, row, _judge(item, row)))
            settled.verbs[item.id] = verdicts[-1][2].verb
    await record(tx, [_tried(row, verdict, failure) for _, row, verdict in verdicts if (failure := verdict.failure)])
    for verb in ("succeed", "bury", "cancel"):
        ended = [_ending(item, verdict) for item, _, verdict in verdicts if verdict.verb == verb]
        if ended:
            await make_way(tx, [ending.id for ending in ended])
            await finish(tx, verb, holder, ended)
    await _return(tx, [(item, row, verdict) for item, row, verdict in verdicts if verdict.delay is not None])
    return settled


async def settle_done(tx: Transaction, holder: int, batch: Sequence[Settlement]) -> set[int]:
    """Write successes only: the short way, one statement on PostgreSQL.

    Returns:
        The ids that were accepted. Settle the others with `settle`, which locks the rows before it calls them fenced.

    Raises:
        DatabaseRefused: when a row stands in the way; nothing was written then, and `settle` clears the way.
    """
    endings = [Ending(item.id, item.fence, item.duration, *_kept(item.outcome)) for item in batch]
    return await finish(tx, "succeed", holder, endings) if endings else set()


def _kept(outcome: Outcome) -> tuple[str | None, str | None]:
    return (outcome.result, outcome.why) if isinstance(outcome, Done) else (None, None)


async def _lock(tx: Transaction, holder: int, ids: list[int]) -> dict[int, Any]:
    """Read the rows as they are now, and lock them: in the order of ids, so that no two wait for each other."""
    task = tx.tables.task.c
    names = ("id", "queue", "handler", "attempt", "max_attempts", "retry", "releases", "cancel_requested", "fence")
    columns = [*(task[name] for name in (*names, "runner_id", "host")), started(task)]
    held = task.id.in_(ids) & (task.runner_id == holder)
    rows = await tx.rows(sa.select(*columns).where(held).order_by(task.id).with_for_update())
    return {row.id: row for row in rows}


def _judge(item: Settlement, row: Any) -> Verdict:
    if isinstance(item.outcome, Done):
        return Verdict("succeed", why=item.outcome.why or "")
    plans = (row.retry, item.retry)
    standing = Standing(row.attempt, row.max_attempts, *plans, row.releases, row.cancel_requested)
    return judge(item.outcome, standing, random.random())  # noqa: S311 - spreads delays, guards nothing


def _ending(item: Settlement, verdict: Verdict) -> Ending:
    why = to_storable(verdict.why, ERROR_LIMIT) if verdict.why else None
    return Ending(item.id, item.fence, item.duration, getattr(item.outcome, "result", None), why)


def _tried(row: Any, verdict: Verdict, failure: Failure) -> Tried:
    return Tried(row, verdict.verb, failure, seconds(verdict.delay))


async def _return(tx: Transaction, returned: list[tuple[Settlement, Any, Verdict]]) -> None:
    """Put tasks back into the queue: to be tried again, put off, or handed back."""
    if not returned:
        return
    task = tx.tables.task
    columns = {
        "id": sa.BigInteger,
        "delay": sa.Float,
        "uncounted": sa.Integer,
        "released": sa.Integer,
        "error": sa.Text,
    }
    rows = [
        (
            item.id,
            seconds(verdict.delay),
            0 if verdict.counted else 1,
            1 if verdict.verb == "release" else 0,
            to_storable(verdict.why, ERROR_LIMIT) or None,
        )
        for item, _, verdict in returned
    ]
    back, meant = tx.dialect.one_by_one(tx.dialect.rows("back", columns), task, same_id)
    values = {
        "state": state_literal(MOVES["retry"].target),
        "run_at": sa.case((back.c.released == 1, task.c.run_at), else_=db_later(db_now(), back.c.delay)),
        "attempt": task.c.attempt - back.c.uncounted,
        "releases": task.c.releases + back.c.released,
        "error": sa.func.coalesce(back.c.error, task.c.error),
        "version": task.c.version + 1,
    } | IN_NO_HANDS
    statement = sa.update(task).where(meant).values(values)
    await tx.execute(statement, tx.dialect.parameters("back", by_column(columns, rows)))
