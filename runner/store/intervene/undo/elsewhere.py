"""elsewhere: set back what was changed of a queue, a handler or a runner."""

import sqlalchemy as sa

from runner.store.intervene.answers import By
from runner.store.intervene.pause import PAUSE, pause_of, pause_set
from runner.store.intervene.place import Kind, Place
from runner.store.intervene.record import Entry, record
from runner.store.intervene.undo import changes
from runner.store.observe.legible import clock, moment
from runner.store.transaction import Transaction

OTHER_PAUSE = "it has been paused or resumed again since"
RUN_OUT = "that pause would have ended by now"
UNKNOWN = "it is not known what was changed"
HEARD = "its runner has heard it, or is gone, or was asked for something else since"


async def set_back(tx: Transaction, change: changes.Change, by: By) -> str | None:
    """Set a pause or a wish back.

    Args:
        tx: a writing transaction.
        change: of one of these kinds.
        by: who does it.

    Returns:
        Why it cannot be; None when it was done.
    """
    kind, _, name = (change.target or "").partition(" ")
    if change.kind is changes.Kind.WISH and name.isdecimal():
        return await _wish(tx, change, int(name), by)
    if change.kind is changes.Kind.PAUSE and kind in tuple(Kind):
        return await _pause(tx, change, Place(Kind(kind), name), by)
    return UNKNOWN


async def _pause(tx: Transaction, change: changes.Change, place: Place, by: By) -> str | None:
    present = await pause_of(tx, place)
    if present.get("paused_at") != moment(change.after.get("paused_at")):
        return OTHER_PAUSE
    before = {name: change.before.get(name) for name in PAUSE} if change.before else {}
    before |= {name: moment(before[name]) for name in ("paused_at", "paused_until") if name in before}
    until = before.get("paused_until")
    if until is not None and until <= await clock(tx):
        if change.verb == "resume":
            return RUN_OUT
        before = {}
    await pause_set(tx, place, before)
    verb = "pause" if before else "resume"
    await record(tx, by, [Entry(verb, present, before, target=change.target, undo_of=change.id)])
    return None


async def _wish(tx: Transaction, change: changes.Change, runner_id: int, by: By) -> str | None:
    runner = tx.tables.runner
    mine = runner.c.id == runner_id
    rows = await tx.rows(sa.select(runner.c.wish).where(mine).with_for_update())
    if not rows or rows[0].wish is None or rows[0].wish != change.after.get("wish"):
        return HEARD
    before = change.before.get("wish")
    await tx.execute(sa.update(runner).where(mine).values(wish=before))
    entry = Entry("wish", {"wish": rows[0].wish}, {"wish": before}, target=change.target, undo_of=change.id)
    await record(tx, by, [entry])
    return None
