"""The changes that this login may make, and the ones this database accepts."""

from enum import Enum

import sqlalchemy as sa

from runner.db.transaction import Transaction


class Permission(Enum):
    """The rights of this connection."""

    READ_WRITE = "a login that may change tasks and write the audit log"
    READ_ONLY = "a read-only login"
    STANDBY = "a standby, which is read-only"
    CLOSED = "a database in read-only mode"


async def connection_permission(tx: Transaction) -> Permission:
    """Find out which changes this connection may make."""
    conditions = tx.dialect.rights(tx.tables)
    row = (await tx.rows(sa.select(*(condition.label(name) for name, condition in conditions.items()))))[0]
    if row.follows:
        return Permission.STANDBY
    if row.closed:
        return Permission.CLOSED
    return Permission.READ_WRITE if row.intervenes else Permission.READ_ONLY


async def reads_audit(tx: Transaction) -> bool:
    """True if this login may read the audit log."""
    return bool(await tx.scalar(sa.select(tx.dialect.rights(tx.tables)["reads_audit"])))


async def staleness(tx: Transaction) -> float | None:
    """The age of the newest change on a standby, in seconds.

    Returns:
        None if the database is not a standby or has not replayed a change yet. The age also grows while the primary
        is idle, but heartbeats change rows every few seconds.
    """
    value = await tx.scalar(sa.select(tx.dialect.staleness()))
    return None if value is None else max(0.0, float(value))
