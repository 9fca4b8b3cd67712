"""unfinished: is there still work for this business key?"""

import sqlalchemy as sa

from runner.store.transaction import Transaction


async def unfinished(tx: Transaction, handler: str, key: str, limit: int = 100) -> list[int]:
    """Find the tasks of a handler and a business key that have not ended.

    Args:
        tx: an open transaction, which may be the caller's own.
        handler: the handler's name.
        key: the business key.
        limit: the most ids to return.

    Returns:
        Their ids, the oldest first; an empty list is false.
    """
    task = tx.tables.task.c
    statement = sa.select(task.id).where(task.key == key, task.handler == handler).order_by(task.id).limit(limit)
    return [row.id for row in await tx.rows(statement)]
