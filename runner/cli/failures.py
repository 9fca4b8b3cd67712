"""`runner failures`: failed attempts by cause."""

from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, read_filter, warn_of_names
from runner.cli.output import print_block, print_json, print_line, print_table, print_title
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.failures import Failures
from runner.queries.failures import failures as read_failures
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.redact import mask
from runner.text.sanitize import count_noun

DAY = timedelta(days=1)


MAX_LIMIT = 1_000
"""Groups per call."""


class FailureList(NamedTuple):
    """The failure groups of the attempts that match a filter.

    Args:
        failures: the groups, the most frequent one first.
    """

    filter: str
    failures: list[Failures]
    at: datetime


DOCUMENTS = (FailureList,)


async def failures(
    *words: Annotated[str, Parameter(name="FILTER")],
    limit: int = 50,
    traceback: bool = False,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Group failed attempts by cause, the most frequent group first.

    Numbers, ids and quoted values in messages are masked. Without since: the
    filter covers the last day, and at most the last 20,000 attempts (shown as 57+).
    NOW/m is the rate per minute over the last two minutes.
    GROUP works in filters: runner tasks failure:GROUP, runner retry failure:GROUP.

    Fields: id queue handler error failure host runner attempts since until.

    Args:
        words: The filter on attempts; none matches all.
        limit: Maximum number of groups.
        traceback: Show the last traceback of each group.
        json: Print one JSON document.
        connection: The database.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(why=f"--limit must be between 1 and {MAX_LIMIT}, not {limit}")
    attempts = read_filter(words)
    async with open_database(connection.settings()) as database:
        at = await database.read(clock)
        attempts = _recent(attempts, at)
        groups = await database.read(read_failures, attempts, limit=limit)
        if not groups:
            await warn_of_names(database, attempts)
    if json:
        print_json(FailureList(str(attempts), groups, at))
    else:
        _print_failures(groups, at, traceback=traceback)
    return Exit.OK


def _recent(attempts: Filter, at: datetime) -> Filter:
    """Limit a filter without a time to the last day."""
    if any(term.field in ("since", "until") for term in attempts.terms):
        return attempts
    return Filter((*attempts.terms, Term("since", Operator.GE, at - DAY)))


def _print_failures(groups: list[Failures], at: datetime, *, traceback: bool) -> None:
    if not groups:
        print_line("No failed attempts match.")
        return
    print_table(_columns(at), groups)
    print_line(count_noun(len(groups), "failure group"), style="dim")
    for group in groups if traceback else ():
        print_title(f"{group.fingerprint}: last in task {group.task_id}, {_error(group)}")
        print_block(mask(group.traceback or "no traceback"))


def _columns(at: datetime) -> tuple[Column[Failures], ...]:
    return (
        Column("GROUP", lambda group: group.fingerprint, fixed=True),
        figure("COUNT", lambda group: group.count),
        figure("NOW/m", lambda group: group.rate, "{:,.3g}".format),
        figure("TASKS", lambda group: group.counted(group.tasks)),
        figure("DEAD", lambda group: group.counted(group.dead)),
        figure("LAST", lambda group: formatting.since(group.last, at)),
        Column("HANDLER", lambda group: group.handler),
        Column("ERROR", _error),
    )


def _error(group: Failures) -> str:
    return formatting.reason(f"{group.error_type}: {group.message}")
