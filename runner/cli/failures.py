"""`runner failures`: what goes wrong, grouped by what it has in common."""

from datetime import datetime, timedelta
from typing import Annotated

from cyclopts import Parameter

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.printing import Column, plain, print_block, print_json, print_line, print_table, print_title
from runner.cli.targets import read_filter
from runner.errors import InvalidInput
from runner.people import cells
from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.people.redaction import masked
from runner.people.terminal import counted
from runner.store.observe import Failures, clock
from runner.store.observe import failures as read_failures

DAY = timedelta(days=1)

MOST = 1_000
"""Groups that one call lists."""

COLUMNS = (
    Column("KIND", whole=True),
    Column("COUNT", right=True, whole=True),
    Column("NOW/m", right=True, whole=True),
    Column("TASKS", right=True, whole=True),
    Column("BURIED", right=True, whole=True),
    Column("LAST", right=True, whole=True),
    Column("HANDLER"),
    Column("ERROR"),
)


async def failures(
    *words: Annotated[str, Parameter(name="FILTER")],
    limit: int = 50,
    traceback: bool = False,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Group failed attempts by what they have in common, the most frequent first.

    Numbers, ids and quoted values in messages are masked. Without since: in the
    filter the last day counts, and at most the last 20,000 attempts (shown as 57+).
    NOW/m is how many there were a minute in the last ten minutes.
    KIND goes into filters: runner tasks failure:KIND, runner retry failure:KIND.

    Fields: id queue handler error failure host runner attempts since until.

    Args:
        words: The filter on attempts; none looks at all.
        limit: The most groups to list.
        traceback: Show the last traceback of each group.
        json: Print one JSON document.
        connection: Which database.
    """
    if not 1 <= limit <= MOST:
        raise InvalidInput(why=f"--limit goes from 1 to {MOST}, not {limit}")
    wanted = read_filter(words)
    async with opened(connection.settings()) as database:
        at = await database.read(clock)
        wanted = _lately(wanted, at)
        found = await database.read(read_failures, wanted, limit=limit)
    if json:
        print_json({"filter": str(wanted), "failures": [plain(group) for group in found], "at": at})
    else:
        _print(found, at, traceback=traceback)
    return Exit.OK


def _lately(wanted: Filter, at: datetime) -> Filter:
    """The filter, of the last day where it names no time."""
    if any(term.field in ("since", "until") for term in wanted.terms):
        return wanted
    return Filter((*wanted.terms, Term("since", Operator.GE, at - DAY)))


def _print(found: list[Failures], at: datetime, *, traceback: bool) -> None:
    if found:
        print_table(COLUMNS, [_row(group, at) for group in found])
    print_line(f"{counted(len(found), 'kind')} of failures", style="dim")
    for group in found if traceback else ():
        print_title(f"{group.fingerprint}: task {group.task_id} was the last, with {_error(group)}")
        print_block(masked(group.traceback or "there is no traceback"))


def _row(group: Failures, at: datetime) -> list[str]:
    return [
        group.fingerprint,
        str(group.count),
        f"{group.rate:,.3g}",
        f"{group.tasks:,}",
        f"{group.buried:,}",
        cells.since(group.last, at),
        group.handler,
        _error(group),
    ]


def _error(group: Failures) -> str:
    return cells.reason(f"{group.error_type}: {group.message}")
