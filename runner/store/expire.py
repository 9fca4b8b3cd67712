"""expire: cancel the tasks whose expiry has passed before they started."""

from functools import lru_cache

import sqlalchemy as sa

from runner.db.schema import Tables, is_state
from runner.db.schema.task import Condition
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.model.task import State
from runner.policy.claim_order import EXPIRY
from runner.store.dependencies.resolve import Dependent, cancel

EXPIRED = "expired: it did not start in time"
"""The reason that an expired task gets."""

CHUNK = 1_000
"""Maximum number of tasks per transaction."""


async def any_expired(tx: Transaction) -> bool:
    """Return True if a task without a runner has expired: one cheap statement for frequent checks.

    Args:
        tx: an open transaction.
    """
    rows = await tx.run(_any_expired(tx.tables, tx.driver), {})
    return bool(rows[0][0])


async def expire(tx: Transaction) -> list[Dependent]:
    """Move up to CHUNK expired tasks to the history as cancelled, the earliest expiry first.

    Running tasks stay: an attempt that started in time may end. If it fails later, the task expires then.

    Args:
        tx: a writing transaction.

    Returns:
        The cancelled tasks. Tasks that another transaction has locked remain for the next call.
    """
    task = tx.tables.task
    expired = (
        sa.select(*(task.c[name] for name in Dependent._fields))
        .where(_is_expired(tx.tables))
        .order_by(task.c.expires_at)
        .limit(CHUNK)
        .with_for_update(skip_locked=True)
    )
    return await cancel(tx, {Dependent(*row): EXPIRED for row in await tx.rows(expired)})


def _is_expired(tables: Tables) -> Condition:
    """The condition that a task has expired and has no runner: a walk along the index `expires`."""
    task = tables.task.c
    return EXPIRY.is_expired(task) & is_state(task.state, State.WAITING, State.BLOCKED)


@lru_cache
def _any_expired(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(any_expired_statement(tables), driver)


def any_expired_statement(tables: Tables) -> sa.Select[tuple[bool]]:
    """The statement of `any_expired`."""
    return sa.select(sa.exists().where(_is_expired(tables)))
