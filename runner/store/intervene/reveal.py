"""reveal: write down that somebody looks at the secrets of a task."""

from runner.store.intervene.answers import By
from runner.store.intervene.record import Entry, record
from runner.store.observe.audit import REVEAL
from runner.store.transaction import Transaction


async def reveal(tx: Transaction, task_id: int, by: By) -> None:
    """Write down that secrets of a task are shown to somebody; nothing of the task changes.

    Args:
        tx: a writing transaction, to be committed before they are shown.
        task_id: the task's number.
        by: who looks, and why.
    """
    await record(tx, by, [Entry(REVEAL, {}, {}, task_id)])
