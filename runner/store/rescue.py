"""rescue: return the tasks of lost runners to the queue."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.lock_limits import UPKEEP_LOCKS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state, state_literal
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now, next_version, raised
from runner.model.outcome import RUNNER_LOST, Failure
from runner.model.task import HIGHEST_FENCE, MOST_ATTEMPTS, MOVES, State
from runner.policy.claim_conditions import used_up
from runner.policy.selection import among
from runner.store.attempts import FailedAttempt, record, started_at_column
from runner.store.ended_runners import end_runners
from runner.store.history import UNASSIGNED, FinishedTask, finish, reused_ids
from runner.store.minute_statistics import NO_RUNNER, Run, count_runs, minute_columns
from runner.store.terminations import termination_texts

UNSTARTED = f"{RUNNER_LOST}: its lease expired before this task was known to have started"
LOST = Failure(RUNNER_LOST, "the lease of its runner expired while the task was running")
OVERDUE = Failure(RUNNER_LOST, "its runner did not end this task at its deadline")
AT_BOUND = f"{RUNNER_LOST}, and its fence is {HIGHEST_FENCE:,}, the highest possible value"
CHUNK = 1_000
"""Maximum number of tasks per transaction."""


class Rescuer(NamedTuple):
    """The runner that performs a rescue.

    After a database outage every lease may have expired. A rescuer must not take the tasks of runners that had no time
    to renew. Writes of runners without a gap prove by the clock of the database that others could renew: its own
    heartbeats, and those of runners that registered before it and have crashed since. See `register`.

    Args:
        runner_id: id of the runner; its lease must be valid.
        available_for: minimum time in seconds for which the database was available.
    """

    runner_id: int
    available_for: float


@needs(Needs.PREPARED)
async def any_lost(tx: Transaction, rescuer: Rescuer | None, grace: float | None) -> bool:
    """Return True if there are tasks to rescue: one cheap statement for frequent checks.

    Args:
        rescuer: the runner; always False for one that may not rescue. None asks for any runner.
        grace: as for `rescue`; None to look for lost runners alone, and not at running tasks.
    """
    parameters: dict[str, float] = {} if grace is None else {"grace": -grace}
    if rescuer is not None:
        parameters |= {"rescuer": rescuer.runner_id, "available_for": -rescuer.available_for}
    prepared = _any_lost(tx.tables, tx.driver, for_any_runner=rescuer is None, with_tasks=grace is not None)
    rows = await tx.run(prepared, parameters)
    return bool(rows[0][0])


@lru_cache
def _any_lost(tables: Tables, driver: sa.Dialect, *, for_any_runner: bool, with_tasks: bool) -> Prepared:
    lost: sa.ColumnElement[bool] = sa.exists().where(tables.runner.c.lease_until < db_now())
    if with_tasks:
        lost |= sa.exists().where(_is_lost(tables, sa.bindparam("grace", type_=sa.Float)))
    return Prepared(sa.select(lost if for_any_runner else _may_rescue(tables) & lost), driver)


def _may_rescue(tables: Tables) -> sa.ColumnElement[bool]:
    """The condition that the rescuer's lease is valid, and that the database was available for long enough."""
    runner = tables.runner.alias("rescuer")
    is_proven = runner.c.available_since <= db_later(db_now(), sa.bindparam("available_for", type_=sa.Float))
    me = runner.c.id == sa.bindparam("rescuer", type_=sa.BigInteger)
    return sa.exists().where(me, runner.c.lease_until >= db_now(), is_proven)


class Rescued(NamedTuple):
    """A rescued task and its move: "rescue", "die" or "cancel".

    Args:
        key: its business key.
        headers, tags: as JSON text; None without any.
        runner_id: id of the lost runner.
        at_bound: True if it is dead because its fence cannot be raised.
    """

    verb: str
    queue: str
    handler: str
    attempt: int
    key: str | None
    at_bound: bool = False
    max_attempts: int | None = None
    tenant: str | None = None
    tags: str | None = None
    headers: str | None = None
    runner_id: int | None = None

    @property
    def text(self) -> str:
        """The end of the task's run, as the end of a sentence."""
        return _ENDS["bound" if self.at_bound else self.verb]


_ENDS = {
    "rescue": "rescued from a lost runner",
    "die": "is dead: its runner was lost on its last attempt",
    "bound": "is dead: its runner was lost, and its fence has the highest possible value",
    "cancel": "cancelled: its runner was lost after a terminate request",
}


