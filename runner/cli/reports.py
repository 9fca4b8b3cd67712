"""`runner reports`: the results of a period."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Literal

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, refuse_empty
from runner.cli.output import note_model, print_json, print_line, print_table, print_text
from runner.cli.shard_totals import ShardTotals
from runner.errors import InvalidInput
from runner.queries.past.report import as_page
from runner.queries.past.report import report as read_report
from runner.queries.summary import (
    SUMMARY_COLUMNS,
    GroupBy,
    Summary,
    SummaryDocument,
    as_csv,
    as_document,
    figures_of,
    total_of,
)
from runner.queries.summary import summary as read_summary
from runner.settings import Settings
from runner.text import formatting
from runner.text.new_file import write_new
from runner.text.operator import local_zone, now
from runner.text.times import format_moment, parse_period

DOCUMENTS = (SummaryDocument,)

TOTALS = ShardTotals(Summary, total_of, SUMMARY_COLUMNS[1:], figures_of)


async def reports(
    *,
    since: str = "1h",
    until: str = "",
    by: Literal["handler", "queue"] = "handler",
    json: bool = False,
    csv: bool = False,
    html: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Report success, attempts, durations and volume over a period.

    IN counts tasks by the time of their submit, DONE and DEAD by the time they
    finished. RETRY counts failed attempts with another attempt after them. SUCCESS
    is the share of succeeded tasks among succeeded and dead ones; 1ST ATT and 2ND
    are the shares that succeeded in the first and the second attempt. P50 and P95
    are percentiles of the run time, WAIT P95 of the time from the due time to the
    start, with an error below 5 %.

    Args:
        since: Start of the period: 1h, 7d, 9:00, 2026-11-20.
        until: End of the period; now if omitted.
        by: One line per handler, or per queue.
        json: Print one JSON document.
        csv: Print CSV for spreadsheets.
        html: A new file for one page with charts, failures, schedules and incidents;
            - for standard output.
        connection: The database.
    """
    refuse_empty({"html": html})
    if (json, csv, html is not None).count(True) > 1:
        raise InvalidInput(why="choose --json, --csv or --html")
    begin, last = parse_period(since, until, now(), local_zone())
    end = last if until else None  # the time of the database
    settings = connection.settings()
    note_retention(begin, settings)
    async with open_database(settings) as database:
        if html is not None:
            text = as_page(await database.read(read_report, begin, end), settings.called, local_zone())
            write_report(html, text)
            return Exit.OK
        report = await database.read(read_summary, begin, end, GroupBy(by))
    note_model(report)
    if json:
        print_json(as_document(report))
    elif csv:
        print_text(as_csv(report))
    else:
        _print(report)
    return Exit.OK


def note_retention(since: datetime, settings: Settings) -> None:
    """Note, for a period that begins before the oldest statistics, where its figures begin."""
    kept = settings.retention_statistics
    if kept is not None and since < (first := now() - kept) - timedelta(minutes=1):
        begin = format_moment(first, local_zone())
        print_stderr(f"statistics are kept for {formatting.age(kept)} (retention_statistics): figures begin at {begin}")


def write_report(name: str, text: str) -> None:
    """Write a report to a new file, or to standard output if the name is -."""
    if name == "-":
        print_text(text)
    else:
        print_line(f"Wrote {write_new(name, text)}")


def _print(report: Summary) -> None:
    zone = local_zone()
    print_line(
        f"{format_moment(report.since, zone)} to {format_moment(report.until, zone)}, by {report.by}", style="dim"
    )
    if not report.lines:
        print_line("No tasks were submitted or finished in this period.")
        return
    others = [replace(report.others, name=f"(other {report.by}s)")] if report.others else []
    more = [report.total] if len(report.lines) > 1 else []
    print_table(SUMMARY_COLUMNS, [*report.lines, *others, *more])
