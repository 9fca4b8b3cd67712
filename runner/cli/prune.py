"""`runner prune`: delete finished tasks that are old enough."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit, complain
from runner.cli.printing import print_json, print_line
from runner.errors import DatabaseRefused
from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.people.times import format_duration
from runner.policy.ranges import Range
from runner.store.database import Database
from runner.store.observe import Count, clock, find
from runner.store.partitions import extend, outlook
from runner.store.prune import retention_of
from runner.store.retention import enforce
from runner.store.transaction import Transaction
from runner.task import State

CAP = 10_000
"""A dry run counts no further."""


async def prune(
    *,
    keep_succeeded: str | None = None,
    keep_dead: str | None = None,
    keep_cancelled: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Delete finished tasks that are older than the settings, or the options, keep them.

    Their attempts and the changes made to them go with them, and statistics that
    are older than all of them; unique keys too, but those held forever. Runners do
    the same from time to time. On PostgreSQL whole partitions are dropped where
    that will do, and partitions for the tasks to come are made, if the role owns
    the tables.

    Args:
        keep_succeeded: How long to keep succeeded tasks: 7d, 12h, or never to delete any.
        keep_dead: The same for dead tasks.
        keep_cancelled: The same for cancelled tasks.
        dry_run: Only count what would be deleted.
        json: Print one JSON document.
        connection: Which database.
    """
    settings = connection.settings(keep_succeeded=keep_succeeded, keep_dead=keep_dead, keep_cancelled=keep_cancelled)
    retention = retention_of(settings)
    async with opened(settings) as database:
        done = await (database.read(_foresee, retention) if dry_run else _prune(database, retention))
    if json:
        print_json({"dry_run": dry_run, "retention": retention} | done._asdict())
        return Exit.OK
    verb = "would be deleted" if dry_run else "deleted"
    for state, age in retention.items():
        print_line(f"{state} tasks older than {format_duration(age)} {verb}: {done.tasks.get(state, Count())}")
    for part in done.partitions:
        print_line(f"the partition of the tasks {part.first:,} to {part.end - 1:,} {_FATES[dry_run]}")
    if not retention:
        print_line("All finished tasks are kept for ever.")
    return Exit.OK


_FATES = {
    False: "was dropped; its tasks are counted above, as far as the server had counted them",
    True: "would be dropped",
}


class Done(NamedTuple):
    """What was deleted, or would be.

    Args:
        tasks: how many, by state.
        partitions: of the history, that go as a whole.
    """

    tasks: Mapping[State, Count]
    partitions: Sequence[Range]


async def _prune(database: Database, retention: Mapping[State, timedelta]) -> Done:
    try:
        while await database.write(extend):
            pass
    except DatabaseRefused as error:
        complain(f"runner: the history got no further partition: {error}")
    counts: Counter[State] = Counter()
    partitions: list[Range] = []
    # Whoever asks by hand wants nothing to be kept longer.
    async for pruned in enforce(database, retention, leeway=0):
        counts.update(pruned.tasks)
        partitions += pruned.ranges
    return Done({state: Count(number) for state, number in counts.items()}, partitions)


async def _foresee(tx: Transaction, retention: Mapping[State, timedelta]) -> Done:
    at = await clock(tx)
    counts = {}
    for state, age in retention.items():
        old = Filter((Term("state", Operator.EQ, state), Term("until", Operator.LT, at - age)))
        found = await find(tx, old, CAP)
        counts[state] = Count(len(found.ids), found.next is not None)
    kept = retention.get(State.SUCCEEDED)
    return Done(counts, (await outlook(tx, kept, leeway=0)).drop if kept is not None else ())
