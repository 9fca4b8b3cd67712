"""turn: change the partitions one program at a time, and hold nobody up for long."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy as sa

from runner.schema.partitions import SUCCEEDED, full_name
from runner.store.faults import CONTENT_STATES, is_transient
from runner.store.transaction import Transaction

SPACE = 0x7461736B
"""The first half of the advisory locks that are ours ("task"); the second is the number of the table."""

PATIENCE = "200ms"
"""How long a table is waited for. Whoever comes behind us waits too, so it is also the longest hold-up of a settle."""

TAKE = sa.text("SELECT pg_try_advisory_xact_lock(:space, CAST(CAST(:whole AS regclass) AS oid)::integer)")


async def take(tx: Transaction) -> bool:
    """Be the only one who changes the partitions until the transaction ends; False when somebody else is at it."""
    return bool(await tx.scalar(TAKE, {"space": SPACE, "whole": full_name(tx.tables.history, SUCCEEDED)}))


class Attempt:
    """What became of a change.

    Args:
        failed: a table was in use, or a row came in the way: nothing has been changed.
    """

    failed: bool = False


@asynccontextmanager
async def trying(tx: Transaction) -> AsyncIterator[Attempt]:
    """Take back what this block has done when a table is not to be had within a moment, and tell so."""
    attempt = Attempt()
    try:
        async with tx.connection.begin_nested():
            await tx.execute(sa.select(sa.func.set_config("lock_timeout", PATIENCE, True)))
            yield attempt
    except sa.exc.DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if not (is_transient(error) or state.startswith(CONTENT_STATES)):
            raise
        attempt.failed = True
