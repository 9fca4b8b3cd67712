"""batch: take back all that was changed together, and tell before what would come of it."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runner.store.intervene.answers import Result
from runner.store.intervene.bulk import PLAIN, Course, Doors
from runner.store.intervene.keys import ANOTHER, keyless
from runner.store.intervene.locking import standing
from runner.store.intervene.undo.changes import Change, Kind, changes_of, in_batch
from runner.store.intervene.undo.ended import consequences
from runner.store.intervene.undo.objections import final, objection
from runner.store.transaction import Transaction

CAP = 10_000
"""Changes that a preview looks at."""


MOST_REASONS = 5
OTHER = "for other reasons, which are told when it is done"


@dataclass(frozen=True, slots=True)
class Undoing:
    """What taking changes back would do.

    Args:
        changes: that were looked at, the latest first.
        able: numbers of the entries that can be taken back.
        skipped: how many cannot, by the reason.
        more: True when there are more than were looked at.
    """

    changes: Sequence[Change]
    able: Sequence[int]
    skipped: Mapping[str, int]
    more: bool = False

    @property
    def number(self) -> str:
        """How many would be taken back: what has to be confirmed."""
        return f"{len(self.able)}{'+' if self.more else ''}"


async def undoing(tx: Transaction, entries: Sequence[int] | None = None, batch: str = "", cap: int = CAP) -> Undoing:
    """Tell what taking changes back would do, without doing it; pauses and wishes are judged when it is done.

    Args:
        tx: an open transaction.
        entries: numbers in the audit; None for those of a batch.
        batch: the word that they have in common.
        cap: the most changes of a batch to look at.
    """
    numbers = await in_batch(tx, batch, cap + 1) if entries is None else list(entries)
    changes = await changes_of(tx, numbers[:cap])
    held = await standing(tx, sorted({change.subject for change in changes if change.task_id}), locked=False)
    ends = [change for change in changes if change.kind is Kind.END]
    children = await consequences(tx, ends)
    objections = {
        change.id: objection(change, held.get(change.subject), children) if change.task_id else _elsewhere(change)
        for change in changes
    }
    back = [change for change in ends if objections[change.id] is None]
    lost = await keyless(tx, [change.subject for change in back])
    objections |= {change.id: ANOTHER for change in back if change.subject in lost}
    able = [id for id, why in objections.items() if why is None]
    return Undoing(changes, able, _reasons(objections.values()), more=len(numbers) > cap)


def _reasons(objections: Iterable[str | None]) -> dict[str, int]:
    """How many there are of each reason, the most first; some name a task, so that there may be any number of them."""
    counted = Counter(why for why in objections if why).most_common()
    rest = sum(number for _, number in counted[MOST_REASONS:])
    return dict(counted[:MOST_REASONS]) | ({OTHER: rest} if rest else {})


UndoOperation: TypeAlias = Callable[[Transaction, Sequence[int]], Awaitable[Result]]
"""Taking back entries of the audit: `functools.partial(undo, by=by)`."""


async def undo_all(doors: Doors, operation: UndoOperation, batch: str, course: Course = PLAIN) -> Result:
    """Take back all that was changed together, chunk by chunk, the latest first.

    Args:
        doors: to the database.
        operation: takes back a chunk.
        batch: the word that the changes have in common.
        course: how it goes.
    """
    result, before = Result(), None
    while not course.over(result):
        left = course.chunk if course.most is None else min(course.chunk, course.most - len(result.changed))
        entries = await doors.read(in_batch, batch, left, before)
        if not entries:
            break
        result.add(await doors.write(operation, entries))
        before = entries[-1]
        if course.on_progress:
            course.on_progress(result)
    return result


def _elsewhere(change: Change) -> str | None:
    return None if change.kind in (Kind.PAUSE, Kind.WISH) else final(change)
