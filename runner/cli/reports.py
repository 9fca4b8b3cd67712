"""`runner reports`, `incident` and `capacity`: results of a period, its report, and what the runners can do."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Annotated, Literal

from cyclopts import Parameter

from runner.cli.connection import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.exit_codes import Exit
from runner.cli.output import TableColumn, print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.filter.fields import FIELDS
from runner.queries.capacity import Capacity, capacity_cells, drained_in
from runner.queries.capacity import capacity as read_capacity
from runner.queries.incident import as_markdown, write_new
from runner.queries.incident import incident as read_incident
from runner.queries.summary import GroupBy, Summary, SummaryLine, as_csv, as_document
from runner.queries.summary import summary as read_summary
from runner.text import formatting
from runner.text.formatting import age
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


CAPACITY_COLUMNS = (
    TableColumn("NAME"),
    TableColumn("IN/MIN", right=True, no_wrap=True),
    TableColumn("CAN/MIN", right=True, no_wrap=True),
    TableColumn("USED", right=True, no_wrap=True),
    TableColumn("READY", right=True, no_wrap=True),
    TableColumn("OLDEST", right=True, no_wrap=True),
    TableColumn("WORK", right=True, no_wrap=True),
    TableColumn("DRAINED IN", no_wrap=True),
    TableColumn("DECIDED BY"),
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


MINUTE, LONGEST = timedelta(minutes=1), timedelta(days=7)
"""The bounds of the period of a capacity."""


async def incident(
    *,
    begin: Annotated[str, Parameter(name="--from")] = "1h",
    end: Annotated[str, Parameter(name="--to")] = "",
    output: str | None = None,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Report an incident as Markdown, ready to paste.

    The report has a timeline of starts, breakers, lost runners, first failures and
    changes by operators; the failures by cause with one example; and the backlog and
    the latency of each queue beside the period of the same length before. Secrets
    are masked.

    Args:
        begin: Start of the period: 1h, 3:00, 2026-11-20.
        end: End of the period; now if omitted.
        output: A new file; standard output if omitted.
        connection: The database.
    """
    since, until = _moment("since", begin), _moment("until", end) if end else None
    if until is not None and until <= since:
        raise InvalidInput(why="--to must be later than --from")
    settings = connection.settings()
    async with open_database(settings) as database:
        text = as_markdown(await database.read(read_incident, since, until), settings.called, local_zone())
    if output is None:
        print(text, end="")
    else:
        print_line(f"Wrote {write_new(output, text)}")
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


async def capacity(
    *,
    by: Literal["handler", "queue"] = "queue",
    since: str = "10m",
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Report what the live runners can do, and when each queue is drained.

    IN/MIN are the submitted tasks, CAN/MIN the attempts that the runners can do: their
    slots, divided by the mean duration, within limits, rates, pauses and breakers.
    USED is the share of it that arrivals need, retries included. WORK is the time for
    the due tasks alone, DRAINED IN the time while tasks arrive as they do now, and
    DECIDED BY the bound.

    Args:
        by: One line per queue, or per handler.
        since: Period of the rates: 10m, 1h. Durations are those of an hour at least.
        json: Print one JSON document.
        connection: The database.
    """
    period = now() - _moment("since", since)
    if not MINUTE <= period <= LONGEST:
        raise InvalidInput(why=f"--since must be between 1m and 7d, not {since}")
    async with open_database(connection.settings()) as database:
        result = await database.read(read_capacity, by, period)
    print_json(_capacity_document(result)) if json else _print_capacity(result)
    return Exit.OK


def _capacity_document(result: Capacity) -> dict[str, object]:
    rows = [
        {
            "name": row.name,
            "submitted_per_minute": row.demand.arrivals,
            "attempts_per_minute": row.demand.attempts,
            "can_per_minute": row.per_minute,
            "used": row.utilisation,
            "slots": row.slots,
            "mean_duration": row.demand.seconds,
            "ready": row.demand.backlog,
            "ready_capped": row.demand.more,
            "oldest": row.demand.oldest,
            "work_minutes": row.behind,
            "drained_in_minutes": row.drained_in,
            "decided_by": row.deciding.bound.name,
        }
        for row in result.rows
    ]
    # JSON has no number for "never".
    finite = [{name: None if value == inf else value for name, value in row.items()} for row in rows]
    for row, document in zip(result.rows, finite, strict=True):
        document["drains"] = None if row.drained_in is None else row.drained_in < inf
    return {"at": result.at, "period_minutes": result.minutes, "by": result.by, "rows": finite}


def _print_capacity(result: Capacity) -> None:
    print_line(f"rates of the last {age(60 * int(result.minutes))}, by {result.by}", style="dim")
    if not result.rows:
        print_line("No tasks are due, and none ended in the last hour.")
        return
    print_table(CAPACITY_COLUMNS, [capacity_cells(row) for row in result.rows])
    for row in result.rows:
        if row.drained_in == inf:
            print_line(f"{row.name}: {drained_in(row)} ({row.deciding.bound.name})", style="bold")
