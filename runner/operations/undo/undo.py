"""undo: undo changes, each with the function of its kind, or a whole change group, and preview it."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runner.db.halves import write_in_halves
from runner.db.transaction import Transaction
from runner.model.stuck_row import RowFault
from runner.operations.audit_log import record
from runner.operations.bulk import DEFAULT_OPTIONS, BulkOptions, DatabaseAccess
from runner.operations.results import Actor, Result, Skipped, stuck_of
from runner.operations.targets import lock_tasks, read_tasks
from runner.operations.undo.entries import UndoableChange, changes_of, entries_of_group
from runner.operations.undo.kinds import (
    KINDS,
    TERMINATE,
    Pair,
    kind_of,
    object_conflict,
    obstacles,
    task_conflict,
    unsupported,
)
from runner.operations.undo.tasks import Restored, restore
from runner.operations.unique_keys import ANOTHER, key_conflicts, lock_keys

NO_ENTRY = "the audit log has no such change"
LATER = "undo the later change of the same task first"


async def undo(tx: Transaction, entries: Iterable[int], by: Actor) -> Result:
    """Undo changes, unless later ones would be lost.

    Values of live tasks are restored; tasks that were terminated before they ran come back as they were, and
    terminations of running tasks are withdrawn; requeued tasks that have not started become dead or cancelled again,
    and unblocked ones blocked; pauses and runner commands are as before.

    Args:
        entries: the ids of audit entries; of several for one task only the latest is undone.

    Returns:
        The result by task id; by entry id for changes that were not to tasks.
    """
    entry_ids = list(dict.fromkeys(entries))
    changes = await changes_of(tx, entry_ids)
    existing = {change.id for change in changes}
    result = Result(skipped=[Skipped(entry, NO_ENTRY, "change") for entry in entry_ids if entry not in existing])
    for change in changes:
        if change.task_id is None:
            result.add(await _object(tx, change, by))
    await _tasks(tx, [change for change in changes if change.task_id is not None], by, result)
    return result


async def _object(tx: Transaction, change: UndoableChange, by: Actor) -> Result:
    kind = kind_of(change)
    if kind is None or kind.undo_object is None:
        return Result(skipped=[Skipped(change.id, unsupported(change), "change")])
    entry = await kind.undo_object(tx, change)
    if isinstance(entry, str):
        return Result(skipped=[Skipped(change.id, entry, "change")])
    await record(tx, by, [entry._replace(target=change.target, undo_of=change.id)])
    return Result([change.id])


async def _tasks(tx: Transaction, changes: Sequence[UndoableChange], by: Actor, result: Result) -> None:
    latest = {change.subject: change for change in reversed(changes)}
    result.skipped += [Skipped(change.subject, LATER) for change in changes if latest[change.subject] is not change]
    ends = [change for change in latest.values() if kind_of(change) is TERMINATE]
    keys = await lock_keys(tx, sorted(change.subject for change in ends))
    tasks, stuck = await lock_tasks(tx, sorted(latest))
    result.stuck += stuck
    for locked in stuck:
        del latest[locked.id]
    others = await obstacles(tx, list(latest.values()))
    eligible: list[Pair] = []
    for id, change in sorted(latest.items()):
        if why := task_conflict(change, tasks.get(id), others):
            result.skipped.append(Skipped(id, why))
        else:
            eligible.append((change, tasks[id]))
    for kind in KINDS:
        pairs = [pair for pair in eligible if kind_of(pair[0]) is kind]
        if kind is TERMINATE and ends:
            # Also without pairs, because locked keys without a holder must be removed again.
            result.add(await restore(tx, Restored(keys, pairs), by))
        elif pairs and kind.undo_tasks is not None:
            result.add(await kind.undo_tasks(tx, pairs, by))


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


async def preview_undo(tx: Transaction, entries: Sequence[int] | None = None, change_group: str = "") -> UndoPreview:
    """Preview an undo; pauses and runner commands are judged only by the undo itself.

    Args:
        entries: the ids of audit entries; None for a change group.
    """
    entry_ids = await entries_of_group(tx, change_group, CAP + 1) if entries is None else list(entries)
    changes = await changes_of(tx, entry_ids[:CAP])
    tasks = await read_tasks(tx, sorted({change.subject for change in changes if change.task_id}), locked=False)
    others = await obstacles(tx, changes)
    conflicts = {
        change.id: task_conflict(change, tasks.get(change.subject), others)
        if change.task_id
        else object_conflict(change)
        for change in changes
    }
    eligible = [change for change in changes if kind_of(change) is TERMINATE and conflicts[change.id] is None]
    held_keys = await key_conflicts(tx, [change.subject for change in eligible])
    conflicts |= {change.id: ANOTHER for change in eligible if change.subject in held_keys}
    able = [id for id, why in conflicts.items() if why is None]
    return UndoPreview(changes, able, _reasons(conflicts.values()), more=len(entry_ids) > CAP)


def _reasons(conflicts: Iterable[str | None]) -> dict[str, int]:
    """The number of changes by reason, most frequent first; rare reasons are combined, because some name a task."""
    reasons = Counter(why for why in conflicts if why).most_common()
    rest = sum(number for _, number in reasons[MOST_REASONS:])
    return dict(reasons[:MOST_REASONS]) | ({OTHER: rest} if rest else {})


UndoOperation: TypeAlias = Callable[[Transaction, Sequence[int]], Awaitable[Result]]
"""The undo of audit entries: `functools.partial(undo, by=by)`."""


async def undo_each(database: DatabaseAccess, operation: UndoOperation, entries: Sequence[int], so_far: Result) -> None:
    """Undo changes and add the result; changes that the database refuses hold up no others."""

    async def write(part: Sequence[int]) -> None:
        so_far.add(await database.write(operation, part))

    def refuse(entry: int, fault: RowFault) -> None:
        so_far.stuck.append(stuck_of(entry, fault, "change"))

    await write_in_halves(entries, write, refuse)


async def undo_all(
    database: DatabaseAccess, operation: UndoOperation, change_group: str, options: BulkOptions = DEFAULT_OPTIONS
) -> Result:
    """Undo a change group in chunks, latest change first."""
    result, before = Result(), None
    while not options.is_done(result):
        limit = options.chunk if options.limit is None else min(options.chunk, options.limit - len(result.changed))
        entries = await database.read(entries_of_group, change_group, limit, before)
        if not entries:
            break
        await undo_each(database, operation, entries, result)
        before = entries[-1]
        if options.on_progress:
            options.on_progress(result)
    return result
