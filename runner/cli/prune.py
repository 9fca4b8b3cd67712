"""`runner prune`: delete finished tasks past their retention."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import print_json, print_line
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import DatabaseRefused, RunnerError
from runner.model.duration import format_duration
from runner.model.shard import CURRENT_SHARD
from runner.model.stuck_row import RowFault
from runner.model.task import State
from runner.policy.partitions import Range
from runner.policy.retention import Retention
from runner.queries.counting import Count, capped
from runner.settings.queue_retention import NEVER
from runner.store.archive.folder import Archive, ArchiveFile
from runner.store.archive.identity import database_id
from runner.store.archive.prune import prune_into
from runner.store.partitions import extend, forecast
from runner.store.retention import count_minutes, enforce, prunable_tasks, retention_of
from runner.text.document import Flat
from runner.text.sanitize import count_noun, one_line

CAP = 10_000
"""A dry run counts up to this many tasks per state."""


class PruneResult(NamedTuple):
    """The deleted tasks, or in a dry run the tasks to delete.

    Args:
        partitions: whole partitions of the history.
        statistics: number of rows of the minute statistics.
        stuck: the reason for each task that was not deleted, because its row is locked or the database refuses it.
        refused: the reason for each partition that was not dropped, by its ids.
        files: the new files of the archive.
    """

    tasks: Mapping[State, Count]
    partitions: Sequence[Range]
    statistics: Count
    stuck: Mapping[int, str] = {}
    refused: Mapping[str, str] = {}
    files: Sequence[ArchiveFile] = ()


class PruneDocument(NamedTuple):
    """The result of `runner prune`.

    Args:
        retention: the time that finished tasks are kept, by state.
        queues: the same for the queues with a retention of their own, by queue and state; null keeps them forever.
    """

    dry_run: bool
    retention: Mapping[State, timedelta]
    queues: Mapping[str, Mapping[State, timedelta | None]]
    result: Annotated[PruneResult, Flat()]


DOCUMENTS = (PruneDocument,)


async def prune(  # noqa: PLR0913 - one argument per option
    *,
    retention_succeeded: str | None = None,
    retention_dead: str | None = None,
    retention_cancelled: str | None = None,
    retention_queues: str | None = None,
    retention_statistics: str | None = None,
    archive: Path | None = None,
    dry_run: bool = False,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Delete finished tasks that are older than their retention.

    Deletes their attempts and audit entries too, old minute statistics, ended
    runners, and unique keys except those held forever. Runners do the same from
    time to time. On PostgreSQL, a role that owns the tables also drops whole
    partitions where possible and creates partitions for future tasks.

    --archive FOLDER writes the tasks with their attempts, audit entries and notes
    to gzipped JSON lines by day, and deletes them when the file is verified.
    Runners do not archive: let them keep tasks longer, as with
    retention_succeeded = "never".

    Args:
        retention_succeeded: How long to keep succeeded tasks: 7d, 12h, or never to delete any.
        retention_dead: The same for dead tasks.
        retention_cancelled: The same for cancelled tasks.
        retention_queues: Queues with their own: audit=365d, chat:succeeded=1h.
        retention_statistics: The same for the minute statistics of reports, and ended runners.
        archive: Write the tasks to this folder before they are deleted; over shards
            to a folder in it for each shard.
        dry_run: Only count the tasks to delete, and check the folder.
        json: Print one JSON document.
        connection: The database.
    """
    settings = connection.settings(
        retention_succeeded=retention_succeeded,
        retention_dead=retention_dead,
        retention_cancelled=retention_cancelled,
        retention_queues=retention_queues,
        retention_statistics=retention_statistics,
    )
    retention, statistics = retention_of(settings), settings.retention_statistics
    if archive is not None and (shard := CURRENT_SHARD.get()) is not None:
        archive /= shard
    async with open_database(settings) as database:
        if dry_run:
            if archive is not None:
                Archive.check(archive, await database.read(database_id))
            result = await database.read(_count, retention, statistics)
        elif archive is not None:
            result = await _archive(database, archive, retention, statistics)
        else:
            result = await _delete(database, retention, statistics)
    if json:
        print_json(PruneDocument(dry_run, retention.states, _by_queue(retention), result))
    else:
        _print(result, retention, statistics, dry_run=dry_run)
    return Exit.PARTIAL if result.stuck or result.refused else Exit.OK


