"""edit: set values of one task."""

from typing import Any

from runner.store.intervene.answers import By, Refused, Result, Target
from runner.store.intervene.changes import PAYLOAD_LIMIT, Changes, check_against, check_values
from runner.store.intervene.locking import Held, change, hold
from runner.store.intervene.record import Entry, record
from runner.store.transaction import Transaction


async def edit(
    tx: Transaction,
    id: int,
    seen: int | None,
    changes: Changes,
    by: By,
    *,
    payload_limit: int = PAYLOAD_LIMIT,
    undo_of: int | None = None,
) -> Result:
    """Set values of a live task; a running one too, whose settle reads the row as it is then.

    Args:
        tx: a writing transaction.
        id: the task's.
        seen: the version that the operator saw; None to edit it whatever it is now.
        changes: the new values.
        by: who does it.
        payload_limit: the most bytes of a payload.
        undo_of: the entry of the audit that this takes back.

    Returns:
        What was done; values that stand there already are no change.

    Raises:
        InvalidEdit: a value is not allowed, or not for this task as it is now; nothing was changed.
        InvalidRetryPlan: the retry plan is not one.
        PayloadTooLarge: the payload has more bytes than allowed.
    """
    given = check_values(changes, payload_limit)
    held, answer = await hold(tx, "edit", [Target(id, seen)])
    for task in held:
        check_against(given, task)
        new = {name: value for name, value in given.items() if getattr(task, name) != value}
        if new:
            await change(tx, [id], **new)
            await record(tx, by, [Entry("edit", _before(task, new), new, id, undo_of=undo_of)])
            answer.changed.append(id)
        else:
            answer.refused.append(Refused(id, "it is like that already"))
    return answer


def _before(task: Held, new: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(task, name) for name in new}
