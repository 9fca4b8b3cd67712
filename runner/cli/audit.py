"""`runner audit`: who changed what, when, from where and why."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.printing import Column, plain, print_json, print_line, print_table
from runner.cli.targets import EntryId, TaskId
from runner.errors import InvalidInput
from runner.people import cells
from runner.people.person import local_zone
from runner.people.redaction import audited, differences
from runner.people.terminal import counted
from runner.people.times import format_zone, parse_moment
from runner.store.observe import Audited, clock
from runner.store.observe import audit as read_audit

MOST = 1_000
"""Entries that one call lists; the next call goes on behind them."""

COLUMNS = (
    Column("ENTRY", right=True, whole=True),
    Column("AT", right=True, whole=True),
    Column("WHO"),
    Column("WHAT", whole=True),
    Column("OF"),
    Column("CHANGE"),
    Column("WHY"),
    Column("BATCH", whole=True),
)


async def audit(  # noqa: PLR0913 - one for each option
    *,
    task: TaskId | None = None,
    operator: str | None = None,
    of: str | None = None,
    since: str | None = None,
    batch: str | None = None,
    limit: int = 50,
    after: EntryId | None = None,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """List what operators did, the latest first: with the console, with runner, and from where.

    Args:
        task: Only what was done to this task.
        operator: Only what this person did.
        of: Only what was done to this: 'queue mail', 'handler smtp.send', 'runner 7'.
        since: Only what was done from then on: 1h, 9:00, yesterday.
        batch: Only what was done together, by the word that stands in each entry.
        limit: The most entries to list.
        after: Go on behind this entry, as the last line of the call before said.
        json: Print one JSON document.
        connection: Which database.
    """
    if not 1 <= limit <= MOST:
        raise InvalidInput(why=f"--limit goes from 1 to {MOST}, not {limit}; go on with --after")
    async with opened(connection.settings()) as database:
        at = await database.read(clock)
        begin = None if since is None else parse_moment(since, at, local_zone(), past=True)
        found = await database.read(
            read_audit, task, after, limit, operator=operator, since=begin, batch=batch, target=of
        )
    if json:
        print_json({"entries": [document(entry) for entry in found], "next": _next(found, limit), "at": at})
    else:
        _print(found, at, _next(found, limit))
    return Exit.OK


def document(entry: Audited) -> dict[str, Any]:
    """An entry for JSON, its values decoded and its secrets masked."""
    values = {"before": audited(entry.before), "after": audited(entry.after)}
    return {**plain(entry), **values}


def _next(found: list[Audited], limit: int) -> int | None:
    return found[-1].id if len(found) == limit else None


def _print(found: list[Audited], at: datetime, further: int | None) -> None:
    width = len(COLUMNS) if any(entry.batch for entry in found) else -1
    if found:
        print_table(COLUMNS[:width], [list(_row(entry, at))[:width] for entry in found])
    more = f"; go on with --after {further}" if further is not None else ""
    print_line(f"{counted(len(found), 'change')}{more}; times are {format_zone(at, local_zone())}", style="dim")


def _row(entry: Audited, at: datetime) -> Iterator[str]:
    yield str(entry.id)
    yield cells.clock(entry.at, at, local_zone())
    yield who(entry)
    yield f"undo of {entry.undo_of}" if entry.undo_of else cells.verb(entry.verb)
    yield f"task {entry.task_id}" if entry.task_id is not None else cells.text(entry.target)
    yield "; ".join(differences(entry.before, entry.after, zone=local_zone()))
    yield entry.reason or ""
    yield entry.batch or ""


def who(entry: Audited) -> str:
    """Who did it and from where, and as whom the database knew them where that is another name."""
    login = f" (login {entry.login})" if entry.login not in (None, entry.operator) else ""
    return f"{entry.operator}@{entry.host}{login}"
