"""rights: what this login may do."""

import sqlalchemy as sa

from runner.store.transaction import Transaction


async def may_intervene(tx: Transaction) -> bool:
    """Tell whether this login may change tasks, and write down that it did."""
    return bool(await tx.scalar(sa.select(tx.dialect.may_intervene(tx.tables))))
