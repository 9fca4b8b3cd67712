"""`runner undo`: set a task back to what it was before somebody changed it."""

import sys

from runner.cli.answer import tell
from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit, complain
from runner.cli.printing import print_line
from runner.cli.targets import EntryId
from runner.errors import InvalidInput
from runner.people import cells
from runner.people.person import operator
from runner.people.redaction import differences
from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import who
from runner.store.observe import Audited, audited, clock, undoable
from runner.store.observe import audit as read_audit

LATEST = 1_000
"""Entries among which the last one of this person is looked for."""


async def undo(
    entry: EntryId | None = None,
    /,
    *,
    dry_run: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Take back a change of a waiting or running task, if nothing has changed the same values since.

    Values can be set back: those of edits, delays, and retries of tasks that wait.
    Without a number it is the last change that you made and did not take back; it
    is shown, and taken back when you say so on a terminal.

    Args:
        entry: The number of the change, as runner audit lists it.
        dry_run: Only show what would be set back.
        reason: Why; it is kept with the change.
        json: Print one JSON document.
        connection: Which database.
    """
    async with opened(connection.settings()) as database:
        found = await _entry(database, entry)
        if dry_run or entry is None:
            await _show(database, found)
        if dry_run:
            return Exit.OK
        if entry is None:
            _ask(found)
        result = await database.write(intervene.undo, found.id, who(reason))
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


async def _show(database: Database, found: Audited) -> None:
    at = await database.read(clock)
    target = f"task {found.task_id}" if found.task_id is not None else cells.text(found.target)
    print_line(f"change {found.id}: {found.verb} of {target} by {found.operator}, {cells.distance(found.at, at)}")
    for difference in differences(found.after, found.before):
        print_line(f"  back to {difference}")


def _ask(found: Audited) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(why=f"nothing was done; to do it, say runner undo {found.id}")
    complain("Type y to take it back, anything else to leave all as it is.")
    if sys.stdin.readline().strip().lower() != "y":
        raise InvalidInput(why="nothing was done, as it was not confirmed")
