"""`runner erase`: remove the contents of finished tasks."""

from pathlib import Path

from runner.cli.exit_codes import Exit
from runner.cli.operate import Change, Targets, change_named
from runner.cli.operation_output import CHANGE_DOCUMENTS, ask, check_count, demand_for, print_result, require_reason
from runner.cli.options import DEFAULT_CONNECTION, NO_OPTIONS, ChangeOptions, Connection, open_database, read_targets
from runner.cli.output import NO_MATCH, print_line
from runner.db.transaction import Transaction
from runner.errors import InvalidInput
from runner.filter.parse import Filter
from runner.operations.audit_log import AuditEntry, record
from runner.operations.erase import CONTENTS, erased_record
from runner.operations.erase import erase as apply_erase
from runner.operations.results import Actor, Result, local_actor
from runner.settings import Settings
from runner.store.archive.folder import Archive, ArchiveFile
from runner.store.archive.identity import database_id
from runner.text.sanitize import count_noun

DOCUMENTS = CHANGE_DOCUMENTS


async def erase(
    *targets: Targets,
    archive: Path | None = None,
    options: ChangeOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Remove payload, result, headers and errors of finished tasks for good.

    Log lines and checkpoints go too. The tasks stay with their states, times,
    attempts and failure groups, so that no count changes. Keys, tenants and tags
    stay. There is no undo. On PostgreSQL, run it as the owner of the tables.

    With --archive it erases the tasks of an archive in place of those of the
    database: files with one of them are written anew, and the old ones removed.

    Args:
        targets: Task ids, or a filter.
        archive: The folder that runner prune --archive has filled.
        options: Confirmation.
        connection: The database.
    """
    if archive is None:
        return await change_named(Change("erase", apply_erase, final=True), targets, options, connection)
    if options.sql or options.limit is not None:
        raise InvalidInput(why="--sql and --limit apply to the database; omit them with --archive")
    return await _erase_archived(archive, read_targets(targets), options, connection.settings())


async def _erase_archived(folder: Path, targets: list[int] | Filter, options: ChangeOptions, settings: Settings) -> int:
    from runner.cli.archive import selected_ids  # loads Alembic

    by = local_actor(options.reason)
    async with open_database(settings) as database:
        Archive(folder)  # otherwise a wrong name would make an archive without tasks
        with Archive.writing(folder, await database.read(database_id)) as archive:
            matches: dict[ArchiveFile, set[int]] = {}
            for file in archive.manifest.files:
                if ids := await selected_ids(archive.read(file), targets):
                    matches[file] = ids
            tasks = sorted(set().union(*matches.values()))
            if not tasks or options.dry_run:
                print_line(f"{count_noun(len(tasks), 'archived task')} would be erased" if tasks else NO_MATCH)
                return Exit.OK
            _confirm(str(len(tasks)), options, settings)
            # A process that is killed during the next lines leaves this entry alone.
            await database.write(_record, folder, len(tasks), "erasing", by)
            for file, ids in matches.items():
                records = archive.read(file)
                archive.rewrite(file, [erased_record(each) if each["id"] in ids else each for each in records])
            await database.write(_record, folder, len(tasks), "erased", by)
    return print_result("erase", Result(tasks), json=options.json)


def _confirm(count: str, options: ChangeOptions, settings: Settings) -> None:
    require_reason(demand_for(count, settings), options.reason)
    if options.yes is None:
        print_line(f"{count_noun(int(count), 'archived task')} would be erased")
    check_count(count, options.yes or ask(count, demand_for(count, settings)))


async def _record(tx: Transaction, folder: Path, tasks: int, progress: str, by: Actor) -> None:
    after = {"tasks": tasks, progress: ", ".join(CONTENTS)}
    await record(tx, by, [AuditEntry("erase", {}, after, target=f"archive {folder}")])
