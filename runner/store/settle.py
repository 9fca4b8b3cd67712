"""settle: write the outcomes of attempts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import by_column, same_id
from runner.db.schema import Tables, state_literal
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now, seconds
from runner.model.outcome import Done, Failure, Outcome
from runner.model.task import MOVES, State
from runner.model.text_limits import to_storable
from runner.policy.verdict import AttemptState, Verdict, judge
from runner.store.attempts import FailedAttempt, record, started_at_column
from runner.store.history import UNASSIGNED, FinishedTask, delete_stale_history, finish, finish_steps

ERROR_LIMIT = 16 * 1024
"""Maximum size of a stored error in bytes."""


class Settlement(NamedTuple):
    """The outcome of one attempt, to be written.

    Args:
        id: task id.
        fence: fence of the claim.
        outcome: outcome of the attempt.
        duration: duration in seconds; None if it was not started.
        retry: the handler's retry plan, for a task without its own.
    """

    id: int
    fence: int
    outcome: Outcome
    duration: float | None = None
    retry: str = "1m,5m,20m"


@dataclass
class Settled:
    """The result of settling a batch.

    Args:
        verbs: the move of each accepted settlement, by task id.
        fenced: ids of tasks that no longer belong to this runner; they are unchanged.
    """

    verbs: dict[int, str] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)


async def settle(tx: Transaction, holder: int, batch: Sequence[Settlement]) -> Settled:
    """Write the outcomes of a batch, each if its fence still matches, with locked rows.

    Args:
        tx: an open transaction.
        holder: id of the runner that executed the tasks.
        batch: at most one settlement per task.

    Returns:
        Accepted and fenced tasks. A second settle of an accepted task changes nothing and reports it as fenced.
    """
    settled = Settled()
    rows = await _lock(tx, holder, [item.id for item in batch])
    verdicts: list[tuple[Settlement, Any, Verdict]] = []
    for item in batch:
        row = rows.get(item.id)
        if row is None or row.fence != item.fence or row.state != State.RUNNING:
            settled.fenced.add(item.id)
        else:
            verdicts.append((item, row, _judge(item, row)))
            settled.verbs[item.id] = verdicts[-1][2].verb
    await record(
        tx, [_failed_attempt(row, verdict, failure) for _, row, verdict in verdicts if (failure := verdict.failure)]
    )
    for verb in ("succeed", "die", "cancel"):
        ended = [_finished_task(item, verdict) for item, _, verdict in verdicts if verdict.verb == verb]
        if ended:
            await delete_stale_history(tx, [ending.id for ending in ended])
            await finish(tx, verb, holder, ended)
    await _requeue(tx, [(item, row, verdict) for item, row, verdict in verdicts if verdict.delay is not None])
    return settled


async def settle_done(tx: Transaction, holder: int, batch: Sequence[Settlement]) -> set[int]:
    """Write only successes on the fast path: one statement on PostgreSQL.

    Returns:
        The accepted ids. Settle the others with `settle`, which locks the rows before it reports them as fenced.

    Raises:
        DatabaseRefused: a history row with the same id exists; nothing was written. `settle` removes such rows.
    """
    endings = [FinishedTask(item.id, item.fence, item.duration, *_kept(item.outcome)) for item in batch]
    return await finish(tx, "succeed", holder, endings) if endings else set()


def _kept(outcome: Outcome) -> tuple[str | None, str | None]:
    return (outcome.result, outcome.why) if isinstance(outcome, Done) else (None, None)


async def _lock(tx: Transaction, holder: int, ids: list[int]) -> dict[int, Any]:
    """Lock and read the rows, in the order of ids to avoid deadlocks."""
    task = tx.tables.task.c
    names = ("id", "queue", "handler", "attempt", "max_attempts", "retry", "releases", "cancel_requested", "fence")
    columns = [*(task[name] for name in (*names, "state", "runner_id", "host")), started_at_column(task)]
    is_held = task.id.in_(ids) & (task.runner_id == holder)
    rows = await tx.rows(sa.select(*columns).where(is_held).order_by(task.id).with_for_update())
    return {row.id: row for row in rows}


def _judge(item: Settlement, row: Any) -> Verdict:
    if isinstance(item.outcome, Done):
        return Verdict("succeed", why=item.outcome.why or "")
    plans = (row.retry, item.retry)
    state = AttemptState(row.attempt, row.max_attempts, *plans, row.releases, row.cancel_requested)
    return judge(item.outcome, state, random.random())  # noqa: S311 - spreads delays, guards nothing


def _finished_task(item: Settlement, verdict: Verdict) -> FinishedTask:
    why = to_storable(verdict.why, ERROR_LIMIT) if verdict.why else None
    return FinishedTask(item.id, item.fence, item.duration, getattr(item.outcome, "result", None), why)


def _failed_attempt(row: Any, verdict: Verdict, failure: Failure) -> FailedAttempt:
    return FailedAttempt(row, verdict.verb, failure, seconds(verdict.delay))


async def _requeue(tx: Transaction, items: list[tuple[Settlement, Any, Verdict]]) -> None:
    """Return tasks to the queue after a retry, snooze or release."""
    if not items:
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
        for item, _, verdict in items
    ]
    back, meant = tx.dialect.one_by_one(tx.dialect.rows("back", columns), task, same_id)
    values = {
        "state": state_literal(MOVES["retry"].target),
        "run_at": sa.case((back.c.released == 1, task.c.run_at), else_=db_later(db_now(), back.c.delay)),
        "attempt": task.c.attempt - back.c.uncounted,
        "releases": task.c.releases + back.c.released,
        # Settled by a living runner, so it did not kill its runner. A released task may never have started.
        "rescues": sa.case((back.c.released == 1, task.c.rescues), else_=0),
        "error": sa.func.coalesce(back.c.error, task.c.error),
        "version": task.c.version + 1,
    } | UNASSIGNED
    statement = sa.update(task).where(meant).values(values)
    await tx.execute(statement, tx.dialect.parameters("back", by_column(columns, rows)))


def complete_steps(frame: Frame, holder: int, ending: FinishedTask) -> Steps[bool]:
    """Move a task to the history as succeeded, if its fence still matches.

    The row is locked first: a rescue that has begun finishes before, and a later one finds the task gone. The writes of
    the handler in this transaction commit only with a valid fence.

    Args:
        frame: tables, driver and dialect of the statements.
        holder: id of the runner.
        ending: final result of the task.

    Returns:
        False if the task no longer belongs to this runner; the transaction must not commit then.
    """
    lock, delete_stale_history = _prepared(frame.tables, frame.driver)
    if not (yield Step(lock, {"task_id": ending.id, "given_fence": ending.fence, "holder": holder})):
        return False
    yield Step(delete_stale_history, {"task_id": ending.id})
    moved = yield from finish_steps(frame, "succeed", holder, [ending])
    return bool(moved)


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    task, history = tables.task, tables.history
    task_id = sa.bindparam("task_id", type_=sa.BigInteger)
    is_held = (task.c.fence == sa.bindparam("given_fence", type_=sa.BigInteger)) & (
        task.c.runner_id == sa.bindparam("holder", type_=sa.BigInteger)
    )
    lock = sa.select(task.c.id).where((task.c.id == task_id) & is_held).with_for_update()
    return Prepared(lock, driver), Prepared(sa.delete(history).where(history.c.id == task_id), driver)
