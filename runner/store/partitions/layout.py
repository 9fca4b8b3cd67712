"""layout: the partitions of the history, and the right of this role to change them."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from runner.db.errors import CONTENT_STATES, is_transient
from runner.db.schema.partitions import SUCCEEDED, full_name
from runner.db.transaction import Transaction
from runner.policy.partitions import Range

BOUNDS = re.compile(r"FOR VALUES FROM \('(-?\d+)'\) TO \('(-?\d+)'\)")

# The default partition has no bounds. Reading them would wait for a transaction that creates a range.
RANGES = sa.text("""
    SELECT pg_get_expr(part.relpartbound, part.oid) AS bounds, part.reltuples AS rows
    FROM pg_inherits AS link JOIN pg_class AS part ON part.oid = link.inhrelid
        JOIN pg_partitioned_table AS whole ON whole.partrelid = link.inhparent AND whole.partdefid <> part.oid
    WHERE link.inhparent = CAST(:whole AS regclass)
""")

# Only owners may read the sequence.
RIGHTS = sa.text("""
    SELECT own, CASE WHEN own THEN pg_sequence_last_value(CAST(pg_get_serial_sequence(:task, 'id') AS regclass)) END,
        current_user
    FROM (
        SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE') AS own
        FROM pg_class WHERE oid = CAST(:whole AS regclass)
    ) AS rights
""")


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranges of the history.

    Args:
        ranges: the ranges in the order of ids, with the row counts of the server statistics; None before the first
            ANALYZE.
        next_id: the next id of the task sequence; 0 if this role may not read it.
        may_change: True if this role may create and drop partitions.
        role: the current role.
    """

    ranges: dict[Range, int | None]
    next_id: int
    may_change: bool
    role: str


async def read_layout(tx: Transaction) -> Layout | None:
    """Read the ranges of the history.

    Args:
        tx: an open transaction; two statements are executed.

    Returns:
        The ranges; None if this database has no partitions.
    """
    if not tx.dialect.partitions:
        return None
    whole, ranges = full_name(tx.tables.history, SUCCEEDED), {}
    for row in await tx.rows(RANGES, {"whole": whole}):
        # A range that was dropped while the statement ran is still listed, without bounds.
        if bounds := BOUNDS.fullmatch(row.bounds or ""):
            ranges[Range(int(bounds[1]), int(bounds[2]))] = None if row.rows < 0 else round(row.rows)
    ((own, last, role),) = await tx.rows(RIGHTS, {"whole": whole, "task": full_name(tx.tables.task)})
    return Layout(dict(sorted(ranges.items())), (last or 0) + 1 if own else 0, own, role)


SPACE = 0x7461736B
"""The first key of the advisory locks ("task"); the second is the oid of the table."""

LOCK_TIMEOUT = "200ms"
"""Lock timeout. Later transactions queue behind the lock request, so this also bounds the delay of a settle."""

LOCK = sa.text("SELECT pg_try_advisory_xact_lock(:space, CAST(CAST(:whole AS regclass) AS oid)::integer)")


async def lock_partitions(tx: Transaction) -> bool:
    """Lock the partitions until the transaction ends; return False if another transaction has the lock."""
    return bool(await tx.scalar(LOCK, {"space": SPACE, "whole": full_name(tx.tables.history, SUCCEEDED)}))


class LockAttempt:
    """The result of a change.

    Args:
        failed: True if a table was in use or a row was in conflict; nothing was changed.
    """

    failed: bool = False


@asynccontextmanager
async def attempt_change(tx: Transaction) -> AsyncIterator[LockAttempt]:
    """Roll the block back if a lock is not available within the timeout, and report it."""
    attempt = LockAttempt()
    try:
        async with tx.connection.begin_nested():
            await tx.execute(sa.select(sa.func.set_config("lock_timeout", LOCK_TIMEOUT, True)))
            yield attempt
    except sa.exc.DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if not (is_transient(error) or state.startswith(CONTENT_STATES)):
            raise
        attempt.failed = True
