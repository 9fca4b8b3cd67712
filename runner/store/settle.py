"""settle: write the outcomes of attempts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect, same_id
from runner.db.errors import is_concurrent, locks_refused
from runner.db.lock_limits import ATTEMPT_LOCKS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state, state_literal
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import JsonText, db_later, db_now, next_version, raised, seconds
from runner.model.outcome import Cancelled, Done, Outcome, Release, Snooze, Suspended
from runner.model.task import MOST_ATTEMPTS, MOVES, State
from runner.model.text_limits import ERROR_LIMIT, to_storable
from runner.policy.attempt_verdict import AttemptState, Verdict, judge
from runner.policy.breaker import Effect
from runner.store.attempts import FailedAttempt, record, started_at_column
from runner.store.calls import block_callers
from runner.store.history import (
    UNASSIGNED,
    FinishedTask,
    Success,
    finish,
    refuse_reused,
    require_all,
    success_steps,
)
from runner.store.hosts import bound_hosts
from runner.store.minute_statistics import Run, count_runs, minute_columns
from runner.store.rescue import LOST
from runner.store.retention import SubmitWatch
from runner.store.signals import start_signalled
from runner.store.terminations import termination_texts


class Settlement(NamedTuple):
    """The outcome of one attempt, to be written.

    Args:
        outcome: outcome of the attempt.
        duration: duration in seconds; None if it was not started.
        retry: the handler's retry plan, for a task without its own.
        effect: effect on the handler's breaker.
        address: address of the row at its claim; None if it is unknown.
        noted: True if the attempt may have checkpoints, progress or a log.
        headers: headers for the next attempt, as JSON text; None if the attempt has not changed them.
    """

    id: int
    fence: int
    outcome: Outcome
    duration: float | None = None
    retry: str = "1m,5m,20m"
    effect: Effect = ""
    address: str | None = None
    noted: bool = False
    headers: str | None = None


@dataclass
class Settled:
    """The result of settling a batch.

    Args:
        verbs: the move of each accepted settlement, by task id.
        fenced: ids of tasks that no longer belong to this runner; they are unchanged.
        written: moves of settlements that an earlier transaction of this runner wrote, by task id. The answer of its
            commit was lost.
        locked: ids of tasks that another transaction locks; they are unchanged.
        saw_none: True if the only statement saw no open dependency at its start. One that committed while it ran, with
            a task of the batch as its parent, is open all the same.
    """

    verbs: dict[int, str] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    written: dict[int, str] = field(default_factory=dict)
    locked: set[int] = field(default_factory=set)
    saw_none: bool = False

    def has(self, id: int) -> bool:
        """True if the outcome of a task needs no further try."""
        return id in self.verbs or id in self.fenced or id in self.written

    def add(self, other: "Settled") -> None:
        """Add the result of another part of the batch."""
        self.verbs |= other.verbs
        self.fenced |= other.fenced
        self.written |= other.written
        self.locked |= other.locked
        self.saw_none = False


class RunningTask(NamedTuple):
    """The row of a task to settle, as the driver returns it: on SQLite, times are texts and booleans numbers."""

    id: int
    queue: str
    handler: str
    attempt: int
    max_attempts: int
    retry: str | None
    releases: int
    interruptions: int
    cancel_requested: bool
    fence: int
    state: str
    runner_id: int
    host: str | None
    claimed_at: Any
    minute: Any
    submitted_minute: Any
    pause_limit: str | None


class SettleShape(Enum):
    """The shapes of a settle. SUCCESSES may be transactions of their own, JUDGED is one.

    SUCCESSES leaves locked, fenced and moved rows out of its result: settle them as JUDGED, which locks the rows before
    it reports them as fenced. It accepts none of a statement if another transaction holds one of its rows for longer
    than ROW_TIMEOUT.
    """

    SUCCESSES = "write successes without reading their rows, in one statement of PostgreSQL for each member of Success"
    JUDGED = "lock and read the rows that no other transaction locks, and judge each outcome by its row"


def _needs(
    _dialect: Dialect, _holder: int, _batch: object, shape: SettleShape = SettleShape.JUDGED, *_: object, **__: object
) -> Needs:
    return Needs.PREPARED if shape is SettleShape.SUCCESSES else Needs.TRANSACTION


@needs(_needs)
async def settle(
    tx: Transaction,
    holder: int,
    batch: Sequence[Settlement],
    shape: SettleShape = SettleShape.JUDGED,
    watch: SubmitWatch | None = None,
) -> Settled:
    """Write the outcomes of a batch, each if its fence still matches.

    Args:
        holder: id of the runner that executed the tasks.
        batch: at most one settlement per task; only successes for SettleShape.SUCCESSES.
        watch: the state of a runner that deletes tasks without a result that nothing refers to, with one more statement
            for successes; None moves all tasks to the history.

    Returns:
        Accepted, fenced, written and locked tasks. A second settle of an accepted task changes nothing and reports it
        as written.

    Raises:
        RowLocked: another transaction locks or changes another row that the change needs; nothing was written.
        DatabaseRefused: a history row with the same id exists, or a trigger skips a row; nothing was written.
    """
    if shape is SettleShape.SUCCESSES:
        return await _settle_successes(tx, holder, batch, watch)
    with locks_refused():
        return await _settle_judged(tx, holder, batch, watch)


async def _settle_judged(
    tx: Transaction, holder: int, batch: Sequence[Settlement], watch: SubmitWatch | None
) -> Settled:
    settled = Settled()
    rows = await _lock(tx, holder, [item.id for item in batch])
    if len(rows) < len(batch):
        settled.locked = await _held(tx, holder, [item for item in batch if item.id not in rows])
    verdicts: list[tuple[Settlement, RunningTask, Verdict]] = []
    for item in batch if not settled.locked else [item for item in batch if item.id not in settled.locked]:
        row = rows.get(item.id)
        if row is None or row.fence != item.fence or row.state != State.RUNNING:
            settled.fenced.add(item.id)
        else:
            verdicts.append((item, row, _judge(item, row)))
            settled.verbs[item.id] = verdicts[-1][2].verb
    await _write(tx, holder, await _with_reasons(tx, verdicts))
    if settled.fenced:
        settled.written = await _written(tx, holder, [item for item in batch if item.id in settled.fenced])
        settled.fenced -= settled.written.keys()
    if settled.fenced and watch is not None:
        deleted = await _deleted(tx, [item for item in batch if item.id in settled.fenced])
        settled.written |= dict.fromkeys(deleted, "succeed")
        settled.fenced -= deleted
    return settled


async def _with_reasons(
    tx: Transaction, verdicts: list[tuple[Settlement, RunningTask, Verdict]]
) -> list[tuple[Settlement, RunningTask, Verdict]]:
    """The verdicts; those on terminated tasks with the reasons of the operators."""
    fences = {row.id: row.fence for _, row, verdict in verdicts if verdict.verb == "cancel"}
    reasons = await termination_texts(tx, fences) if fences else {}
    if not reasons:
        return verdicts
    return [(item, row, replace(verdict, why=reasons.get(row.id, verdict.why))) for item, row, verdict in verdicts]


async def _write(tx: Transaction, holder: int, verdicts: Sequence[tuple[Settlement, RunningTask, Verdict]]) -> None:
    """Write the verdicts on locked rows: attempts, ends, tasks that return to the queue, and counts."""
    await refuse_reused(tx, [item.id for item, _, verdict in verdicts if verdict.delay is None])
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
            await finish(tx, verb, holder, endings)
    await _requeue(tx, [(item, row, verdict) for item, row, verdict in verdicts if verdict.delay is not None])
    await count_runs(tx, holder, [Run(row, verdict.verb) for _, row, verdict in verdicts])


async def _held(tx: Transaction, holder: int, items: Sequence[Settlement]) -> set[int]:
    """Find the tasks that still belong to the runner among those whose lock was not available."""
    task = tx.tables.task.c
    condition = tx.dialect.one_of(task.id, [item.id for item in items]) & (task.runner_id == holder)
    rows = await tx.rows(sa.select(task.id, task.fence).where(condition, is_state(task.state, State.RUNNING)))
    return {item.id for item in items} & {id for id, fence in rows if (id, fence) in {item[:2] for item in items}}


async def _written(tx: Transaction, holder: int, items: Sequence[Settlement]) -> dict[int, str]:
    """Find the settlements that this runner has written before, with their moves.

    A finished task keeps the runner and the fence of its last attempt, and a failed attempt has a row with both. A task
    that waits, or that its children block, without either, with the fence of the run, was snoozed or released: only a
    settle leaves the fence. A success never leaves a failed attempt: then another settle of the run was faster, and
    this one is fenced.
    """
    tables, ids = tx.tables, [item.id for item in items]
    history, attempt, task = tables.history.c, tables.attempt.c, tables.task.c
    condition = tx.dialect.one_of(history.id, ids) & (history.runner_id == holder)
    failed = tx.dialect.one_of(attempt.task_id, ids) & (attempt.runner_id == holder) & (attempt.error_type != LOST.type)
    waits = tx.dialect.one_of(task.id, ids) & is_state(task.state, *RETURNED) & task.runner_id.is_(None)
    statement = sa.union_all(
        sa.select(history.id, history.fence, history.state).where(condition),
        sa.select(attempt.task_id, attempt.fence, attempt.verb).where(failed),
        sa.select(task.id, task.fence, task.state).where(waits),
    )
    moves: dict[tuple[int, int], str] = {}
    for task_id, fence, move in await tx.rows(statement):
        if move not in RETURNED or (task_id, fence) not in moves:
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
    if move in RETURNED:
        return RETURNS.get(type(item.outcome))
    verb = None if move is None else FINAL_VERBS.get(move, move)
    return None if isinstance(item.outcome, Done) and verb != "succeed" else verb


RETURNED = (State.WAITING, State.BLOCKED)
"""The states of a task after an attempt that did not end it."""

RETURNS: dict[type, str] = {Snooze: "snooze", Suspended: "snooze", Release: "release", Cancelled: "release"}
"""The moves that leave a task waiting without a record of the attempt."""

FINAL_VERBS = {MOVES[verb].target.value: verb for verb in ("succeed", "die", "cancel")}


async def _settle_successes(
    tx: Transaction, holder: int, batch: Sequence[Settlement], watch: SubmitWatch | None
) -> Settled:
    accepted = set[int | None]()
    by_address = tx.dialect.row_addresses
    reports = list[bool]()

    async def end(success: Success, items: Sequence[Settlement]) -> None:
        addresses = [item.address for item in items] if success.by_address else ()
        endings = _successes(items)
        steps = success_steps(tx, success, holder, endings, addresses=addresses, watch=watch)
        accepted.update(await tx.follow(steps))
        reports.append(tx.dialect.writing_ctes and success.reports_open and None not in accepted)
        accepted.discard(None)

    try:
        if watch is not None and (
            bare := [item for item in batch if _is_bare(item) and (item.address is not None or not by_address)]
        ):
            await end(Success.DELETE, bare)
            batch = [item for item in batch if item.id not in accepted]
        if with_address := [item for item in batch if item.address is not None]:
            await end(Success.MOVE_AT_ADDRESS, with_address)
        if others := batch if not accepted else [item for item in batch if item.id not in accepted]:
            await end(Success.MOVE, others)
    except Exception as error:
        if not is_concurrent(error):
            raise
    return Settled(dict.fromkeys(filter(None, accepted), "succeed"), saw_none=reports == [True])


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
        for id, fence, outcome, took, *_ in batch
    ]


async def _lock(tx: Transaction, holder: int, ids: list[int]) -> dict[int, RunningTask]:
    """Lock and read the rows that no other transaction locks, in the order of ids to avoid deadlocks."""
    parameters = tx.dialect.parameters("settled", {"id": ids}) | {"holder": holder}
    rows = await tx.run(_lock_statement(tx.tables, tx.driver), parameters)
    return {row[0]: RunningTask._make(row) for row in rows}


@lru_cache
def _lock_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, task = DIALECTS[driver.name], tables.task.c
    names = [name for name in RunningTask._fields if name in task and name != "claimed_at"]
    columns = [*(task[name] for name in names), started_at_column(task), *minute_columns(task), dialect.pause_limit()]
    holder = sa.bindparam("holder", type_=sa.BigInteger)
    mine = (dialect.in_batch(task.id, "settled"), task.runner_id == holder, dialect.lock_limit(ATTEMPT_LOCKS))
    return Prepared(sa.select(*columns).where(*mine).order_by(task.id).with_for_update(skip_locked=True), driver)


def _judge(item: Settlement, row: RunningTask) -> Verdict:
    if isinstance(item.outcome, Done):
        return Verdict("succeed", why=item.outcome.why or "")
    plans = (row.retry, item.retry)
    state = AttemptState(
        row.attempt,
        row.max_attempts,
        *plans,
        row.releases,
        bool(row.cancel_requested),
        row.interruptions,
        row.id,
        row.handler,
        row.queue,
    )
    return judge(item.outcome, state, random.random())  # noqa: S311 - spreads delays, guards nothing


def _finished_task(item: Settlement, verdict: Verdict) -> FinishedTask:
    why = to_storable(verdict.why, ERROR_LIMIT) if verdict.why else None
    return FinishedTask(item.id, item.fence, item.duration, getattr(item.outcome, "result", None), why)


REQUEUE_COLUMNS: dict[str, Any] = {
    "id": sa.BigInteger,
    "delay": sa.Float,
    "uncounted": sa.Integer,
    "released": sa.Integer,
    "interrupted": sa.Integer,
    "failed": sa.Integer,
    "error": sa.Text,
    "headers": sa.Text,
}
"""The values of a task that returns to the queue."""


async def _requeue(tx: Transaction, items: list[tuple[Settlement, RunningTask, Verdict]]) -> None:
    """Return tasks to the queue after a retry, snooze, release or interruption."""
    if not items:
        return
    rows = [
        (
            item.id,
            seconds(verdict.delay),
            0 if verdict.counted else 1,
            1 if verdict.verb == "release" else 0,
            1 if verdict.verb == "interrupt" else 0,
            1 if verdict.verb == "retry" else 0,
            to_storable(verdict.why, ERROR_LIMIT) or None,
            item.headers,
        )
        for item, _, verdict in items
    ]
    parameters = tx.dialect.row_parameters("back", REQUEUE_COLUMNS, rows)
    changed = await tx.run(_requeue_statement(tx.tables, tx.driver), parameters)
    require_all(len(rows), len(changed))
    suspended = [(item.id, item.outcome) for item, *_ in items if isinstance(item.outcome, Suspended)]
    await block_callers(tx, {id: outcome.children for id, outcome in suspended if outcome.children})
    await start_signalled(tx, [id for id, outcome in suspended if outcome.waits])


@lru_cache
def _requeue_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, task = DIALECTS[driver.name], tables.task
    back, match = dialect.one_by_one(dialect.rows("back", REQUEUE_COLUMNS), task, same_id)
    values = {
        "state": state_literal(MOVES["retry"].target),
        "run_at": sa.case((back.c.released == 1, task.c.run_at), else_=db_later(db_now(), back.c.delay)),
        "attempt": task.c.attempt - back.c.uncounted,
        "interruptions": raised(task.c.interruptions, back.c.interrupted, MOST_ATTEMPTS),
        "releases": raised(task.c.releases, back.c.released, MOST_ATTEMPTS),
        # Settled by a living runner, so it did not kill its runner. A released task may never have started.
        "rescues": sa.case((back.c.released == 1, task.c.rescues), else_=0),
        "hosts": sa.case((back.c.failed == 1, bound_hosts(task.c)), else_=task.c.hosts),
        "error": sa.func.coalesce(back.c.error, task.c.error),
        "headers": sa.func.coalesce(sa.cast(back.c.headers, JsonText), task.c.headers),
        "version": next_version(task.c.version),
    } | UNASSIGNED
    return Prepared(sa.update(task).where(match).values(values).returning(task.c.id), driver)
