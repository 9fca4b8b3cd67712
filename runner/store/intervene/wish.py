"""wish: ask a runner for something; it hears of it with its next beat."""

import sqlalchemy as sa

from runner.errors import InvalidEdit
from runner.store.intervene.answers import By
from runner.store.intervene.record import Entry, record
from runner.store.transaction import Transaction

WISHES = ("drain",)
"""What a runner understands."""


async def wish(tx: Transaction, runner_id: int, wanted: str | None, by: By) -> bool:
    """Ask a runner for something.

    Args:
        tx: a writing transaction.
        runner_id: the runner's number.
        wanted: one of WISHES; None to take a wish back that was not heard yet.
        by: who asks.

    Returns:
        False when there is no such runner.

    Raises:
        InvalidEdit: runners do not understand that wish.
    """
    if wanted is not None and wanted not in WISHES:
        raise InvalidEdit(field="the wish", value=wanted, why=f"runners understand {', '.join(WISHES)}")
    runner = tx.tables.runner
    mine = runner.c.id == runner_id
    rows = await tx.rows(sa.select(runner.c.wish).where(mine).with_for_update())
    if rows:
        await tx.execute(sa.update(runner).where(mine).values(wish=wanted))
        entry = Entry("wish", {"wish": rows[0].wish}, {"wish": wanted}, target=f"runner {runner_id}")
        await record(tx, by, [entry])
    return bool(rows)
