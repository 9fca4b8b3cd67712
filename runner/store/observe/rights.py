"""rights: what may be changed here, by this login or by anybody at all."""

from enum import Enum

import sqlalchemy as sa

from runner.store.transaction import Transaction


class Standing(Enum):
    """What this connection is to the database."""

    INTERVENES = "may change tasks, and write down that it did"
    LOOKS = "a login that may only look"
    STANDBY = "a standby, which follows another server and takes changes from nobody else"
    CLOSED = "a database that is set to take no changes"


async def standing(tx: Transaction) -> Standing:
    """Tell what may be changed through this connection."""
    found = tx.dialect.rights(tx.tables)
    row = (await tx.rows(sa.select(*(condition.label(name) for name, condition in found.items()))))[0]
    if row.follows:
        return Standing.STANDBY
    if row.closed:
        return Standing.CLOSED
    return Standing.INTERVENES if row.intervenes else Standing.LOOKS


async def reads_audit(tx: Transaction) -> bool:
    """Tell whether this login may see what operators did."""
    return bool(await tx.scalar(sa.select(tx.dialect.rights(tx.tables)["reads_audit"])))


async def staleness(tx: Transaction) -> float | None:
    """Tell how old the newest change is that a standby shows, in seconds.

    Returns:
        None for a database that is no standby, or one that has not followed any change yet. While nothing changes at
        its master it grows too; runners beat every few seconds.
    """
    value = await tx.scalar(sa.select(tx.dialect.staleness()))
    return None if value is None else max(0.0, float(value))
