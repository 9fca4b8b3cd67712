"""retention: delete what has been kept for long enough, one short transaction after another."""

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta

from runner.policy.ranges import LEEWAY, Range
from runner.store.database import Database
from runner.store.expire import FIRST_KEY, forget_gone
from runner.store.partitions import Outlook, drop, outlook, strip
from runner.store.prune import Pruned, prune
from runner.task import State

GOING_ON = Pruned(more=True)


async def enforce(
    database: Database, retention: Mapping[State, timedelta], leeway: float = LEEWAY
) -> AsyncGenerator[Pruned]:
    """Delete finished tasks that are older than their state's retention: whole ranges first, then row by row.

    Args:
        database: where they are.
        retention: how long to keep tasks of a final state; a state that is not named is kept for ever.
        leeway: the share of their retention for which succeeded tasks may be kept longer, so that the range in which
            they stand can be dropped as a whole.

    Yields:
        What each transaction deleted. Whoever asks for no more leaves the rest for the next time.
    """
    spared: list[Range] = []
    if State.SUCCEEDED in retention and database.dialect.partitions:
        found = await database.read(outlook, retention[State.SUCCEEDED], leeway)
        spared = [*found.drop, *found.spare]
        async for pruned in _retire(database, found):
            yield pruned
    pruned = GOING_ON
    while pruned.more:
        pruned = await database.write(prune, retention, spared=spared)
        yield pruned


async def _retire(database: Database, found: Outlook) -> AsyncGenerator[Pruned]:
    """Drop ranges, each after what is kept beside its tasks, and forget the keys that these had."""
    gone = 0
    for part in found.drop:
        left: Range | None = part
        while left:
            left = await database.write(strip, left, found.before)
            yield GOING_ON
        if dropped := await database.write(drop, part, found.before):
            gone += 1
            yield Pruned({State.SUCCEEDED: dropped.tasks}, more=True, ranges=[part])
    last = FIRST_KEY if gone else None
    while last:
        last = await database.write(forget_gone, last)
        yield GOING_ON
