"""`runner undo`: undo a change or a whole change group."""

import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple

from runner.cli.audit import target
from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.operation_output import (
    ProgressLine,
    ResultDocument,
    SkippedGroup,
    ask,
    check_count,
    demand_for,
    print_result,
    require_reason,
    skipped_groups,
)
from runner.cli.options import DEFAULT_CONNECTION, ChangeOptions, Connection, EntryId, open_database
from runner.cli.output import print_json, print_line
from runner.cli.shard_changes import ShardChange, ShardOutcome, change_in_shards
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput, NotConfirmed
from runner.operations.bulk import BulkOptions
from runner.operations.results import Actor, Result, local_actor, with_change_group
from runner.operations.sql_export import undo_script
from runner.operations.undo.undo import UndoPreview, preview_undo, undo_all
from runner.operations.undo.undo import undo as apply_undo
from runner.queries.audit import AuditRecord, audit_record, undoable
from runner.queries.audit import audit as read_audit
from runner.queries.audit_words import restored_values
from runner.queries.counting import Count
from runner.settings import Settings
from runner.text import formatting
from runner.text.operator import local_zone, operator
from runner.text.sanitize import count_noun

MAX_RECENT = 1_000
"""Entries searched for this operator's last change."""


NO_GROUP = "change group {group!r} does not exist; see runner audit --json"

MOST_CHANGES = 100
"""Changes that a preview lists for programs."""


class ChangeDocument(NamedTuple):
    """A change to undo.

    Args:
        id: the id of its audit entry.
        task_id: the changed task; None if the change was not to a task.
    """

    id: int
    verb: str
    task_id: int | None


class UndoDocument(NamedTuple):
    """The preview of an undo.

    Args:
        total: the changes.
        eligible: the changes that would be undone.
        changes: the latest of them.
    """

    verb: Literal["undo"]
    total: Count
    eligible: int
    skipped: list[SkippedGroup]
    changes: list[ChangeDocument]


DOCUMENTS = (UndoDocument, ResultDocument)


