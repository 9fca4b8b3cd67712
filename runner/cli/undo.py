"""`runner undo`: take back what somebody changed: one change, or all that was changed together."""

import sys
from functools import partial
from typing import Any

from runner.cli.answer import tell
from runner.cli.bar import Bar
from runner.cli.confirm import ask, confirm, demanded, need_reason
from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit, complain
from runner.cli.printing import print_json, print_line
from runner.cli.targets import EntryId
from runner.errors import InvalidInput
from runner.people import cells
from runner.people.person import local_zone, operator
from runner.people.redaction import differences
from runner.people.terminal import counted
from runner.settings import Settings
from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import Course, Result, Undoing, together, who
from runner.store.observe import Audited, audited, clock, undoable
from runner.store.observe import audit as read_audit

LATEST = 1_000
"""Entries among which the last one of this person is looked for."""


async def undo(
    entry: EntryId | None = None,
    /,
    *,
    batch: str | None = None,
    dry_run: bool = False,
    sql: bool = False,
    yes: str | None = None,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Take back a change, or all that was changed together, if nothing that happened since speaks against it.

    Values that were edited, delayed or retried are set back. Tasks that were
    terminated while they waited come back as they were, requests to end running
    ones are withdrawn, tasks that were let go wait again unless they have been
    started; pauses and wishes are as before. What cannot be taken back says why.
    Without a number it is the last change that you made and did not take back; it
    is shown, and taken back when you say so on a terminal.

    Args:
        entry: The number of the change, as runner audit lists it.
        batch: All changes that were made together, by the word that was printed then.
        dry_run: Only show what would be taken back.
        sql: Only print the SQL that takes a change of a task back, for psql or sqlite3.
        yes: Of a batch, the number of changes that would be taken back.
        reason: Why; it is kept with the change.
        json: Print one JSON document.
        connection: Which database.
    """
    if batch is not None and entry is not None:
        raise InvalidInput(why="name a change by its number, or changes that were made together by --batch")
    if yes is not None and batch is None:
        raise InvalidInput(why="--yes confirms the number of changes of a --batch; one change needs none")
    if sql and batch is not None:
        raise InvalidInput(why="--sql is written for one change; name it by its number")
    settings = connection.settings()
    async with opened(settings) as database:
        if batch is not None:
            return await _together(database, settings, batch, yes, reason, dry_run=dry_run, json=json)
        found = await _entry(database, entry)
        if sql:
            print(await database.write(intervene.undo_script, found, who(reason)), end="")
            return Exit.OK
        seen = await database.read(intervene.undoing, [found.id])
        if dry_run or entry is None:
            await _show(database, found, seen, json=json and dry_run)
        if dry_run:
            return Exit.OK
        if entry is None and seen.able:
            _ask(found)
        result = await database.write(intervene.undo, [found.id], who(reason))
    return tell("undo", result, json=json)


async def _entry(database: Database, number: int | None) -> Audited:
    if number is None:
        mine = undoable(await database.read(read_audit, limit=LATEST, operator=operator()))
        if mine is None:
            raise InvalidInput(why=f"{operator()} has changed nothing lately that is not taken back; see runner audit")
        return mine
    found = await database.read(audited, number)
    if found is None:
        raise InvalidInput(why=f"there is no change {number}; see runner audit")
    return found


async def _show(database: Database, found: Audited, seen: Undoing, *, json: bool) -> None:
    if json:
        print_json(_document(seen))
        return
    at = await database.read(clock)
    target = f"task {found.task_id}" if found.task_id is not None else cells.text(found.target)
    print_line(
        f"change {found.id}: {cells.verb(found.verb)} of {target} by {found.operator}, {cells.distance(found.at, at)}"
    )
    for difference in differences(found.after, found.before, zone=local_zone()):
        print_line(f"  back to {difference}")
    for why in seen.skipped:
        print_line(f"  it cannot be taken back: {why}")


def _ask(found: Audited) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(why=f"nothing was done; to do it, say runner undo {found.id}")
    complain("Type y to take it back, anything else to leave all as it is.")
    if sys.stdin.readline().strip().lower() != "y":
        raise InvalidInput(why="nothing was done, as it was not confirmed")


async def _together(
    database: Database,
    settings: Settings,
    batch: str,
    yes: str | None,
    reason: str | None,
    *,
    dry_run: bool,
    json: bool,
) -> int:
    seen = await _undoing(database, batch)
    if dry_run or yes is None:
        _preview(seen, json=json and dry_run)
    if dry_run:
        return Exit.OK
    wanted = demanded(seen.number, settings)
    need_reason(wanted, reason)
    if yes is None:
        yes = ask(seen.number, wanted)
        seen = await _undoing(database, batch)  # a person thinks for longer than a queue stands still
    confirm(seen.number, yes)
    return tell("undo", await _taken_back(database, batch, seen, reason), json=json)


async def _undoing(database: Database, batch: str) -> Undoing:
    seen = await database.read(intervene.undoing, None, batch)
    if not seen.changes:
        raise InvalidInput(why=f"no changes were made together as {batch!r}; see runner audit --json")
    return seen


async def _taken_back(database: Database, batch: str, seen: Undoing, reason: str | None) -> Result:
    operation = partial(intervene.undo, by=together(who(reason)))
    bar = Bar("undo", None if seen.more else len(seen.able))
    try:
        return await intervene.undo_all(database, operation, batch, Course(on_progress=bar.show))
    finally:
        bar.end()


def _preview(seen: Undoing, *, json: bool) -> None:
    if json:
        print_json(_document(seen))
        return
    verbs = ", ".join(sorted({cells.verb(change.verb) for change in seen.changes}))
    more = "+" if seen.more else ""
    print_line(
        f"undo of {verbs}: {counted(len(seen.changes), 'change')}{more}, {seen.number} would be taken back",
        style="bold",
    )
    for why, count in seen.skipped.items():
        print_line(f"{count:,} would be left alone: {why}")


def _document(seen: Undoing) -> dict[str, Any]:
    return {
        "verb": "undo",
        "total": len(seen.changes),
        "more": seen.more,
        "eligible": len(seen.able),
        "skipped": [{"why": why, "changes": count} for why, count in seen.skipped.items()],
        "changes": [{"id": change.id, "verb": change.verb, "task_id": change.task_id} for change in seen.changes[:100]],
    }
