"""`runner reports`: success, attempts, durations and volume over a period."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from runner.cli.connection import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.exit_codes import Exit
from runner.cli.output import TableColumn, print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.filter.fields import FIELDS
from runner.queries.summary import GroupBy, Summary, SummaryLine, as_csv, as_document
from runner.queries.summary import summary as read_summary
from runner.text import formatting
from runner.text.operator import local_zone, now
from runner.text.times import format_moment

COLUMNS = (
    TableColumn("NAME"),
    TableColumn("IN", right=True, no_wrap=True),
    TableColumn("DONE", right=True, no_wrap=True),
    TableColumn("SUCCESS", right=True, no_wrap=True),
    TableColumn("1ST ATT", right=True, no_wrap=True),
    TableColumn("2ND", right=True, no_wrap=True),
    TableColumn("RETRY", right=True, no_wrap=True),
    TableColumn("DEAD", right=True, no_wrap=True),
    TableColumn("P50", right=True, no_wrap=True),
    TableColumn("P95", right=True, no_wrap=True),
    TableColumn("WAIT P95", right=True, no_wrap=True),
)


async def reports(
    *,
    since: str = "1h",
    until: str = "",
    by: Literal["handler", "queue"] = "handler",
    json: bool = False,
    csv: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Report success, attempts, durations and volume over a period.

    IN counts tasks by the time of their submit, DONE and DEAD by the time they
    finished. RETRY counts failed attempts with another attempt after them. SUCCESS
    is the share of succeeded tasks among succeeded and dead ones; 1ST ATT and 2ND are
    the shares that succeeded in the first and the second attempt. P50 and P95 are
    percentiles of the run time, WAIT P95 of the time from the due time to the start,
    with an error below 5 %.

    Args:
        since: Start of the period: 1h, 7d, 9:00, 2026-11-20.
        until: End of the period; now if omitted.
        by: One line per handler, or per queue.
        json: Print one JSON document.
        csv: Print CSV for spreadsheets.
        connection: The database.
    """
    if json and csv:
        raise InvalidInput(why="choose --json or --csv")
    begin, end = _moment("since", since), _moment("until", until) if until else None
    if end is not None and end <= begin:
        raise InvalidInput(why="--until must be later than --since")
    async with open_database(connection.settings()) as database:
        report = await database.read(read_summary, begin, end, GroupBy(by))
    if json:
        print_json(as_document(report))
    elif csv:
        print(as_csv(report), end="")
    else:
        _print(report)
    return Exit.OK


def _moment(option: str, text: str) -> datetime:
    """Parse a time as filters do: durations count back from now."""
    value = FIELDS[option].read(text, now(), local_zone())
    assert isinstance(value, datetime)  # noqa: S101 - the field holds a time
    return value


def _print(report: Summary) -> None:
    zone = local_zone()
    print_line(
        f"{format_moment(report.since, zone)} to {format_moment(report.until, zone)}, by {report.by}", style="dim"
    )
    if not report.lines:
        print_line("No tasks were submitted or finished in this period.")
        return
    more = [report.total] if len(report.lines) > 1 else []
    print_table(COLUMNS, [_row(line) for line in [*report.lines, *more]])


def _row(line: SummaryLine) -> Sequence[str]:
    flow = line.flow
    return [
        line.name,
        str(line.submitted),
        f"{flow.succeeded:,}",
        formatting.share(flow.success_rate),
        formatting.share(line.first_try_rate),
        formatting.share(line.second_try_rate),
        f"{flow.retried:,}",
        f"{flow.died:,}",
        formatting.duration(line.p50),
        formatting.duration(line.p95),
        formatting.duration(line.wait95),
    ]
