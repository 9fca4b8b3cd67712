"""`runner reports`: how well it went over some time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.printing import Column, print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.people import cells
from runner.people.fields import FIELDS
from runner.people.person import local_zone, now
from runner.people.times import format_moment
from runner.store.observe import By, Summary, SummaryLine
from runner.store.observe import summary as read_summary
from runner.store.observe.exports import as_csv, as_document

COLUMNS = (
    Column("NAME"),
    Column("IN", right=True, whole=True),
    Column("DONE", right=True, whole=True),
    Column("SUCCESS", right=True, whole=True),
    Column("1ST", right=True, whole=True),
    Column("2ND", right=True, whole=True),
    Column("RETRY", right=True, whole=True),
    Column("DEAD", right=True, whole=True),
    Column("P50", right=True, whole=True),
    Column("P95", right=True, whole=True),
)


async def reports(
    *,
    since: str = "1h",
    until: str = "",
    by: Literal["handler", "queue"] = "handler",
    json: bool = False,
    csv: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Tell how well it went: success, tries, durations, volume, over some time.

    IN counts tasks by when they were submitted, DONE and DEAD by when they ended,
    RETRY the attempts that failed and were followed by another. SUCCESS is the
    share that succeeded of those that succeeded or died; 1ST and 2ND are the shares
    that did so at the first and at the second attempt. P50 and P95 are estimates
    from sums that runners keep for each minute.

    Args:
        since: From when on: 1h, 7d, 9:00, 2026-11-20.
        until: Until when; until now if it is not given.
        by: A line for each handler, or for each queue.
        json: Print one JSON document.
        csv: Print a table for spreadsheets.
        connection: Which database.
    """
    if json and csv:
        raise InvalidInput(why="say --json or --csv, not both")
    begin, end = _moment("since", since), _moment("until", until) if until else None
    if end is not None and end <= begin:
        raise InvalidInput(why="--until lies before --since")
    async with opened(connection.settings()) as database:
        found = await database.read(read_summary, begin, end, By(by))
    if json:
        print_json(as_document(found))
    elif csv:
        print(as_csv(found), end="")
    else:
        _print(found)
    return Exit.OK


def _moment(option: str, text: str) -> datetime:
    """Read a time as filters do, which count lengths of time back from now."""
    value = FIELDS[option].read(text, now(), local_zone())
    assert isinstance(value, datetime)  # noqa: S101 - the field holds a time
    return value


def _print(found: Summary) -> None:
    zone = local_zone()
    print_line(f"{format_moment(found.since, zone)} to {format_moment(found.until, zone)}, by {found.by}", style="dim")
    if not found.lines:
        print_line("Nothing was submitted, and nothing has ended.")
        return
    more = [found.total] if len(found.lines) > 1 else []
    print_table(COLUMNS, [_row(line) for line in [*found.lines, *more]])


def _row(line: SummaryLine) -> Sequence[str]:
    flow = line.flow
    return [
        line.name,
        str(line.submitted),
        f"{flow.succeeded:,}",
        cells.share(flow.success_rate),
        cells.share(line.first),
        cells.share(line.second),
        f"{flow.retried:,}",
        f"{flow.died:,}",
        cells.duration(line.p50),
        cells.duration(line.p95),
    ]
