"""signals: the messages that tasks wait for, from submit to receipt."""

import contextlib
import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.errors import locks_refused
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state, state_literal
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import db_now, instant_from_text, next_version
from runner.model.step import StepWrite
from runner.model.task import MOVES, State
from runner.policy.selection import among
from runner.store.dependencies.parents import is_calling
from runner.store.steps import StepOwner, lock_of, saving

CHUNK = 1_000
"""Maximum number of signals per transaction."""


@needs(Needs.PREPARED_TRANSACTION)
async def receive(tx: Transaction, owner: StepOwner, wait: StepWrite, *, timed_out: bool) -> tuple[bool, StepWrite]:
    """Take the oldest signal that a wait is for, or store the wait.

    The lock of the row of the task orders it with those who send: either this look finds a signal, or its sender finds
    the wait.

    Args:
        wait: the step, which is not done.
        timed_out: True if the wait ends without a signal.

    Returns:
        False if the task no longer belongs to this runner; and the step as it is stored.

    Raises:
        RowLocked: another transaction locks the row of the task; nothing was changed.
    """
    values = owner._asdict()
    with locks_refused():
        if not await tx.run(lock_of(tx.tables, tx.driver), values):
            return False, wait
        found = await tx.run(_oldest(tx.tables, tx.driver), {"task_id": owner.task_id, "signal": wait.signal})
        if found:
            id, *values = found[0]
            wait = wait._replace(done=True, due_in=None, result=json.dumps(_received(*values)))
            await tx.run(_receipt(tx.tables, tx.driver), {"signal_id": id})
        elif timed_out:
            wait = wait._replace(done=True, due_in=None)
        return await tx.follow(saving(tx, owner._replace(progressed=wait.done), wait, waits=False)), wait


def _received(payload: Any, sent_at: Any, actor: Any) -> dict[str, Any]:
    """The values of a signal. Any client may have inserted it, and a file accepts any text."""
    values: dict[str, Any] = {"payload": payload, "sent_at": None, "by": None if actor is None else str(actor)}
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        values["payload"] = json.loads(payload or "null")
    with contextlib.suppress(ValueError):
        moment = sent_at if isinstance(sent_at, datetime) else instant_from_text(str(sent_at))
        values["sent_at"] = moment.astimezone(UTC).isoformat()
    return values


@lru_cache
def _oldest(tables: Tables, driver: sa.Dialect) -> Prepared:
    signal = tables.signal.c
    name = sa.bindparam("signal", type_=sa.Text)
    mine = (signal.task_id == sa.bindparam("task_id", type_=sa.BigInteger)) & (signal.name == name)
    columns = (signal.id, sa.cast(signal.payload, sa.Text), DIALECTS[driver.name].readable_time(signal.sent_at))
    statement = sa.select(*columns, signal.actor).where(mine, signal.received_at.is_(None))
    return Prepared(statement.order_by(signal.id).limit(sa.literal_column("1")), driver)


@lru_cache
def _receipt(tables: Tables, driver: sa.Dialect) -> Prepared:
    signal = tables.signal
    this = signal.c.id == sa.bindparam("signal_id", type_=sa.BigInteger)
    noticed = sa.func.coalesce(signal.c.noticed_at, db_now())
    return Prepared(sa.update(signal).where(this).values(received_at=db_now(), noticed_at=noticed), driver)


@needs(Needs.PREPARED)
async def any_new(tx: Transaction) -> bool:
    """Return whether there are signals that no runner has noticed: one cheap statement for frequent checks."""
    rows = await tx.run(_any_new(tx.tables, tx.driver), {})
    return bool(rows[0][0])


@lru_cache
def _any_new(tables: Tables, driver: sa.Dialect) -> Prepared:
    signal = tables.signal.c
    return Prepared(sa.select(sa.exists(sa.select(signal.id).where(signal.noticed_at.is_(None)))), driver)


async def signalled_tasks(tx: Transaction, without: Collection[int]) -> dict[int, str]:
    """Return the handlers of up to CHUNK tasks with signals that no runner has noticed, by task id; locked ones too.

    A task that is not live has an empty name.
    """
    task, signal = tx.tables.task.c, tx.tables.signal.c
    new = sa.select(signal.task_id).where(signal.noticed_at.is_(None), *among(signal.task_id, None, without))
    ids = [row.task_id for row in await tx.rows(new.distinct().limit(CHUNK))]
    live = await tx.rows(sa.select(task.id, task.handler).where(tx.dialect.one_of(task.id, ids)))
    return dict.fromkeys(ids, "") | {row.id: row.handler for row in live}


async def notice(tx: Transaction, ids: Sequence[int]) -> tuple[int, list[int]]:
    """Start the tasks among these that wait for a signal, and mark their signals as noticed.

    Tasks that another transaction has locked remain for the next call: a settle may be about to store their waits.

    Returns:
        The number of started tasks, and the tasks whose signals are noticed.
    """
    task, signal = tx.tables.task, tx.tables.signal
    of_ids = tx.dialect.one_of(task.c.id, ids)
    locked = sa.select(task.c.id).where(of_ids).order_by(task.c.id).with_for_update(skip_locked=True)
    free = [row.id for row in await tx.rows(locked)]
    exist = {row.id for row in await tx.rows(sa.select(task.c.id).where(of_ids))}
    started = await start_signalled(tx, free)
    seen = [id for id in ids if id in free or id not in exist]
    noticed = tx.dialect.one_of(signal.c.task_id, seen) & signal.c.noticed_at.is_(None)
    await tx.execute(sa.update(signal).where(noticed).values(noticed_at=db_now()))
    return len(started), seen


async def start_signalled(tx: Transaction, task_ids: Sequence[int]) -> list[int]:
    """Make those of some locked tasks due that wait for a signal which has arrived; return their ids."""
    if not task_ids:
        return []
    rows = await tx.run(_start(tx.tables, tx.driver), tx.dialect.parameters("signalled", {"id": list(task_ids)}))
    return [row[0] for row in rows]


@lru_cache
def _start(tables: Tables, driver: sa.Dialect) -> Prepared:
    in_batch = DIALECTS[driver.name].in_batch(tables.task.c.id, "signalled")
    return Prepared(starting(tables, in_batch), driver)


def starting(tables: Tables, chosen: sa.ColumnElement[bool]) -> sa.Update:
    """The statement that makes those of the chosen tasks due that wait for a signal which has arrived.

    A task that waits for a signal and for children at the same time is blocked by these alone. It starts, and waits for
    them again.
    """
    task, step, signal = tables.task, tables.step.c, tables.signal.c
    waits = (step.task_id == task.c.id) & step.done_at.is_(None) & step.signal.is_not(None)
    has_arrived = (signal.task_id == task.c.id) & (signal.name == step.signal) & signal.received_at.is_(None)
    found = sa.exists(sa.select(signal.id).where(waits, has_arrived))
    sleeping = is_state(task.c.state, State.WAITING) & (task.c.run_at > db_now())
    calling = is_state(task.c.state, State.BLOCKED) & is_calling(tables, task.c.id)
    values: dict[str, Any] = {"run_at": db_now(), "version": next_version(task.c.version)}
    values |= {"state": state_literal(MOVES["unblock"].target), "blocked_by": sa.literal_column("0")}
    return sa.update(task).where(chosen, sleeping | calling, found).values(values).returning(task.c.id)
