"""`runner prune`: delete finished tasks that are old enough."""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.printing import print_json, print_line
from runner.fields import Operator
from runner.filters import Filter, Term
from runner.store.database import Database
from runner.store.observe import Count, clock, find
from runner.store.prune import prune as prune_some
from runner.store.prune import retention_of
from runner.store.transaction import Transaction
from runner.task import State
from runner.times import format_duration

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
    the same from time to time.

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
        counts = await (database.read(_count, retention) if dry_run else _prune(database, retention))
    if json:
        print_json({"dry_run": dry_run, "retention": retention, "tasks": counts})
        return Exit.OK
    for state, age in retention.items():
        verb = "would be deleted" if dry_run else "deleted"
        print_line(f"{state} tasks older than {format_duration(age)} {verb}: {counts.get(state, Count())}")
    if not retention:
        print_line("All finished tasks are kept for ever.")
    return Exit.OK


async def _prune(database: Database, retention: Mapping[State, timedelta]) -> Mapping[State, Count]:
    counts: Counter[State] = Counter()
    more = True
    while more:
        pruned = await database.write(prune_some, retention)
        counts.update(pruned.tasks)
        more = pruned.more
    return {state: Count(number) for state, number in counts.items()}


async def _count(tx: Transaction, retention: Mapping[State, timedelta]) -> Mapping[State, Count]:
    at = await clock(tx)
    counts = {}
    for state, age in retention.items():
        old = Filter((Term("state", Operator.EQ, state), Term("until", Operator.LT, at - age)))
        found = await find(tx, old, CAP)
        counts[state] = Count(len(found.ids), found.next is not None)
    return counts
