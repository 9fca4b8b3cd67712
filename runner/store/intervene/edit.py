"""edit: set values of one task."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runner.store.intervene.answers import By, Refused, Result, Target
from runner.store.intervene.changes import PAYLOAD_LIMIT, Changes, check_against, check_values
from runner.store.intervene.locking import Held, change, hold, sorted_out, standing
from runner.store.intervene.record import Entry, record
from runner.store.intervene.retry import requeue_with
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
    again: bool = False,
    payload_limit: int = PAYLOAD_LIMIT,
) -> Result:
    """Set values of a live task; a running one too, whose settle reads the row as it is then.

    With `again` it is one that is dead or cancelled: it is taken back with all its attempts, and no runner sees it
    before it has the new values. It is one change, and taken back as one.

    Args:
        tx: a writing transaction.
        id: the task's.
        seen: the version that the operator saw; None to edit it whatever it is now.
        changes: the new values.
        by: who does it.
        again: run a task again that is dead or cancelled.
        payload_limit: the most bytes of a payload.

    Returns:
        What was done; values that stand there already are no change.

    Raises:
        InvalidEdit: a value is not allowed, or not for this task as it is now; nothing was changed.
        InvalidRetryPlan: the retry plan is not one.
        PayloadTooLarge: the payload has more bytes than allowed.
    """
    given = check_values(changes, payload_limit)
    if again:
        return await requeue_with(tx, Target(id, seen), given, by)
    made = _editing(given, *await hold(tx, "edit", [Target(id, seen)]))
    if made.after:
        await change(tx, [id], **made.after)
        await record(tx, by, [Entry("edit", made.before, made.after, id)])
    return made.answer


async def editing(
    tx: Transaction,
    id: int,
    seen: int | None,
    changes: Changes,
    *,
    again: bool = False,
    payload_limit: int = PAYLOAD_LIMIT,
) -> Editing:
    """Tell what an edit would do, without doing it.

    Args:
        tx: an open transaction.
        id: the task's.
        seen: the version that the operator saw; None for whatever it is now.
        changes: the new values.
        again: as of `edit`.
        payload_limit: the most bytes of a payload.

    Raises:
        InvalidEdit: as `edit`.
        InvalidRetryPlan: as `edit`.
        PayloadTooLarge: as `edit`.
    """
    given = check_values(changes, payload_limit)
    verb = "requeue" if again else "edit"
    held, answer = sorted_out(verb, [Target(id, seen)], await standing(tx, [id], locked=False))
    return _editing(given, [task._replace(attempt=0) for task in held] if again else held, answer)


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
    tx: Transaction,
    targets: Iterable[Target],
    changes: Changes,
    by: By,
    *,
    again: bool = False,
    payload_limit: int = PAYLOAD_LIMIT,
) -> Result:
    """Set the same values of several tasks; see `edit`."""
    result = Result()
    for target in targets:
        result.add(await edit(tx, target.id, target.seen, changes, by, again=again, payload_limit=payload_limit))
    return result
