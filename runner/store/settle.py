"""settle: write the outcomes of attempts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import by_column, same_id
from runner.db.errors import is_lock_timeout
from runner.db.schema import Tables, is_state, state_literal
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now, next_version, raised, seconds
from runner.model.outcome import Cancelled, Done, Outcome, Release, Snooze
from runner.model.task import MOST_ATTEMPTS, MOVES, State
from runner.model.text_limits import to_storable
from runner.policy.attempt_verdict import AttemptState, Verdict, judge
from runner.policy.breaker import Effect
from runner.store.attempts import FailedAttempt, record, started_at_column
from runner.store.history import UNASSIGNED, FinishedTask, delete_stale_history, delete_steps, finish, succeed_steps
from runner.store.minute_statistics import Run, count_runs, minute_columns
from runner.store.rescue import LOST
from runner.store.retention import SubmitWatch

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
        effect: effect on the handler's breaker.
        address: address of the row at its claim; None if it is unknown.
        noted: True if the attempt may have checkpoints, progress or a log.
    """

    id: int
    fence: int
    outcome: Outcome
    duration: float | None = None
    retry: str = "1m,5m,20m"
    effect: Effect = ""
    address: str | None = None
    noted: bool = False


@dataclass
class Settled:
    """The result of settling a batch.

    Args:
        verbs: the move of each accepted settlement, by task id.
        fenced: ids of tasks that no longer belong to this runner; they are unchanged.
        written: moves of settlements that an earlier transaction of this runner wrote, by task id. The answer of its
            commit was lost.
    """

    verbs: dict[int, str] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    written: dict[int, str] = field(default_factory=dict)


