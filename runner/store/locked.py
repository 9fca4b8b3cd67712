"""locked: the tasks whose rows another transaction locks."""

from collections.abc import Sequence
from functools import lru_cache

import sqlalchemy as sa

from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import is_listed
from runner.policy.selection import listed


@needs(Needs.PREPARED)
async def locked(tx: Transaction, ids: Sequence[int]) -> set[int]:
    """Return the live tasks among these whose rows another transaction locks; none on a database without row locks.

    Args:
        tx: an open transaction, which may write; two statements are executed. It holds the other rows until its end.
    """
    if not tx.dialect.row_locks or not ids:
        return set()
    lock, look = _prepared(tx.tables, tx.driver)
    free = {row[0] for row in await tx.run(lock, {"ids": listed(ids)})}
    rest = [id for id in ids if id not in free]
    return {row[0] for row in await tx.run(look, {"ids": listed(rest)})} if rest else set()


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    task = tables.task.c
    rows = sa.select(task.id).where(is_listed(task.id, sa.bindparam("ids", type_=sa.Text)))
    return Prepared(rows.with_for_update(skip_locked=True), driver), Prepared(rows, driver)
