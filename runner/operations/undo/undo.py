"""undo: undo changes, each with the function of its kind."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from runner.db.transaction import Transaction
from runner.operations.lock import LockedTask, read_tasks
from runner.operations.results import Actor, Result, Skipped
from runner.operations.undo.conflicts import objection, unsupported
from runner.operations.undo.entries import ChangeKind, UndoableChange, changes_of
from runner.operations.undo.pauses import undo_place_change
from runner.operations.undo.requeue import undo_requeue
from runner.operations.undo.terminate import Restored, consequences, restore
from runner.operations.undo.unblock import reblock
from runner.operations.undo.values import set_values, withdraw
from runner.operations.unique_keys import lock_keys

NO_ENTRY = "the audit log has no such change"
LATER = "undo the later change of the same task first"

Pair = tuple[UndoableChange, LockedTask]
"""A change, and its locked task."""

UNDO_FUNCTIONS: dict[ChangeKind, Callable[[Transaction, Sequence[Pair], Actor], Awaitable[Result]]] = {
    ChangeKind.VALUES: set_values,
    ChangeKind.REQUEST: withdraw,
    ChangeKind.REQUEUE: undo_requeue,
    ChangeKind.UNBLOCK: reblock,
}


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
    answer = Result(skipped=[Skipped(entry, NO_ENTRY) for entry in entry_ids if entry not in existing])
    for change in changes:
        if change.task_id is None:
            answer.add(await _place(tx, change, by))
    await _tasks(tx, [change for change in changes if change.task_id is not None], by, answer)
    return answer


async def _place(tx: Transaction, change: UndoableChange, by: Actor) -> Result:
    if change.kind in (ChangeKind.PAUSE, ChangeKind.COMMAND):
        why = await undo_place_change(tx, change, by)
        return Result(skipped=[Skipped(change.id, why)]) if why else Result([change.id])
    return Result(skipped=[Skipped(change.id, unsupported(change))])


async def _tasks(tx: Transaction, changes: Sequence[UndoableChange], by: Actor, answer: Result) -> None:
    latest = {change.subject: change for change in reversed(changes)}
    answer.skipped += [Skipped(change.subject, LATER) for change in changes if latest[change.subject] is not change]
    ends = [change for change in latest.values() if change.kind is ChangeKind.TERMINATE]
    keys = await lock_keys(tx, sorted(change.subject for change in ends))
    tasks = await read_tasks(tx, sorted(latest), locked=True)
    children = await consequences(tx, ends)
    eligible: list[Pair] = []
    for id, change in sorted(latest.items()):
        if why := objection(change, tasks.get(id), children):
            answer.skipped.append(Skipped(id, why))
        else:
            eligible.append((change, tasks[id]))
    for kind, undo_kind in UNDO_FUNCTIONS.items():
        if pairs := [pair for pair in eligible if pair[0].kind is kind]:
            answer.add(await undo_kind(tx, pairs, by))
    # Also without pairs, because locked keys without a holder must be removed again.
    if ends:
        answer.add(
            await restore(tx, Restored(keys, [pair for pair in eligible if pair[0].kind is ChangeKind.TERMINATE]), by)
        )
