"""`runner restore`: return archived tasks to the database."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from runner.cli.archive import selected_ids
from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, read_targets
from runner.cli.output import print_answer
from runner.db.transaction import Transaction
from runner.filter.parse import Filter
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor, local_actor
from runner.store.archive.folder import Archive
from runner.store.archive.identity import database_id
from runner.store.archive.restore import restore as insert
from runner.store.task_records import Record
from runner.text.sanitize import count_noun

CHUNK = 500
"""Tasks per transaction."""


class RestoreDocument(NamedTuple):
    """The result of `runner restore`.

    Args:
        found: the number of archived tasks that match.
        restored: the ids of the restored tasks; the others exist.
    """

    dry_run: bool
    found: int
    restored: list[int]


DOCUMENTS = (RestoreDocument,)


async def restore(
    *targets: Annotated[str, Parameter(name="TASKS")],
    archive: Path,
    dry_run: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Return archived tasks to the history, with attempts, audit and notes.

    TASKS are ids or a filter, as for runner retry. Tasks that exist are left out.
    The archive keeps its files. Restored tasks are as old as before: runners whose
    retention they exceed prune them again.

    Args:
        targets: Task ids, or a filter.
        archive: The folder that runner prune --archive has filled.
        dry_run: Only count the tasks.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
        connection: The database.
    """
    words = read_targets(targets)
    by = local_actor(reason)
    found, restored = 0, list[int]()
    async with open_database(connection.settings()) as database:
        folder = Archive(archive, await database.read(database_id))
        for records in folder.newest_first():
            ids = await selected_ids(records, words)
            selected = [record for record in records if record["id"] in ids]
            found += len(selected)
            for first in range(0, 0 if dry_run else len(selected), CHUNK):
                restored += await database.write(_restore, selected[first : first + CHUNK], archive, by)
    existing = f"; {found - len(restored):,} exist already" if found > len(restored) else ""
    line = f"restored {count_noun(len(restored), 'task')}{existing}"
    line = f"{count_noun(found, 'task')} would be restored, unless they exist" if dry_run else line
    print_answer(RestoreDocument(dry_run, found, restored), line, json=json)
    return Exit.OK if found or isinstance(words, Filter) else Exit.NOT_FOUND


async def _restore(tx: Transaction, records: Sequence[Record], folder: Path, by: Actor) -> list[int]:
    ids = await insert(tx, records)
    await record(tx, by, [AuditEntry("restore from archive", {}, {"archive": str(folder)}, id) for id in ids])
    return ids