async def rescue(
    tx: Transaction,
    rescuer: Rescuer,
    grace: float,
    only: Collection[int] | None = None,
    without: Collection[int] = (),
) -> dict[int, Rescued]:
    """Take the running tasks of lost runners; every crash counts as an attempt of the tasks that had started.

    A prefetched task that was not marked as started gets its attempt back. It may have run for a moment, so the rescue
    is counted: after two it is a suspect, whose claim marks it as started.

    Every runner calls this. The fence is raised in the same transaction, so that later writes of a lost runner are
    refused.

    Args:
        rescuer: the runner; nothing changes for one that may not rescue.
        grace: seconds after a task's deadline in which its runner may still end it.
        only: ids of the only tasks to take, and remove no runner; None for all.
        without: ids of tasks to leave out.

    Returns:
        The rescued tasks by id. Each waits again, is dead without attempts left, or is cancelled. Rows that another
        transaction has locked remain for the next call.
    """
    if not await _begin(tx, rescuer):
        return {}
    if only is None:
        await _remove_lost_runners(tx)
    lost = await _lock_lost(tx, grace, only, without)
    ended = [row.id for row in lost if _verb(row) in ("die", "cancel")]
    if ended and (reused := await reused_ids(tx, ended)):  # they stay as they are; `runner check` names them
        lost = [row for row in lost if row.id not in reused]
    if not lost:
        return {}
    for failure in (LOST, OVERDUE):
        await _return_to_queue(
            tx, [row.id for row in lost if row.began and _failure(row) is failure], failure.reason, 0
        )
    await _return_to_queue(tx, [row.id for row in lost if not row.began], UNSTARTED, 1)
    verbs = {row.id: _verb(row) for row in lost}
    await record(tx, [FailedAttempt(row, verbs[row.id], _failure(row), None) for row in lost if row.began])
    terminated = {row.id: row.fence for row in lost if verbs[row.id] == "cancel"}
    reasons = await termination_texts(tx, terminated) if terminated else {}
    for verb in ("die", "cancel"):
        endings = [_finished(row, reasons.get(row.id)) for row in lost if verbs[row.id] == verb]
        if endings:
            await finish(tx, verb, NO_RUNNER, endings)
    await count_runs(tx, rescuer.runner_id, [Run(row, verbs[row.id]) for row in lost])
    return {row.id: _rescued(row, verbs[row.id]) for row in lost}


async def _begin(tx: Transaction, rescuer: Rescuer) -> bool:
    """Return True if the rescuer may rescue; limit the pauses and the waits for locks of the transaction."""
    parameters = {"rescuer": rescuer.runner_id, "available_for": -rescuer.available_for}
    may_rescue = sa.select(_may_rescue(tx.tables), tx.dialect.pause_limit()).where(tx.dialect.lock_limit(UPKEEP_LOCKS))
    return bool(await tx.scalar(may_rescue, parameters))


async def remove_lost_runners(tx: Transaction, rescuer: Rescuer, only: Collection[int]) -> None:
    """Move runners whose lease has expired to the lost ones, so that their tasks can be rescued.

    Args:
        rescuer: the runner; nothing changes for one that may not rescue.
        only: ids of the only runners to move.
    """
    if await _begin(tx, rescuer):
        await _remove_lost_runners(tx, only)


async def expired_runners(tx: Transaction) -> list[int]:
    """Return the ids of the runners whose lease has expired."""
    runner = tx.tables.runner.c
    return [row.id for row in await tx.rows(sa.select(runner.id).where(runner.lease_until < db_now()))]


async def lost_tasks(tx: Transaction, grace: float, without: Collection[int] = ()) -> dict[int, str]:
    """Return the handlers of up to CHUNK lost tasks by task id, locked ones too; for the arguments see `rescue`."""
    task = tx.tables.task.c
    lost = sa.select(task.id, task.handler).where(_is_lost(tx.tables, -grace), *among(task.id, None, without))
    return {
        row.id: row.handler
        for row in await tx.rows(lost.order_by(task.runner_id, task.claimed_at, task.id).limit(CHUNK))
    }