async def settle(tx: Transaction, holder: int, batch: Sequence[Settlement], keep: bool = True) -> Settled:
    """Write the outcomes of a batch, each if its fence still matches, with locked rows.

    Args:
        tx: an open transaction.
        holder: id of the runner that executed the tasks.
        batch: at most one settlement per task.
        keep: False if `settle_done` deletes tasks without a row in the history.

    Returns:
        Accepted, fenced and written tasks. A second settle of an accepted task changes nothing and reports it as
        written.
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
        tx,
        [
            FailedAttempt(row, verdict.verb, failure, seconds(verdict.delay), bool(item.effect))
            for item, row, verdict in verdicts
            if (failure := verdict.failure)
        ],
    )
    for verb in ("succeed", "die", "cancel"):
        endings = [_finished_task(item, verdict) for item, _, verdict in verdicts if verdict.verb == verb]
        if endings:
            await delete_stale_history(tx, [ending.id for ending in endings])
            await finish(tx, verb, holder, endings)
    await _requeue(tx, [(item, row, verdict) for item, row, verdict in verdicts if verdict.delay is not None])
    await count_runs(tx, holder, [Run(row, verdict.verb) for _, row, verdict in verdicts])
    if settled.fenced:
        settled.written = await _written(tx, holder, [item for item in batch if item.id in settled.fenced])
        settled.fenced -= settled.written.keys()
    if settled.fenced and not keep:
        deleted = await _deleted(tx, [item for item in batch if item.id in settled.fenced])
        settled.written |= dict.fromkeys(deleted, "succeed")
        settled.fenced -= deleted
    return settled


async def _written(tx: Transaction, holder: int, items: Sequence[Settlement]) -> dict[int, str]:
    """Find the settlements that this runner has written before, with their moves.

    A finished task keeps the runner and the fence of its last attempt, and a failed attempt has a row with both. A task
    that waits without either, with the fence of the run, was snoozed or released: only a settle leaves the fence. A
    success never leaves a failed attempt: then another settle of the run was faster, and this one is fenced.
    """
    tables, ids = tx.tables, [item.id for item in items]
    history, attempt, task = tables.history.c, tables.attempt.c, tables.task.c
    condition = tx.dialect.one_of(history.id, ids) & (history.runner_id == holder)
    failed = tx.dialect.one_of(attempt.task_id, ids) & (attempt.runner_id == holder) & (attempt.error_type != LOST.type)
    waits = tx.dialect.one_of(task.id, ids) & is_state(task.state, State.WAITING) & task.runner_id.is_(None)
    statement = sa.union_all(
        sa.select(history.id, history.fence, history.state).where(condition),
        sa.select(attempt.task_id, attempt.fence, attempt.verb).where(failed),
        sa.select(task.id, task.fence, task.state).where(waits),
    )
    moves: dict[tuple[int, int], str] = {}
    for task_id, fence, move in await tx.rows(statement):
        if move != State.WAITING or (task_id, fence) not in moves:
            moves[task_id, fence] = move
    verbs = {item.id: _verb(item, moves.get((item.id, item.fence))) for item in items}
    return {task_id: verb for task_id, verb in verbs.items() if verb is not None}


async def _deleted(tx: Transaction, items: list[Settlement]) -> set[int]:
    """Find the successes that left no row: only a settle deletes a task that was claimed once."""
    ids = [item.id for item in items if isinstance(item.outcome, Done) and _is_bare(item)]
    tables = (tx.tables.task, tx.tables.history)
    rest = sa.union_all(*(sa.select(table.c.id).where(tx.dialect.one_of(table.c.id, ids)) for table in tables))
    return set(ids) - {row.id for row in await tx.rows(rest)}


def _verb(item: Settlement, move: str | None) -> str | None:
    """The move of a settlement, from the state or the verb that it left; None if it left none."""
    if move == State.WAITING:
        return RETURNS.get(type(item.outcome))
    verb = None if move is None else FINAL_VERBS.get(move, move)
    return None if isinstance(item.outcome, Done) and verb != "succeed" else verb


RETURNS: dict[type, str] = {Snooze: "snooze", Release: "release", Cancelled: "release"}
"""The moves that leave a task waiting without a record of the attempt."""

FINAL_VERBS = {MOVES[verb].target.value: verb for verb in ("succeed", "die", "cancel")}


async def settle_done(
    tx: Transaction, holder: int, batch: Sequence[Settlement], watch: SubmitWatch | None = None
) -> set[int]:
    """Write only successes on the fast path: on PostgreSQL one statement, and another one for rows that have moved.

    Args:
        tx: an open transaction.
        holder: id of the runner that executed the tasks.
        batch: at most one settlement per task.
        watch: deletes tasks without a result that nothing refers to, in one more statement; None moves all tasks.

    Returns:
        The accepted ids. Settle the others with `settle`, which locks the rows before it reports them as fenced. With a
        `watch` there is none if another transaction holds one of the rows for a while: `settle` waits for it.

    Raises:
        DatabaseRefused: a history row with the same id exists; nothing was written. `settle` removes such rows.
    """
    accepted = set[int]()
    by_address = tx.dialect.row_addresses
    if watch is not None and (
        bare := [item for item in batch if _is_bare(item) and (item.address is not None or not by_address)]
    ):
        addresses = [item.address for item in bare]
        try:
            accepted = await tx.follow(delete_steps(tx, holder, _successes(bare), addresses, watch))
        except Exception as error:
            if is_lock_timeout(error):
                return accepted
            raise
        batch = [item for item in batch if item.id not in accepted]
    if with_address := [item for item in batch if item.address is not None]:
        addresses = [item.address for item in with_address]
        accepted |= await tx.follow(succeed_steps(tx, holder, _successes(with_address), addresses=addresses))
    others = batch if not accepted else [item for item in batch if item.id not in accepted]
    if others:
        accepted |= await tx.follow(succeed_steps(tx, holder, _successes(others)))
    return accepted


def _is_bare(item: Settlement) -> bool:
    """True if a success of a first claim leaves nothing to keep, except rows of others that refer to its task."""
    outcome = item.outcome
    empty = getattr(outcome, "result", None) is None and getattr(outcome, "why", None) is None
    return item.fence == 1 and empty and not item.noted


def _successes(batch: Sequence[Settlement]) -> list[tuple[Any, ...]]:
    """The values of FinishedTask for each success, in its order. Objects of that class would cost as much as the rest.

    An outcome without a result and a reason has none of both.
    """
    return [
        (id, fence, took, getattr(outcome, "result", None), getattr(outcome, "why", None))
        for id, fence, outcome, took, _, _, _, _ in batch
    ]


async def _lock(tx: Transaction, holder: int, ids: list[int]) -> dict[int, Any]:
    """Lock and read the rows, in the order of ids to avoid deadlocks."""
    task = tx.tables.task.c
    names = ("id", "queue", "handler", "attempt", "max_attempts", "retry", "releases", "interruptions")
    more = ("cancel_requested", "fence", "state", "runner_id", "host")
    columns = [*(task[name] for name in (*names, *more)), started_at_column(task), *minute_columns(task)]
    columns.append(tx.dialect.pause_limit())
    condition = task.id.in_(ids) & (task.runner_id == holder)
    rows = await tx.rows(sa.select(*columns).where(condition).order_by(task.id).with_for_update())
    return {row.id: row for row in rows}


def _judge(item: Settlement, row: Any) -> Verdict:
    if isinstance(item.outcome, Done):
        return Verdict("succeed", why=item.outcome.why or "")
    plans = (row.retry, item.retry)
    state = AttemptState(row.attempt, row.max_attempts, *plans, row.releases, row.cancel_requested, row.interruptions)
    return judge(item.outcome, state, random.random())  # noqa: S311 - spreads delays, guards nothing


def _finished_task(item: Settlement, verdict: Verdict) -> FinishedTask:
    why = to_storable(verdict.why, ERROR_LIMIT) if verdict.why else None
    return FinishedTask(item.id, item.fence, item.duration, getattr(item.outcome, "result", None), why)


async def _requeue(tx: Transaction, items: list[tuple[Settlement, Any, Verdict]]) -> None:
    """Return tasks to the queue after a retry, snooze, release or interruption."""
    if not items:
        return
    task = tx.tables.task
    columns = {
        "id": sa.BigInteger,
        "delay": sa.Float,
        "uncounted": sa.Integer,
        "released": sa.Integer,
        "interrupted": sa.Integer,
        "error": sa.Text,
    }
    rows = [
        (
            item.id,
            seconds(verdict.delay),
            0 if verdict.counted else 1,
            1 if verdict.verb == "release" else 0,
            1 if verdict.verb == "interrupt" else 0,
            to_storable(verdict.why, ERROR_LIMIT) or None,
        )
        for item, _, verdict in items
    ]
    back, match = tx.dialect.one_by_one(tx.dialect.rows("back", columns), task, same_id)
    values = {
        "state": state_literal(MOVES["retry"].target),
        "run_at": sa.case((back.c.released == 1, task.c.run_at), else_=db_later(db_now(), back.c.delay)),
        "attempt": task.c.attempt - back.c.uncounted,
        "interruptions": raised(task.c.interruptions, back.c.interrupted, MOST_ATTEMPTS),
        "releases": raised(task.c.releases, back.c.released, MOST_ATTEMPTS),
        # Settled by a living runner, so it did not kill its runner. A released task may never have started.
        "rescues": sa.case((back.c.released == 1, task.c.rescues), else_=0),
        "error": sa.func.coalesce(back.c.error, task.c.error),
        "version": next_version(task.c.version),
    } | UNASSIGNED
    statement = sa.update(task).where(match).values(values)
    await tx.execute(statement, tx.dialect.parameters("back", by_column(columns, rows)))


def complete_steps(frame: Frame, holder: int, ending: FinishedTask, part: int = 0) -> Steps[bool]:
    """Move a task to the history as succeeded, if its fence still matches.

    The row is locked first: a rescue that has begun finishes before, and a later one finds the task gone. The writes of
    the handler in this transaction commit only with a valid fence.

    Args:
        frame: tables, driver and dialect of the statements.
        holder: id of the runner.
        ending: final result of the task.
        part: number of the row of the minute statistics that this transaction writes.

    Returns:
        False if the task no longer belongs to this runner; the transaction must not commit then.
    """
    lock, delete_stale_history = _prepared(frame.tables, frame.driver)
    if not (yield Step(lock, {"task_id": ending.id, "given_fence": ending.fence, "holder": holder})):
        return False
    yield Step(delete_stale_history, {"task_id": ending.id})
    moved = yield from succeed_steps(frame, holder, [ending], part)
    return bool(moved)


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    task, history = tables.task, tables.history
    task_id = sa.bindparam("task_id", type_=sa.BigInteger)
    has_fence = (task.c.fence == sa.bindparam("given_fence", type_=sa.BigInteger)) & (
        task.c.runner_id == sa.bindparam("holder", type_=sa.BigInteger)
    )
    lock = sa.select(task.c.id).where((task.c.id == task_id) & has_fence).with_for_update()
    return Prepared(lock, driver), Prepared(sa.delete(history).where(history.c.id == task_id), driver)
