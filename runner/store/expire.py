"""expire: cancel expired tasks, and unbind tasks that have waited too long for their hosts."""

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.lock_limits import UPKEEP_LOCKS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state
from runner.db.schema.task import Condition
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import db_now, next_version
from runner.model.task import State
from runner.policy.claim_policy import EXPIRY
from runner.policy.selection import among
from runner.store.dependencies.resolve import Dependent, cancel

EXPIRED = "expired: it did not start in time"
"""The reason that an expired task gets."""

CHUNK = 1_000
"""Maximum number of tasks per transaction."""


class Overdue(NamedTuple):
    """The tasks without a runner whose time has passed.

    Args:
        expired: True if a task has expired.
        unbound: True if any host may take a task from now on.
    """

    expired: bool
    unbound: bool


@needs(Needs.PREPARED)
async def any_overdue(tx: Transaction) -> Overdue:
    """Return whether there are such tasks: one cheap statement for frequent checks."""
    rows = await tx.run(_any_overdue(tx.tables, tx.driver), {})
    return Overdue(*map(bool, rows[0]))


async def unbind(tx: Transaction, only: Collection[int] | None = None, without: Collection[int] = ()) -> list[int]:
    """Let any host take up to CHUNK tasks that have waited for theirs long enough.

    Args:
        only: ids of the only tasks; None for all.
        without: ids of tasks to leave out.

    Returns:
        The ids of the tasks. Tasks that another transaction has locked remain for the next call.
    """
    task = tx.tables.task
    chosen = (_is_unbound(tx.tables), *among(task.c.id, only, without))
    waited = sa.select(task.c.id).where(*chosen).order_by(task.c.hosts_until).limit(CHUNK)
    ids = [row[0] for row in await tx.rows(waited.with_for_update(skip_locked=True))]
    values = {"hosts": "", "version": next_version(task.c.version)}
    if ids:
        await tx.execute(sa.update(task).where(tx.dialect.one_of(task.c.id, ids)).values(values))
    return ids


async def expire(
    tx: Transaction, only: Collection[int] | None = None, without: Collection[int] = ()
) -> list[Dependent]:
    """Move up to CHUNK expired tasks to the history as cancelled, the earliest expiry first.

    Running tasks stay: an attempt that started in time may end. If it fails later, the task expires then.

    Args:
        only: ids of the only tasks; None for all.
        without: ids of tasks to leave out.

    Returns:
        The cancelled tasks. Tasks that another transaction has locked remain for the next call.
    """
    task = tx.tables.task
    expired = (
        sa.select(*(task.c[name] for name in Dependent._fields))
        .where(_is_expired(tx.tables), tx.dialect.lock_limit(UPKEEP_LOCKS), *among(task.c.id, only, without))
        .order_by(task.c.expires_at)
        .limit(CHUNK)
        .with_for_update(skip_locked=True)
    )
    return await cancel(tx, {Dependent(*row): EXPIRED for row in await tx.rows(expired)})


async def overdue_tasks(tx: Transaction, without: Collection[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Return the handlers of up to CHUNK tasks to expire, and of tasks to unbind, by task id; locked ones too.

    Args:
        tx: an open transaction; two statements are executed.
    """
    task = tx.tables.task.c
    rows = sa.select(task.id, task.handler).where(*among(task.id, None, without)).limit(CHUNK)
    expired = await tx.rows(rows.where(_is_expired(tx.tables)).order_by(task.expires_at))
    unbound = await tx.rows(rows.where(_is_unbound(tx.tables)).order_by(task.hosts_until))
    return {row.id: row.handler for row in expired}, {row.id: row.handler for row in unbound}


def _is_expired(tables: Tables) -> Condition:
    """The condition that a task has expired and has no runner: a walk along the index `expires`."""
    task = tables.task.c
    return EXPIRY.is_expired(task) & is_state(task.state, State.WAITING, State.BLOCKED)


def _is_unbound(tables: Tables) -> Condition:
    """The condition that a task without a runner waits for its hosts too long: a walk along the index `hosts`."""
    task = tables.task.c
    waits = is_state(task.state, State.WAITING, State.BLOCKED)
    return (task.hosts != sa.literal_column("''")) & (task.hosts_until <= db_now()) & waits


@lru_cache
def _any_overdue(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(sa.select(sa.exists().where(_is_expired(tables)), sa.exists().where(_is_unbound(tables))), driver)
