"""`runner prune`: delete finished tasks past their retention."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import print_json, print_line
from runner.db.database import Database
from runner.db.transaction import Transaction, clock
from runner.errors import DatabaseRefused
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.duration import format_duration
from runner.model.stuck_row import RowFault
from runner.model.task import State
from runner.policy.partitions import Range
from runner.queries.counting import Count, capped
from runner.queries.task_list.search import find
from runner.store.partitions import extend, forecast
from runner.store.retention import count_minutes, enforce, retention_of
from runner.text.document import Flat
from runner.text.sanitize import one_line

CAP = 10_000
"""A dry run counts up to this many tasks per state."""


class PruneResult(NamedTuple):
    """The deleted tasks, or in a dry run the tasks to delete.

    Args:
        partitions: whole partitions of the history.
        statistics: number of rows of the minute statistics.
        stuck: the reason for each task that was not deleted, because its row is locked or the database refuses it.
        refused: the reason for each partition that was not dropped, by its ids.
    """

    tasks: Mapping[State, Count]
    partitions: Sequence[Range]
    statistics: Count
    stuck: Mapping[int, str] = {}
    refused: Mapping[str, str] = {}


class PruneDocument(NamedTuple):
    """The result of `runner prune`.

    Args:
        retention: the time that finished tasks are kept, by state.
    """

    dry_run: bool
    retention: Mapping[State, timedelta]
    result: Annotated[PruneResult, Flat()]


DOCUMENTS = (PruneDocument,)


async def prune(
    *,
    retention_succeeded: str | None = None,
    retention_dead: str | None = None,
    retention_cancelled: str | None = None,
    retention_statistics: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Delete finished tasks that are older than their retention.

    Deletes their attempts and audit entries too, old minute statistics, and unique
    keys except those held forever. Runners do the same from time to time. On
    PostgreSQL, a role that owns the tables also drops whole partitions where
    possible and creates partitions for future tasks.

    Args:
        retention_succeeded: How long to keep succeeded tasks: 7d, 12h, or never to delete any.
        retention_dead: The same for dead tasks.
        retention_cancelled: The same for cancelled tasks.
        retention_statistics: The same for the minute statistics of reports.
        dry_run: Only count the tasks to delete.
        json: Print one JSON document.
        connection: The database.
    """
    settings = connection.settings(
        retention_succeeded=retention_succeeded,
        retention_dead=retention_dead,
        retention_cancelled=retention_cancelled,
        retention_statistics=retention_statistics,
    )
    retention, statistics = retention_of(settings), settings.retention_statistics
    async with open_database(settings) as database:
        result = await (
            database.read(_count, retention, statistics) if dry_run else _delete(database, retention, statistics)
        )
    if json:
        print_json(PruneDocument(dry_run, retention, result))
        return Exit.PARTIAL if result.stuck or result.refused else Exit.OK
    verb = "would be deleted" if dry_run else "deleted"
    for state, age in retention.items():
        print_line(f"{state} tasks older than {format_duration(age)} {verb}: {result.tasks.get(state, Count())}")
    if statistics is not None:
        print_line(f"rows of minute statistics older than {format_duration(statistics)} {verb}: {result.statistics}")
    for part in result.partitions:
        print_line(f"the partition with tasks {part.first:,} to {part.end - 1:,} {_PARTITION_RESULTS[dry_run]}")
    if not retention:
        print_line("All finished tasks are kept forever.")
    return Exit.PARTIAL if result.stuck or result.refused else Exit.OK


_PARTITION_RESULTS = {
    False: "was dropped; the counts above include its tasks, by the server's estimate",
    True: "would be dropped",
}


async def _delete(
    database: Database, retention: Mapping[State, timedelta], statistics: timedelta | None
) -> PruneResult:
    try:
        while await database.write(extend):
            pass
    except DatabaseRefused as error:
        print_stderr(f"runner: cannot create the next history partition: {error}")
    counts: Counter[State] = Counter()
    partitions: list[Range] = []
    minutes = 0
    # No leeway: an operator who prunes by hand expects every old task to go.
    faults: dict[int, str] = {}
    refused: dict[str, str] = {}

    def report(id: int, handler: str, fault: RowFault) -> None:
        faults[id] = fault.fact
        print_stderr(f"runner: task {id} ({one_line(handler)}) was not deleted: {one_line(fault.fact)}")

    async for pruned in enforce(
        database, retention, leeway=0, statistics=statistics, on_fault=report, without=faults.keys
    ):
        counts.update(pruned.tasks)
        partitions += pruned.ranges
        for part, fact in pruned.refused.items():
            refused[f"{part.first}-{part.end - 1}"] = fact
            text = f"the partition with tasks {part.first:,} to {part.end - 1:,} was not dropped: {one_line(fact)}"
            print_stderr(f"runner: {text}")
        minutes += pruned.minutes
    deleted = {state: Count(number) for state, number in counts.items()}
    return PruneResult(deleted, partitions, Count(minutes), faults, refused)


async def _count(tx: Transaction, retention: Mapping[State, timedelta], statistics: timedelta | None) -> PruneResult:
    at = await clock(tx)
    counts = {}
    for state, age in retention.items():
        old = Filter((Term("state", Operator.EQ, state), Term("until", Operator.LT, at - age)))
        page = await find(tx, old, CAP)
        counts[state] = Count(len(page.ids), page.next is not None)
    minutes = Count() if statistics is None else capped(await count_minutes(tx, statistics, CAP + 1), CAP)
    ranges: Sequence[Range] = ()
    if State.SUCCEEDED in retention:
        ranges = (await forecast(tx, retention[State.SUCCEEDED], leeway=0)).drop
    return PruneResult(counts, ranges, minutes)
