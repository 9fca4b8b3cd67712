"""letting go: let tasks wait again for what they were let go from."""

from collections.abc import Sequence

import sqlalchemy as sa

from runner.schema import state_literal
from runner.store.intervene.answers import By, Refused, Result
from runner.store.intervene.locking import Held
from runner.store.intervene.record import Entry, record
from runner.store.intervene.undo.changes import Change
from runner.store.parentage import is_open
from runner.store.transaction import Transaction
from runner.task import MOVES

NO_EDGES = "what it waited for is not known any more"


async def reblock(tx: Transaction, pairs: Sequence[tuple[Change, Held]], by: By) -> Result:
    """Open the edges again that an operator closed; a parent that has ended meanwhile is found by the next sweep.

    Args:
        tx: a writing transaction.
        pairs: changes that can be taken back, and their tasks, held.
        by: who does it.
    """
    edges = {task.id: set(change.before.get("edges", ())) for change, task in pairs}
    opened = await _open(tx, edges)
    able = [(change, task) for change, task in pairs if task.id in opened]
    await wait_again(tx, [task.id for _, task in able])
    await record(tx, by, [_entry(change, task) for change, task in able])
    return Result(
        [task.id for _, task in able], refused=[Refused(id, NO_EDGES) for id in sorted(edges) if id not in opened]
    )


async def wait_again(tx: Transaction, ids: Sequence[int]) -> None:
    """Let live tasks that are held wait for their open edges."""
    if not ids:
        return
    task, edge = tx.tables.task, tx.tables.dependency
    theirs = sa.select(sa.func.count()).where(edge.c.task_id == task.c.id, is_open(edge.c)).scalar_subquery()
    values = {
        "state": state_literal(MOVES["reblock"].target),
        "blocked_by": sa.case((theirs > 1, theirs), else_=1),
        "parents": sa.null(),  # how they have ended is told again when none is open
        "version": task.c.version + 1,
    }
    await tx.execute(sa.update(task).where(tx.dialect.one_of(task.c.id, ids)).values(values))


async def _open(tx: Transaction, edges: dict[int, set[int]]) -> set[int]:
    """Open those of these edges again that an operator has let go; tell of which tasks any were."""
    edge = tx.tables.dependency
    numbers = sorted({number for theirs in edges.values() for number in theirs})
    closed = tx.dialect.one_of(edge.c.id, numbers) & tx.dialect.one_of(edge.c.task_id, list(edges))
    again = sa.update(edge).where(closed, edge.c.satisfied_by.is_not(None)).values(satisfied_at=None, satisfied_by=None)
    return {row.task_id for row in await tx.rows(again.returning(edge.c.task_id))}


def _entry(change: Change, task: Held) -> Entry:
    before = {"state": task.state, "waited_for": []}
    after = {"state": MOVES["reblock"].target, "waited_for": change.before.get("waited_for", [])}
    return Entry("reblock", before, after, task.id, undo_of=change.id)