def _print(result: PruneResult, retention: Retention, statistics: timedelta | None, *, dry_run: bool) -> None:
    verb = "would be deleted" if dry_run else "deleted"
    for state, age in retention.states.items():
        print_line(f"{state} tasks older than {format_duration(age)} {verb}: {result.tasks.get(state, Count())}")
    for queue, ages in _by_queue(retention).items():
        texts = [f"{state} {NEVER if age is None else format_duration(age)}" for state, age in ages.items()]
        print_line(f"  queue {one_line(queue)} has its own retention: {', '.join(texts)}")
    if statistics is not None:
        print_line(f"rows of minute statistics older than {format_duration(statistics)} {verb}: {result.statistics}")
    for part in result.partitions:
        print_line(f"the partition with tasks {part.first:,} to {part.end - 1:,} {_PARTITION_RESULTS[dry_run]}")
    for file in result.files:
        print_line(_archived(file))
    if not retention.groups():
        print_line("All finished tasks are kept forever.")


def _archived(file: ArchiveFile) -> str:
    return f"archived {count_noun(file.tasks, 'task')} in {file.name}"


def _by_queue(retention: Retention) -> dict[str, dict[State, timedelta | None]]:
    queues: dict[str, dict[State, timedelta | None]] = {}
    for state, own in retention.queues.items():
        for queue, age in own.items():
            queues.setdefault(queue, {})[state] = age
    return dict(sorted(queues.items()))


_PARTITION_RESULTS = {
    False: "was dropped; the counts above include its tasks, by the server's estimate",
    True: "would be dropped",
}


async def _archive(database: Database, folder: Path, retention: Retention, statistics: timedelta | None) -> PruneResult:
    counts: Counter[State] = Counter()
    with Archive.writing(folder, await database.read(database_id)) as archive:
        known = {file.name for file in archive.manifest.files}
        try:
            async for deleted in prune_into(database, archive, retention):
                counts.update(deleted)
        except RunnerError:  # a full disk, for example
            for file in archive.manifest.files:
                if file.name not in known:
                    print_stderr(f"runner: {_archived(file)}")
            raise
        files = [file for file in archive.manifest.files if file.name not in known]
    rest = await _delete(database, Retention(), statistics)
    return rest._replace(tasks={state: Count(number) for state, number in counts.items()}, files=files)


async def _delete(database: Database, retention: Retention, statistics: timedelta | None) -> PruneResult:
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
        for part, fact in {**pruned.refused, **pruned.in_use}.items():
            refused[f"{part.first}-{part.end - 1}"] = fact
            text = f"the partition with tasks {part.first:,} to {part.end - 1:,} was not dropped: {one_line(fact)}"
            print_stderr(f"runner: {text}")
        minutes += pruned.minutes
    deleted = {state: Count(number) for state, number in counts.items()}
    return PruneResult(deleted, partitions, Count(minutes), faults, refused)


async def _count(tx: Transaction, retention: Retention, statistics: timedelta | None) -> PruneResult:
    counts: dict[State, Count] = {}
    for group in retention.groups():
        before, old = counts.get(group.state, Count()), await prunable_tasks(tx, group, CAP + 1)
        counts[group.state] = capped(before.number + len(old), CAP)
    minutes = Count() if statistics is None else capped(await count_minutes(tx, statistics, CAP + 1), CAP)
    ranges: Sequence[Range] = ()
    if State.SUCCEEDED in retention.states:
        ranges = (await forecast(tx, retention, leeway=0)).drop
    return PruneResult(counts, ranges, minutes)
