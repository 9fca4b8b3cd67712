"""batch: undo a change group, and preview an undo."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runner.db.transaction import Transaction
from runner.operations.bulk import PLAIN, Course, DatabaseAccess
from runner.operations.lock import read_tasks
from runner.operations.results import Result
from runner.operations.undo.conflicts import objection, unsupported
from runner.operations.undo.entries import ChangeKind, UndoableChange, changes_of, in_batch
from runner.operations.undo.terminate import consequences
from runner.operations.unique_keys import ANOTHER, key_conflicts

CAP = 10_000
"""The most changes that a preview reads."""


MOST_REASONS = 5
OTHER = "for other reasons, which the undo reports"


@dataclass(frozen=True, slots=True)
class UndoPreview:
    """The preview of an undo.

    Args:
        changes: the changes that were read, latest first.
        able: the ids of the audit entries that can be undone.
        skipped: the number of the others, by reason.
        more: True if there are more changes than were read.
    """

    changes: Sequence[UndoableChange]
    able: Sequence[int]
    skipped: Mapping[str, int]
    more: bool = False

    @property
    def number(self) -> str:
        """The number of changes to undo, as the operator confirms it."""
        return f"{len(self.able)}{'+' if self.more else ''}"


async def preview_undo(
    tx: Transaction, entries: Sequence[int] | None = None, batch: str = "", cap: int = CAP
) -> UndoPreview:
    """Preview an undo; pauses and runner commands are judged only by the undo itself.

    Args:
        tx: an open transaction.
        entries: the ids of audit entries; None for a change group.
        batch: the id of the change group.
        cap: the most changes of a group to read.
    """
    entry_ids = await in_batch(tx, batch, cap + 1) if entries is None else list(entries)
    changes = await changes_of(tx, entry_ids[:cap])
    tasks = await read_tasks(tx, sorted({change.subject for change in changes if change.task_id}), locked=False)
    ends = [change for change in changes if change.kind is ChangeKind.TERMINATE]
    children = await consequences(tx, ends)
    objections = {
        change.id: objection(change, tasks.get(change.subject), children)
        if change.task_id
        else _place_objection(change)
        for change in changes
    }
    eligible = [change for change in ends if objections[change.id] is None]
    conflicts = await key_conflicts(tx, [change.subject for change in eligible])
    objections |= {change.id: ANOTHER for change in eligible if change.subject in conflicts}
    able = [id for id, why in objections.items() if why is None]
    return UndoPreview(changes, able, _reasons(objections.values()), more=len(entry_ids) > cap)


def _reasons(objections: Iterable[str | None]) -> dict[str, int]:
    """The number of changes by reason, most frequent first; rare reasons are combined, because some name a task."""
    reasons = Counter(why for why in objections if why).most_common()
    rest = sum(number for _, number in reasons[MOST_REASONS:])
    return dict(reasons[:MOST_REASONS]) | ({OTHER: rest} if rest else {})


UndoOperation: TypeAlias = Callable[[Transaction, Sequence[int]], Awaitable[Result]]
"""The undo of audit entries: `functools.partial(undo, by=by)`."""


async def undo_all(database: DatabaseAccess, operation: UndoOperation, batch: str, course: Course = PLAIN) -> Result:
    """Undo a change group in chunks, latest change first.

    Args:
        database: access to the database.
        operation: undoes a chunk.
        batch: the id of the change group.
        course: the options.
    """
    result, before = Result(), None
    while not course.over(result):
        limit = course.chunk if course.most is None else min(course.chunk, course.most - len(result.changed))
        entries = await database.read(in_batch, batch, limit, before)
        if not entries:
            break
        result.add(await database.write(operation, entries))
        before = entries[-1]
        if course.on_progress:
            course.on_progress(result)
    return result


def _place_objection(change: UndoableChange) -> str | None:
    return None if change.kind in (ChangeKind.PAUSE, ChangeKind.COMMAND) else unsupported(change)
