"""wish: ask a runner for something; it hears of it with its next beat."""

import sqlalchemy as sa

from runner.policy.wish import parse_wish
from runner.store.intervene.answers import By
from runner.store.intervene.record import Entry, record
from runner.store.transaction import Transaction


async def wish(tx: Transaction, runner_id: int, wanted: str | None, by: By) -> bool:
    """Ask a runner for something.

    Args:
        tx: a writing transaction.
        runner_id: the runner's number.
        wanted: as runner.policy.wish says; None to take a wish back that was not heard yet.
        by: who asks.

    Returns:
        False when there is no such runner.

    Raises:
        InvalidEdit: runners do not understand that wish.
    """
    if wanted is not None:
        wanted = str(parse_wish(wanted))
    runner = tx.tables.runner
    mine = runner.c.id == runner_id
    rows = await tx.rows(sa.select(runner.c.wish).where(mine).with_for_update())
    if rows:
        await tx.execute(sa.update(runner).where(mine).values(wish=wanted))
        entry = Entry("wish", {"wish": rows[0].wish}, {"wish": wanted}, target=f"runner {runner_id}")
        await record(tx, by, [entry])
    return bool(rows)
