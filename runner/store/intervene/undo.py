"""undo: take back what an operator did to a task, if nothing has happened to it since."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.store.intervene.answers import By, Refused, Result, Target
from runner.store.intervene.changes import FIELDS, Changes
from runner.store.intervene.edit import edit
from runner.store.intervene.locking import hold
from runner.store.observe.legible import legible, words
from runner.store.transaction import Transaction

NO_ENTRY = "there is no such entry in the audit of a task"
FINAL = "only changed values can be set back; requeue, terminate or resume instead"
CHANGED = "its values have been changed again since"


async def undo(tx: Transaction, entry: int, by: By) -> Result:
    """Set the values of a live task back to what they were before an entry of the audit.

    Args:
        tx: a writing transaction.
        entry: the entry's number.
        by: who takes it back.

    Returns:
        What was done; refused by the number of the task, or that of the entry when it is not about a task.

    Raises:
        InvalidEdit: the old value is not allowed for the task as it is now.
    """
    audit = tx.tables.audit
    columns = legible(tx, [audit.c[name] for name in ("task_id", "before", "after")])
    row = (await tx.execute(sa.select(*columns).where(audit.c.id == entry))).mappings().one_or_none()
    if row is None or row["task_id"] is None:
        return Result(refused=[Refused(entry, NO_ENTRY)])
    before, after = _values(row["before"]), _values(row["after"])
    if not before or not FIELDS.issuperset(before):
        return Result(refused=[Refused(row["task_id"], FINAL)])
    held, answer = await hold(tx, "edit", [Target(row["task_id"])])
    for task in held:
        if any(getattr(task, name) != value for name, value in after.items()):
            answer.refused.append(Refused(task.id, CHANGED))
        else:
            answer.add(await edit(tx, task.id, task.version, Changes(**before), by, undo_of=entry))
    return answer


def _values(written: Any) -> Mapping[str, Any]:
    values: dict[str, Any] = json.loads(words(written) or "{}")
    if isinstance(values.get("run_at"), str):
        values["run_at"] = datetime.fromisoformat(values["run_at"])
    return values
