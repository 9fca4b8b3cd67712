"""values: set columns of live tasks back, and withdraw requests to end them."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from runner.store.intervene.answers import By, Result
from runner.store.intervene.changes import Changes, check_values
from runner.store.intervene.locking import Held, change, reschedule
from runner.store.intervene.record import Entry, record
from runner.store.intervene.undo.changes import Change
from runner.store.transaction import Transaction


async def set_values(tx: Transaction, pairs: Sequence[tuple[Change, Held]], by: By) -> Result:
    """Set the values of live tasks back to what they were.

    Args:
        tx: a writing transaction.
        pairs: changes that can be taken back, and their tasks, held.
        by: who does it.
    """
    given = {task.id: check_values(Changes(**change.before)) for change, task in pairs}
    times = {id: values["run_at"] for id, values in given.items() if list(values) == ["run_at"]}
    await reschedule(tx, {id: moment for id, moment in times.items() if isinstance(moment, datetime)})
    for id, values in given.items():
        if id not in times:
            await change(tx, [id], **values)
    await record(tx, by, [_entry(change, task, given[task.id]) for change, task in pairs])
    return Result([task.id for _, task in pairs])


def _entry(change: Change, task: Held, values: dict[str, object]) -> Entry:
    before = {name: getattr(task, name) for name in values}
    return Entry("edit", before, values, task.id, undo_of=change.id)


async def withdraw(tx: Transaction, pairs: Sequence[tuple[Change, Held]], by: By) -> Result:
    """Withdraw requests to end running tasks; see `runner.policy.verdict` for one that is just being carried out.

    Args:
        tx: a writing transaction.
        pairs: changes that can be taken back, and their tasks, held.
        by: who does it.
    """
    await change(tx, [task.id for _, task in pairs], cancel_requested=sa.false())
    await record(
        tx,
        by,
        [
            Entry("withdraw", {"cancel_requested": True}, {"cancel_requested": False}, task.id, undo_of=change.id)
            for change, task in pairs
        ],
    )
    return Result([task.id for _, task in pairs])