async def stranded_tasks(tx: Transaction) -> dict[int, str]:
    """Return the handlers of tasks whose runner has an expired lease and was not removed, by task id."""
    task, runner = tx.tables.task.c, tx.tables.runner.c
    expired = sa.select(runner.id).where(runner.lease_until < db_now())
    running = sa.select(task.id, task.handler).where(is_state(task.state, State.RUNNING), task.runner_id.in_(expired))
    return {row.id: row.handler for row in await tx.rows(running.order_by(task.id).limit(CHUNK))}


async def _remove_lost_runners(tx: Transaction, only: Collection[int] | None = None) -> None:
    """Move the runners whose lease has expired to the ended ones; a row that is locked remains for the next call."""
    runner = tx.tables.runner
    is_expired = (runner.c.lease_until < db_now(), *among(runner.c.id, only, ()))
    expired = sa.select(runner.c.id).where(*is_expired).order_by(runner.c.id)
    ids = [row.id for row in await tx.rows(expired.with_for_update(skip_locked=True))]
    if not ids:
        return
    await end_runners(tx, ids, lost=True)


def _rescued(row: Any, verb: str) -> Rescued:
    ids = verb, row.queue, row.handler, row.attempt, row.key, verb == "die" and _is_at_bound(row)
    return Rescued(*ids, row.max_attempts, row.tenant, row.tags, row.headers, row.runner_id)


async def _lock_lost(
    tx: Transaction, grace: float, only: Collection[int] | None, without: Collection[int]
) -> list[Any]:
    task, runner = tx.tables.task.c, tx.tables.runner.c
    alive = sa.exists().where(runner.id == task.runner_id)
    ids = ("id", "queue", "handler", "key", "attempt", "max_attempts", "fence", "cancel_requested")
    names = (*ids, "tenant", "tags", "headers")
    columns = [
        *(task[name] for name in (*names, "runner_id", "host")),
        started_at_column(task),
        _began(task).label("began"),
        *minute_columns(task),
    ]
    statement = (
        sa.select(*columns, alive.label("alive"))
        .where(_is_lost(tx.tables, -grace), *among(task.id, only, without))
        # In the order of the index of running tasks: ordered by id alone, SQLite would read the whole table.
        .order_by(task.runner_id, task.claimed_at, task.id)
        .limit(CHUNK)
        .with_for_update(skip_locked=True, of=tx.tables.task)
    )
    return list(await tx.rows(statement))


def _is_lost(tables: Tables, grace: Any) -> sa.ColumnElement[bool]:
    """The condition that a task is running without a live runner, or beyond its deadline.

    Args:
        grace: seconds after the deadline, negative.
    """
    task, runner = tables.task.c, tables.runner.c
    orphaned = ~sa.exists().where(runner.id == task.runner_id)
    overdue = task.deadline_at < db_later(db_now(), grace)
    return is_state(task.state, State.RUNNING) & (orphaned | overdue)


def _failure(row: Any) -> Failure:
    return OVERDUE if row.alive else LOST


def _began(task: Any) -> sa.ColumnElement[bool]:
    """The condition that the attempt counts. A row that a foreign client wrote without a claim has attempt 0."""
    began: sa.ColumnElement[bool] = task.started_at.is_not(None) | (task.attempt == 0)
    return began


async def _return_to_queue(tx: Transaction, ids: list[int], why: str, given_back: int) -> None:
    if not ids:
        return
    task = tx.tables.task
    values = {
        "state": state_literal(MOVES["rescue"].target),
        "fence": raised(task.c.fence, 1, HIGHEST_FENCE),
        "version": next_version(task.c.version),
        "attempt": task.c.attempt - given_back,
        "rescues": raised(task.c.rescues, 1, MOST_ATTEMPTS),
        "error": why,
    } | UNASSIGNED
    await tx.execute(sa.update(task).where(task.c.id.in_(ids)).values(values))


def _verb(row: Any) -> str:
    if row.cancel_requested:
        return "cancel"
    used = row.attempt if row.began else row.attempt - 1
    return "die" if used_up(used, row.max_attempts) or _is_at_bound(row) else "rescue"


def _is_at_bound(row: Any) -> bool:
    """True if the fence cannot be raised: the history takes such a row, and a later settle does not find it."""
    return bool(row.fence >= HIGHEST_FENCE)


def _finished(row: Any, reason: str | None) -> FinishedTask:
    if _is_at_bound(row):
        return FinishedTask(row.id, row.fence, error=AT_BOUND)
    return FinishedTask(row.id, row.fence + 1, error=reason)
