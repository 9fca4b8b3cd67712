"""`runner audit`: the log of changes."""

from datetime import datetime
from typing import NamedTuple

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, EntryId, TaskId, open_database, refuse_empty
from runner.cli.output import print_json, print_line, print_table
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.queries.audit import AuditRecord
from runner.queries.audit import audit as read_audit
from runner.queries.audit_words import change_words
from runner.queries.fate import GroupFate, fate
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.operator import local_zone
from runner.text.sanitize import count_noun
from runner.text.times import format_zone, parse_moment

MAX_LIMIT = 1_000
"""Entries per call; `--after` continues."""


class AuditList(NamedTuple):
    """The changes by operators.

    Args:
        entries: the newest one first.
        next: the value of --after for the next page; None on the last page.
        fate: the fate of the tasks of the change group of --group; None without it.
    """

    entries: list[AuditRecord]
    next: int | None
    at: datetime
    fate: GroupFate | None


DOCUMENTS = (AuditList,)


async def audit(  # noqa: PLR0913 - one for each option
    *,
    task: TaskId | None = None,
    operator: str | None = None,
    of: str | None = None,
    since: str | None = None,
    group: str | None = None,
    limit: int = 50,
    after: EntryId | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List the changes that operators made in the console and on the command line, newest first.

    Args:
        task: Only changes of this task.
        operator: Only changes by this operator.
        of: Only changes of this: 'queue mail', 'handler smtp.send', 'runner 7'.
        since: Only changes since this time: 1h, 9:00, yesterday.
        group: Only this change group, with the fate of its tasks.
        limit: Maximum number of entries.
        after: Continue after this entry; the last line of output names it.
        json: Print one JSON document.
        connection: The database.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(why=f"--limit must be between 1 and {MAX_LIMIT}, not {limit}; page with --after")
    refuse_empty({"operator": operator, "of": of, "since": since, "group": group})
    async with open_database(connection.settings()) as database:
        at = await database.read(clock)
        begin = None if since is None else parse_moment(since, at, local_zone(), past=True)
        entries = await database.read(
            read_audit, task, after, limit, operator=operator, since=begin, change_group=group, target=of
        )
        outcome = await database.read(fate, group) if group is not None else None
    if json:
        print_json(AuditList(entries, _next(entries, limit), at, outcome))
    else:
        _print(entries, at, _next(entries, limit))
        if outcome is not None and outcome.total.number:
            _print_fate(outcome)
    return Exit.OK


def _print_fate(outcome: GroupFate) -> None:
    """Print the fate of the tasks of a change group."""
    print_line(str(outcome), style="bold")
    for cause in outcome.causes:
        how = "as before the change" if cause.repeated else "new"
        print_line(f"  {count_noun(cause.tasks, 'task')} failed, {how}: {cause.error} (runner show {cause.task_id})")


def _next(entries: list[AuditRecord], limit: int) -> int | None:
    return entries[-1].id if len(entries) == limit else None


def _print(entries: list[AuditRecord], at: datetime, next_entry: int | None) -> None:
    if entries:
        columns = _columns(at)
        print_table(columns if any(entry.change_group for entry in entries) else columns[:-1], entries)
    more = f"; continue with --after {next_entry}" if next_entry is not None else ""
    print_line(f"{count_noun(len(entries), 'change')}{more}; times in {format_zone(at, local_zone())}", style="dim")


def _columns(at: datetime) -> tuple[Column[AuditRecord], ...]:
    zone = local_zone()
    return (
        figure("ID", lambda entry: entry.id),
        figure("TIME", lambda entry: formatting.clock(entry.at, at, zone)),
        Column("OPERATOR", who),
        Column("OPERATION", _operation, fixed=True),
        Column("TARGET", target),
        Column("CHANGE", lambda entry: change_words(entry, zone), "; ".join, wraps=True),
        Column("REASON", lambda entry: entry.reason or "", wraps=True),
        Column("GROUP", lambda entry: entry.change_group or "", fixed=True),
    )


def _operation(entry: AuditRecord) -> str:
    return f"undo of {entry.undo_of}" if entry.undo_of else formatting.verb(entry.verb)


def target(entry: AuditRecord) -> str:
    """The changed task, queue, handler, runner or schedule."""
    return f"task {entry.task_id}" if entry.task_id is not None else formatting.text(entry.target)


def who(entry: AuditRecord) -> str:
    """Operator and host, and the database login if it has another name."""
    login = f" (login {entry.login})" if entry.login not in (None, entry.operator) else ""
    return f"{entry.operator}@{entry.host}{login}"