async def undo(
    entry: EntryId | None = None,
    /,
    *,
    group: str | None = None,
    dry_run: bool = False,
    sql: bool = False,
    yes: str | None = None,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Undo a change or a whole change group, unless the task has changed since.

    Restores edited, delayed and retried values. Terminated tasks wait again,
    cancel requests of running tasks are withdrawn, unblocked tasks are blocked
    again unless they have started, and pauses and runner commands return to their
    previous state. Changes that cannot be undone are listed with the reason.
    Without an id it shows your last change and asks for confirmation on a terminal.

    Args:
        entry: The id of the change, from runner audit.
        group: The id of the change group, from runner audit or the operation.
        dry_run: Only show the changes to undo.
        sql: Only print SQL that undoes one change of a task, for psql or sqlite3.
        yes: The number of changes to undo in the change group.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
        connection: The database.
    """
    if group is not None and entry is not None:
        raise InvalidInput(why="name a change by its id, or a change group with --group, but not both")
    if yes is not None and group is None:
        raise InvalidInput(why="--yes only works with --group")
    if sql and group is not None:
        raise InvalidInput(why="--sql prints one change; name it by its id")
    settings = connection.settings()
    if group is not None and settings.shards and settings.shard is None:
        return await change_in_shards(
            _of_group(group, reason), settings, ChangeOptions(dry_run=dry_run, yes=yes, reason=reason, json=json)
        )
    async with open_database(settings) as database:
        if group is not None:
            return await _undo_group(database, settings, group, yes, reason, dry_run=dry_run, json=json)
        change = await _entry(database, entry)
        if sql:
            print(await database.write(undo_script, change, local_actor(reason)), end="")
            return Exit.OK
        preview = await database.read(preview_undo, [change.id])
        if dry_run or entry is None:
            await _show(database, change, preview, json=json and dry_run)
        if dry_run:
            return Exit.OK
        if entry is None and preview.able:
            _ask(change)
        result = await database.write(apply_undo, [change.id], local_actor(reason))
    return print_result("undo", result, json=json)


def _of_group(group: str, reason: str | None) -> ShardChange[UndoPreview]:
    """The undo of a change group in each shard; one that has none of its changes has nothing to undo."""
    by = with_change_group(local_actor(reason))

    async def apply(database: Database, preview: UndoPreview, **_limit: None) -> ShardOutcome:
        return ShardOutcome(await _execute(database, group, preview, by)) if preview.changes else ShardOutcome(Result())

    async def refuse(_database: Database) -> None:
        raise InvalidInput(why=NO_GROUP.format(group=group))

    return ShardChange(
        "undo",
        by.change_group or "",
        True,
        lambda database: database.read(preview_undo, None, group),
        matching=lambda preview: Count(len(preview.changes), preview.more),
        eligible=lambda preview: Count(len(preview.able), preview.more),
        show=_print_skipped,
        document=_document,
        apply=apply,
        on_empty=refuse,
    )


def _print_skipped(previews: Mapping[str, UndoPreview]) -> None:
    skipped = Counter[str]()
    for preview in previews.values():
        skipped.update(preview.skipped)
    for why, count in skipped.most_common():
        print_line(f"{count:,} skipped: {why}")


async def _entry(database: Database, entry_id: int | None) -> AuditRecord:
    if entry_id is None:
        last = undoable(await database.read(read_audit, limit=MAX_RECENT, operator=operator()))
        if last is None:
            raise InvalidInput(why=f"{operator()} has no recent change to undo; see runner audit")
        return last
    change = await database.read(audit_record, entry_id)
    if change is None:
        raise InvalidInput(why=f"change {entry_id} does not exist; see runner audit")
    return change


async def _show(database: Database, change: AuditRecord, preview: UndoPreview, *, json: bool) -> None:
    if json:
        print_json(_document(preview))
        return
    at = await database.read(clock)
    age = formatting.distance(change.at, at)
    print_line(f"change {change.id}: {formatting.verb(change.verb)} of {target(change)} by {change.operator}, {age}")
    for name, present, value in restored_values(change, local_zone()):
        print_line(f"  back to {name}: {value} (now {present})")
    for why in preview.skipped:
        print_line(f"  cannot undo: {why}")


def _ask(change: AuditRecord) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(why=f"nothing was changed; confirm with: runner undo {change.id}")
    print_stderr("Type y to undo, anything else to cancel.")
    if sys.stdin.readline().strip().lower() != "y":
        raise NotConfirmed


async def _undo_group(
    database: Database,
    settings: Settings,
    group: str,
    yes: str | None,
    reason: str | None,
    *,
    dry_run: bool,
    json: bool,
) -> int:
    preview = await _read_group(database, group)
    if dry_run or yes is None:
        _print_preview(preview, json=json and dry_run)
    if dry_run:
        return Exit.OK
    demanded = demand_for(preview.number, settings)
    require_reason(demanded, reason)
    if yes is None:
        yes = ask(preview.number, demanded)
        preview = await _read_group(database, group)  # tasks may have changed while the prompt waited
    check_count(preview.number, yes)
    by = with_change_group(local_actor(reason))
    return print_result("undo", await _execute(database, group, preview, by), json=json)


async def _read_group(database: Database, group: str) -> UndoPreview:
    preview = await database.read(preview_undo, None, group)
    if not preview.changes:
        raise InvalidInput(why=NO_GROUP.format(group=group))
    return preview


async def _execute(database: Database, group: str, preview: UndoPreview, by: Actor) -> Result:
    operation = partial(apply_undo, by=by)
    progress = ProgressLine("undo", None if preview.more else len(preview.able))
    try:
        return await undo_all(database, operation, group, BulkOptions(on_progress=progress.show))
    finally:
        progress.end()


def _print_preview(preview: UndoPreview, *, json: bool) -> None:
    if json:
        print_json(_document(preview))
        return
    verbs = ", ".join(sorted({formatting.verb(change.verb) for change in preview.changes}))
    more = "+" if preview.more else ""
    print_line(
        f"undo of {verbs}: {count_noun(len(preview.changes), 'change')}{more}, {preview.number} would be undone",
        style="bold",
    )
    for why, count in preview.skipped.items():
        print_line(f"{count:,} skipped: {why}")


def _document(preview: UndoPreview) -> UndoDocument:
    changes = [ChangeDocument(change.id, change.verb, change.task_id) for change in preview.changes[:MOST_CHANGES]]
    total, eligible = Count(len(preview.changes), preview.more), len(preview.able)
    return UndoDocument("undo", total, eligible, skipped_groups(preview.skipped), changes)
