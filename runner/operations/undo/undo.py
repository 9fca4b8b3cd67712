"""undo: undo changes, each with the function of its kind."""

from collections.abc import Iterable, Sequence

from runner.db.transaction import Transaction
from runner.operations.lock import read_tasks
from runner.operations.results import Actor, Result, Skipped
from runner.operations.undo.conflicts import unsupported
from runner.operations.undo.entries import UndoableChange, changes_of
from runner.operations.undo.kinds import KINDS, TERMINATE, Pair, kind_of, task_conflict
from runner.operations.undo.terminate import Restored, consequences, restore
from runner.operations.unique_keys import lock_keys

NO_ENTRY = "the audit log has no such change"
LATER = "undo the later change of the same task first"


async def undo(tx: Transaction, entries: Iterable[int], by: Actor) -> Result:
    """Undo changes, unless later ones would be lost.

    Values of live tasks are restored; tasks that were terminated before they ran come back as they were, and
    terminations of running tasks are withdrawn; requeued tasks that have not started become dead or cancelled again,
    and unblocked ones blocked; pauses and runner commands are as before.

    Args:
        tx: a writing transaction.
        entries: the ids of audit entries; of several for one task only the latest is undone.
        by: the author of the undo.

    Returns:
        The result by task id; by entry id for changes that were not to tasks.
    """
    entry_ids = list(dict.fromkeys(entries))
    changes = await changes_of(tx, entry_ids)
    existing = {change.id for change in changes}
    result = Result(skipped=[Skipped(entry, NO_ENTRY) for entry in entry_ids if entry not in existing])
    for change in changes:
        if change.task_id is None:
            result.add(await _object(tx, change, by))
    await _tasks(tx, [change for change in changes if change.task_id is not None], by, result)
    return result


async def _object(tx: Transaction, change: UndoableChange, by: Actor) -> Result:
    kind = kind_of(change)
    if kind is None or kind.undo_object is None:
        return Result(skipped=[Skipped(change.id, unsupported(change))])
    why = await kind.undo_object(tx, change, by)
    return Result(skipped=[Skipped(change.id, why)]) if why else Result([change.id])


async def _tasks(tx: Transaction, changes: Sequence[UndoableChange], by: Actor, result: Result) -> None:
    latest = {change.subject: change for change in reversed(changes)}
    result.skipped += [Skipped(change.subject, LATER) for change in changes if latest[change.subject] is not change]
    ends = [change for change in latest.values() if kind_of(change) is TERMINATE]
    keys = await lock_keys(tx, sorted(change.subject for change in ends))
    tasks = await read_tasks(tx, sorted(latest), locked=True)
    dependents = await consequences(tx, ends)
    eligible: list[Pair] = []
    for id, change in sorted(latest.items()):
        if why := task_conflict(change, tasks.get(id), dependents):
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
