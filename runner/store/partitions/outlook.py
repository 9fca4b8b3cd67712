"""outlook: what is to become of the ranges of the history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from runner.policy.ranges import Fate, Range, fate
from runner.store.observe.legible import clock
from runner.store.partitions.look import look
from runner.store.partitions.weigh import weigh
from runner.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is to become of the ranges; those that are not named are swept row by row.

    Args:
        before: what finished before then is old.
        drop: ranges to drop now, the lowest ids first.
        spare: ranges to leave alone, because they can be dropped soon.
    """

    before: datetime
    drop: Sequence[Range] = ()
    spare: Sequence[Range] = ()


async def outlook(tx: Transaction, age: timedelta, leeway: float) -> Outlook:
    """Decide what is to become of the ranges of the history; nothing is changed.

    Args:
        tx: an open transaction.
        age: how long succeeded tasks are kept.
        leeway: the share of that for which they may be kept longer.
    """
    now, layout = await clock(tx), await look(tx)
    before = now - age
    if layout is None or not layout.may_change:
        return Outlook(before)
    soon = before + leeway * age
    begun = [part for part in layout.ranges if part.first < layout.next_id]
    fates = {part: fate(await weigh(tx, part, layout.next_id, before, soon)) for part in begun}
    drop, spare = ([part for part in begun if fates[part] is found] for found in (Fate.DROP, Fate.SPARE))
    return Outlook(before, drop, spare)
