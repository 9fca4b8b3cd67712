"""undo: take changes back, each by what it takes."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from runner.store.intervene.answers import By, Refused, Result
from runner.store.intervene.keys import lock_keys
from runner.store.intervene.locking import Held, standing
from runner.store.intervene.undo.again import put_back
from runner.store.intervene.undo.changes import Change, Kind, changes_of
from runner.store.intervene.undo.elsewhere import set_back
from runner.store.intervene.undo.ended import Restored, consequences, restore
from runner.store.intervene.undo.letting_go import reblock
from runner.store.intervene.undo.objections import final, objection
from runner.store.intervene.undo.values import set_values, withdraw
from runner.store.transaction import Transaction

NO_ENTRY = "there is no such change in the audit"
LATER = "a later change of the same task is to be taken back first"

Pair = tuple[Change, Held]
"""A change, and its task as it is held."""

TAKES_BACK: dict[Kind, Callable[[Transaction, Sequence[Pair], By], Awaitable[Result]]] = {
    Kind.VALUES: set_values,
    Kind.REQUEST: withdraw,
    Kind.AGAIN: put_back,
    Kind.LETTING_GO: reblock,
}


async def undo(tx: Transaction, entries: Iterable[int], by: By) -> Result:
    """Take back what operators did, each if nothing has happened since that this would overrule.

    Values of live tasks are set back; tasks that were terminated while they waited come back as they were, and requests
    to end running ones are withdrawn; dead and cancelled tasks that were to be run again are so once more, and tasks
    that were let go wait again, if they have not been started; pauses and wishes are as before.

    Args:
        tx: a writing transaction.
        entries: numbers in the audit; of several about one task only the latest is taken back.
        by: who takes them back.

    Returns:
        What was done, by the numbers of the tasks; by those of the entries where they are not about tasks.
    """
    wanted = list(dict.fromkeys(entries))
    changes = await changes_of(tx, wanted)
    known = {change.id for change in changes}
    answer = Result(refused=[Refused(entry, NO_ENTRY) for entry in wanted if entry not in known])
    for change in changes:
        if change.task_id is None:
            answer.add(await _elsewhere(tx, change, by))
    await _tasks(tx, [change for change in changes if change.task_id is not None], by, answer)
    return answer


async def _elsewhere(tx: Transaction, change: Change, by: By) -> Result:
    if change.kind in (Kind.PAUSE, Kind.WISH):
        why = await set_back(tx, change, by)
        return Result(refused=[Refused(change.id, why)]) if why else Result([change.id])
    return Result(refused=[Refused(change.id, final(change))])


async def _tasks(tx: Transaction, changes: Sequence[Change], by: By, answer: Result) -> None:
    latest = {change.subject: change for change in reversed(changes)}
    answer.refused += [Refused(change.subject, LATER) for change in changes if latest[change.subject] is not change]
    ends = [change for change in latest.values() if change.kind is Kind.END]
    keys = await lock_keys(tx, sorted(change.subject for change in ends))
    held = await standing(tx, sorted(latest), locked=True)
    children = await consequences(tx, ends)
    able: list[Pair] = []
    for id, change in sorted(latest.items()):
        if why := objection(change, held.get(id), children):
            answer.refused.append(Refused(id, why))
        else:
            able.append((change, held[id]))
    for kind, take_back in TAKES_BACK.items():
        if pairs := [pair for pair in able if pair[0].kind is kind]:
            answer.add(await take_back(tx, pairs, by))
    # Also when there are none: keys that were locked for nothing are to be forgotten again.
    if ends:
        answer.add(await restore(tx, Restored(keys, [pair for pair in able if pair[0].kind is Kind.END]), by))
