"""prune into an archive: write finished tasks to files before their deletion."""

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from datetime import timedelta

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.model.task import State
from runner.policy.retention import AgeGroup, Retention
from runner.store.archive.folder import Archive, ArchiveFile
from runner.store.retention import prunable_tasks, prune_tasks
from runner.store.task_records import Record, digest_of, line_of, read_records

TASKS_PER_FILE = 5_000
"""Maximum number of tasks of a file."""

MOST_BYTES = 32 * 1024 * 1024
"""Size of the lines in memory from which they are written to a file."""

CHUNK = 500
"""Tasks per transaction."""


async def prune_into(database: Database, archive: Archive, retention: Retention) -> AsyncGenerator[Mapping[State, int]]:
    """Archive and delete finished tasks that are older than their retention.

    A task that changes after it was read stays, and the next call archives it again; its last version counts. The files
    of a call that was killed come first: their tasks are deleted now.

    Yields:
        The number of deleted tasks by state, for each transaction.
    """
    for file in [each for each in archive.manifest.files if not each.pruned]:
        async for deleted in _delete(database, archive, file, archive.read(file)):
            yield deleted
    for group in retention.groups():
        passed = set[int]()
        while batch := await _next_batch(database, group, passed):
            passed.update(record["id"] for record in batch)
            for day, records in _by_day(batch).items():
                async for deleted in _delete(database, archive, archive.add(day, records), records):
                    yield deleted


async def _next_batch(database: Database, group: AgeGroup, passed: Collection[int]) -> list[Record]:
    batch: list[Record] = []
    ids, size = set(passed), 0
    while len(batch) < TASKS_PER_FILE and size < MOST_BYTES:
        chunk = sorted(await database.read(prunable_tasks, group, CHUNK, (), ids))
        if not chunk:
            break
        ids.update(chunk)
        records = await database.read(_of_history, chunk)
        size += sum(len(line_of(record)) for record in records)
        batch += records
    return batch


async def _of_history(tx: Transaction, ids: Sequence[int]) -> list[Record]:
    return await read_records(tx, tx.tables.history, ids)


def _by_day(records: Sequence[Record]) -> dict[str, list[Record]]:
    days: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        days[str(record["finished_at"])[:10]].append(record)
    return dict(sorted(days.items()))


async def _delete(
    database: Database, archive: Archive, file: ArchiveFile, records: Sequence[Record]
) -> AsyncGenerator[Mapping[State, int]]:
    """Delete the tasks of a file that are still as archived."""
    for chunk in _chunks(records):
        yield await database.write(delete_archived, {record["id"]: digest_of(line_of(record)) for record in chunk})
    archive.mark_pruned(file)


def _chunks(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    for first in range(0, len(records), CHUNK):
        yield records[first : first + CHUNK]


async def delete_archived(tx: Transaction, digests: Mapping[int, str]) -> Mapping[State, int]:
    """Delete archived tasks, unless one of their rows has changed since.

    Args:
        digests: the digest of the archived line by task id.

    Returns:
        The number of deleted tasks by state.
    """
    history = tx.tables.history
    locked = sa.select(history.c.id).where(tx.dialect.one_of(history.c.id, list(digests)))
    ids = [row.id for row in await tx.rows(locked.with_for_update(skip_locked=True))]
    by_state: dict[State, list[int]] = defaultdict(list)
    for record in await read_records(tx, history, ids):
        if digest_of(line_of(record)) == digests[record["id"]]:
            by_state[State(record["state"])].append(record["id"])
    deleted = Counter[State]()
    for state, same in by_state.items():
        deleted[state] = await prune_tasks(tx, AgeGroup(state, timedelta()), len(same), only=same)
    return deleted
