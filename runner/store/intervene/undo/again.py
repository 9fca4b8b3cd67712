"""again: put tasks back into the history that were to be run again, and have not been."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from runner.store.dialects import by_column, same_id
from runner.store.intervene.answers import By, Result
from runner.store.intervene.changes import Changes, check_values
from runner.store.intervene.locking import Held, change
from runner.store.intervene.record import Entry, record
from runner.store.intervene.undo.changes import Change, edited
from runner.store.move import IN_NO_HANDS, NOBODY, Ending, finish, make_way
from runner.store.transaction import Transaction
from runner.task import MOVES

TRAIL_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "attempt": sa.Integer, "rescues": sa.Integer}

VERBS = {MOVES[verb].target: verb for verb in ("rebury", "cancel")}
"""What leads to each state that a task can be run again from."""


async def put_back(tx: Transaction, pairs: Sequence[tuple[Change, Held]], by: By) -> Result:
    """Let tasks be dead, or cancelled, as they were before; their unique keys are free again.

    Args:
        tx: a writing transaction.
        pairs: changes that can be taken back, and their tasks, held.
        by: who does it.
    """
    await _wind_back(tx, [undone for undone, _ in pairs])
    for undone, task in pairs:
        if values := {name: undone.before[name] for name in edited(undone)}:
            await change(tx, [task.id], **check_values(Changes(**values)))
    await make_way(tx, [task.id for _, task in pairs])
    for state, verb in VERBS.items():
        endings = [Ending(task.id, task.fence) for undone, task in pairs if undone.before["state"] == state]
        if endings:
            await finish(tx, verb, NOBODY, endings)
    await record(tx, by, [_entry(undone, task) for undone, task in pairs])
    return Result([task.id for _, task in pairs])


async def _wind_back(tx: Transaction, changes: Sequence[Change]) -> None:
    """Count the attempts again that a retry had forgotten."""
    rows = [(change.subject, *(_count(change, name) for name in ("attempt", "rescues"))) for change in changes]
    task = tx.tables.task
    trail, meant = tx.dialect.one_by_one(tx.dialect.rows("trail", TRAIL_COLUMNS), task, same_id)
    values = {"attempt": trail.c.attempt, "rescues": trail.c.rescues} | IN_NO_HANDS
    statement = sa.update(task).where(meant).values(values)
    await tx.execute(statement, tx.dialect.parameters("trail", by_column(TRAIL_COLUMNS, rows)))


def _count(change: Change, name: str) -> int:
    value = change.before.get(name)
    return value if isinstance(value, int) and value >= 0 else 0


def _entry(change: Change, task: Held) -> Entry:
    state = change.before["state"]
    verb = next(verb for known, verb in VERBS.items() if known == state)
    return Entry(verb, {"state": task.state}, {"state": state}, task.id, undo_of=change.id)
