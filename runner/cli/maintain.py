"""`runner migrate` and `runner prune`: create or upgrade the tables, and delete finished tasks past their retention."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, open_unchecked
from runner.cli.output import print_json, print_line
from runner.db.database import Database
from runner.db.migrations.apply import sql as write_sql
from runner.db.migrations.apply import upgrade
from runner.db.migrations.revisions import check as check_schema
from runner.db.migrations.revisions import require_tables
from runner.db.migrations.roles import roles as write_roles
from runner.db.transaction import Transaction, clock
from runner.errors import DatabaseRefused, InvalidInput
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.duration import format_duration
from runner.model.task import State
from runner.policy.partitions import Range
from runner.queries.counting import Count, capped
from runner.queries.task_list.search import find
from runner.store.partitions import extend, forecast
from runner.store.retention import count_minutes, enforce, retention_of


async def migrate(
    *,
    check: bool = False,
    sql: bool = False,
    roles: bool = False,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Create or upgrade the tables.

    Several programs may do this at the same time. The first command that uses a
    SQLite file migrates it; a PostgreSQL database needs this command.

    Args:
        check: Only check that this release can use the tables.
        sql: Only print the statements that create the tables.
        roles: Only print the statements that create the PostgreSQL roles
            producer, runner, operator and reader with their privileges.
        json: Print one JSON document.
        connection: The database.
    """
    if check + sql + roles > 1:
        raise InvalidInput(why="choose one of --check, --sql and --roles")
    settings = connection.settings()
    if sql or roles:
        render = write_sql if sql else write_roles
        print(render(settings.url, settings.table_prefix, settings.table_schema))
        return Exit.OK
    async with open_unchecked(settings, must_exist=check) as database:
        revisions = [] if check else await upgrade(database)
        number = await check_schema(database)
        await require_tables(database)
    if json:
        print_json({"schema": number, "applied": revisions})
    else:
        summary = f"applied {', '.join(revisions)}" if revisions else "nothing to do"
        print_line(f"{settings.url} is at schema {number}: {summary}.")
    return Exit.OK


CAP = 10_000
"""A dry run counts up to this many tasks per state."""


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
        print_json({"dry_run": dry_run, "retention": retention} | result._asdict())
        return Exit.OK
    verb = "would be deleted" if dry_run else "deleted"
    for state, age in retention.items():
        print_line(f"{state} tasks older than {format_duration(age)} {verb}: {result.tasks.get(state, Count())}")
    if statistics is not None:
        print_line(f"rows of minute statistics older than {format_duration(statistics)} {verb}: {result.statistics}")
    for part in result.partitions:
        print_line(f"the partition with tasks {part.first:,} to {part.end - 1:,} {_PARTITION_RESULTS[dry_run]}")
    if not retention:
        print_line("All finished tasks are kept forever.")
    return Exit.OK


_PARTITION_RESULTS = {
    False: "was dropped; the counts above include its tasks, by the server's estimate",
    True: "would be dropped",
}


class PruneResult(NamedTuple):
    """The deleted tasks, or in a dry run the tasks to delete.

    Args:
        tasks: number of tasks by state.
        partitions: whole partitions of the history.
        statistics: number of rows of the minute statistics.
    """

    tasks: Mapping[State, Count]
    partitions: Sequence[Range]
    statistics: Count


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
    async for pruned in enforce(database, retention, leeway=0, statistics=statistics):
        counts.update(pruned.tasks)
        partitions += pruned.ranges
        minutes += pruned.minutes
    return PruneResult({state: Count(number) for state, number in counts.items()}, partitions, Count(minutes))


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
