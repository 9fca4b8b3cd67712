"""edit: set values of one task."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runner.store.intervene.answers import By, Refused, Result, Target
from runner.store.intervene.changes import PAYLOAD_LIMIT, Changes, check_against, check_values
from runner.store.intervene.locking import Held, change, hold, sorted_out, standing
from runner.store.intervene.record import Entry, record
from runner.store.transaction import Transaction

SAME = "it is like that already"


@dataclass(frozen=True, slots=True)
class Editing:
    """What an edit would do.

    Args:
        answer: as the edit would give it.
        before: the values that it would change, as they are.
        after: the same values as they would be.
    """

    answer: Result
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


async def edit(
    tx: Transaction,
    id: int,
    seen: int | None,
    changes: Changes,
    by: By,
    *,
    payload_limit: int = PAYLOAD_LIMIT,
) -> Result:
    """Set values of a live task; a running one too, whose settle reads the row as it is then.

    Args:
        tx: a writing transaction.
        id: the task's.
        seen: the version that the operator saw; None to edit it whatever it is now.
        changes: the new values.
        by: who does it.
        payload_limit: the most bytes of a payload.

    Returns:
        What was done; values that stand there already are no change.

    Raises:
        InvalidEdit: a value is not allowed, or not for this task as it is now; nothing was changed.
        InvalidRetryPlan: the retry plan is not one.
        PayloadTooLarge: the payload has more bytes than allowed.
    """
    given = check_values(changes, payload_limit)
    made = _editing(given, *await hold(tx, "edit", [Target(id, seen)]))
    if made.after:
        await change(tx, [id], **made.after)
        await record(tx, by, [Entry("edit", made.before, made.after, id)])
    return made.answer


async def editing(
    tx: Transaction, id: int, seen: int | None, changes: Changes, *, payload_limit: int = PAYLOAD_LIMIT
) -> Editing:
    """Tell what an edit would do, without doing it.

    Args:
        tx: an open transaction.
        id: the task's.
        seen: the version that the operator saw; None for whatever it is now.
        changes: the new values.
        payload_limit: the most bytes of a payload.

    Raises:
        InvalidEdit: as `edit`.
        InvalidRetryPlan: as `edit`.
        PayloadTooLarge: as `edit`.
    """
    given = check_values(changes, payload_limit)
    return _editing(given, *sorted_out("edit", [Target(id, seen)], await standing(tx, [id], locked=False)))


def _editing(given: dict[str, Any], held: list[Held], answer: Result) -> Editing:
    """What to change of the one task, if that is held."""
    for task in held:
        check_against(given, task)
        new = {name: value for name, value in given.items() if getattr(task, name) != value}
        if new:
            answer.changed.append(task.id)
            return Editing(answer, {name: getattr(task, name) for name in new}, new)
        answer.refused.append(Refused(task.id, SAME))
    return Editing(answer)


async def edit_each(
    tx: Transaction, targets: Iterable[Target], changes: Changes, by: By, *, payload_limit: int = PAYLOAD_LIMIT
) -> Result:
    """Set the same values of several tasks; see `edit`."""
    result = Result()
    for target in targets:
        result.add(await edit(tx, target.id, target.seen, changes, by, payload_limit=payload_limit))
    return result
