"""change_group: undo a change group, and preview an undo."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runner.db.transaction import Transaction
from runner.operations.bulk import DEFAULT_OPTIONS, BulkOptions, DatabaseAccess
from runner.operations.lock import read_tasks
from runner.operations.results import Result
from runner.operations.undo.entries import UndoableChange, changes_of, entries_of_group
from runner.operations.undo.kinds import TERMINATE, kind_of, object_conflict, task_conflict
from runner.operations.undo.terminate import consequences
from runner.operations.unique_keys import ANOTHER, key_conflicts

CAP = 10_000
"""Maximum number of changes that a preview reads."""

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
    tx: Transaction, entries: Sequence[int] | None = None, change_group: str = "", cap: int = CAP
) -> UndoPreview:
    """Preview an undo; pauses and runner commands are judged only by the undo itself.

    Args:
        tx: an open transaction.
        entries: the ids of audit entries; None for a change group.
        change_group: the id of the change group.
        cap: maximum number of changes of a group to read.
    """
    entry_ids = await entries_of_group(tx, change_group, cap + 1) if entries is None else list(entries)
    changes = await changes_of(tx, entry_ids[:cap])
    tasks = await read_tasks(tx, sorted({change.subject for change in changes if change.task_id}), locked=False)
    ends = [change for change in changes if kind_of(change) is TERMINATE]
    dependents = await consequences(tx, ends)
    conflicts = {
        change.id: task_conflict(change, tasks.get(change.subject), dependents)
        if change.task_id
        else object_conflict(change)
        for change in changes
    }
    eligible = [change for change in ends if conflicts[change.id] is None]
    held_keys = await key_conflicts(tx, [change.subject for change in eligible])
    conflicts |= {change.id: ANOTHER for change in eligible if change.subject in held_keys}
    able = [id for id, why in conflicts.items() if why is None]
    return UndoPreview(changes, able, _reasons(conflicts.values()), more=len(entry_ids) > cap)


def _reasons(conflicts: Iterable[str | None]) -> dict[str, int]:
    """The number of changes by reason, most frequent first; rare reasons are combined, because some name a task."""
    reasons = Counter(why for why in conflicts if why).most_common()
    rest = sum(number for _, number in reasons[MOST_REASONS:])
    return dict(reasons[:MOST_REASONS]) | ({OTHER: rest} if rest else {})


UndoOperation: TypeAlias = Callable[[Transaction, Sequence[int]], Awaitable[Result]]
"""The undo of audit entries: `functools.partial(undo, by=by)`."""


async def undo_all(
    database: DatabaseAccess, operation: UndoOperation, change_group: str, options: BulkOptions = DEFAULT_OPTIONS
) -> Result:
    """Undo a change group in chunks, latest change first.

    Args:
        database: access to the database.
        operation: undoes a chunk.
        change_group: the id of the change group.
        options: the options.
    """
    result, before = Result(), None
    while not options.is_done(result):
        limit = options.chunk if options.limit is None else min(options.chunk, options.limit - len(result.changed))
        entries = await database.read(entries_of_group, change_group, limit, before)
        if not entries:
            break
        result.add(await database.write(operation, entries))
        before = entries[-1]
        if options.on_progress:
            options.on_progress(result)
    return result
