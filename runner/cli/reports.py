"""`runner reports`, `incident`, `capacity` and `simulate`: results of a period, and the capacity of runners."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import TableColumn, numbers, plain, print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.filter.saved import write_new
from runner.operations.pause import PauseKind, PauseTarget, name_warning
from runner.policy.claim_order import parse_order
from runner.policy.simulation import Configuration, QueueResult, Simulation
from runner.queries.capacity import Capacity, capacity_cells, drained_in
from runner.queries.capacity import capacity as read_capacity
from runner.queries.incident import as_markdown
from runner.queries.incident import incident as read_incident
from runner.queries.simulation import Present, changed, present, read_changes
from runner.queries.summary import GroupBy, Summary, SummaryLine, as_csv, as_document
from runner.queries.summary import summary as read_summary
from runner.text import formatting
from runner.text.formatting import age
from runner.text.operator import local_zone, now
from runner.text.sanitize import count_noun
from runner.text.times import format_moment, parse_end, parse_moment

COLUMNS = (
    TableColumn("NAME"),
    *numbers("IN", "DONE", "SUCCESS", "1ST ATT", "2ND", "RETRY", "DEAD", "P50", "P95", "WAIT P95"),
)
CAPACITY_COLUMNS = (
    TableColumn("NAME"),
    *numbers("IN/MIN", "CAN/MIN", "USED", "READY", "OLDEST", "WORK"),
    TableColumn("DRAINED IN", no_wrap=True),
    TableColumn("DECIDED BY"),
)
TENANT_COLUMNS = (TableColumn("TENANT"), *numbers("RUNNING", "READY", "OLDEST", "DRAINED IN"))
SIMULATION_COLUMNS = (
    TableColumn("QUEUE"),
    *numbers("TASKS", "DRAINED", "THEN", "LONGEST", "THEN", "LEFT", "THEN"),
)

MOST_HOURS, MOST_SLOTS = 24, 1_000_000


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
        connection: The database.
    """
    if json and csv:
        raise InvalidInput(why="choose --json or --csv")
    begin, end = _period(since, until)
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
    changes by operators; the failures by cause with one example; and the backlog
    and the latency of each queue beside the period of the same length before.
    Secrets are masked.

    Args:
        begin: Start of the period: 1h, 3:00, 2026-11-20.
        end: End of the period; now if omitted.
        output: A new file; standard output if omitted.
        connection: The database.
    """
    since, until = _period(begin, end)
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


def _period(begin: str, end: str) -> tuple[datetime, datetime | None]:
    """Parse a period as filters do: durations count back from now."""
    at, zone = now(), local_zone()
    since = parse_moment(begin, at, zone, past=True)
    return since, parse_end(end, since, at, zone) if end else None


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
    print_table(COLUMNS, [_row(line) for line in [*report.lines, *others, *more]])


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
    """Report the capacity of the live runners, and when each queue is drained.

    IN/MIN are the submitted tasks, CAN/MIN the attempts that the runners can do:
    their slots, divided by the mean duration, within limits, rates, pauses and
    breakers. USED is the share of it that arrivals need, retries included. WORK is
    the time for the due tasks alone, DRAINED IN the time while tasks arrive as
    they do now, and DECIDED BY the bound.

    Args:
        by: One line per queue, or per handler.
        since: Period of the rates: 10m, 1h. Durations are those of an hour at least.
        json: Print one JSON document.
        connection: The database.
    """
    period = now() - parse_moment(since, now(), local_zone(), past=True)
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
            "can_at_least": row.bound.at_least,
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
    tenants = [
        {**plain(row), "limit": limit.words, "drained_in_minutes": row.drained_in}
        for limit in result.tenants
        for row in limit.rows
    ]
    return {"at": result.at, "period_minutes": result.minutes, "by": result.by, "rows": finite, "tenants": tenants}


def _print_capacity(result: Capacity) -> None:
    print_line(f"rates of the last {age(60 * int(result.minutes))}, by {result.by}", style="dim")
    if not result.rows:
        print_line("No tasks are due, and none ended in the last hour.")
        return
    print_table(CAPACITY_COLUMNS, [capacity_cells(row) for row in result.rows])
    for row in result.rows:
        if row.drained_in == inf:
            print_line(f"{row.name}: {drained_in(row)}", style="bold")
    for limit in result.tenants:
        print_line("")
        print_line(str(limit), style="dim")
        print_table(TENANT_COLUMNS, [row.cells for row in limit.rows])


async def simulate(  # noqa: PLR0913 - the options of the command
    *,
    claim_order: str = "",
    concurrency: int | None = None,
    runners: int | None = None,
    limit: list[str] | None = None,
    rate: list[str] | None = None,
    per_tenant: list[str] | None = None,
    hours: float = 2.0,
    seed: int = 1,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Replay the last hours with another configuration, beside the present one.

    Simulates the tasks that are due now, and arrivals as in the last hours, with
    their durations and failures. Failed attempts come back by the retry plan of
    their handler. The claim orders, limits and rates are those of the runners;
    nothing is written. The first column of each pair is the present configuration.

      runner simulate --concurrency 200 --claim-order aged
      runner simulate --limit queue:mail=5 --rate handler:sms.send=100/min

    Args:
        claim_order: The claim order: strict, aged, aged:10s, weighted:mail=3,sms=1.
        concurrency: The slots of all runners together.
        runners: The number of runners, each like the present ones.
        limit: Maximum number of running tasks: queue:mail=5, handler:sms.send=none.
        rate: Maximum rate of starts: queue:mail=100/min.
        per_tenant: Maximum number of running tasks per tenant, who then take turns.
        hours: The hours to replay, up to 24.
        seed: Of the random durations, failures and priorities.
        json: Print one JSON document.
        connection: The database.
    """
    order = parse_order(claim_order) if claim_order else None
    changes = [*read_changes("limit", limit), *read_changes("rate", rate), *read_changes("per-tenant", per_tenant)]
    if not 0 < hours <= MOST_HOURS:
        raise InvalidInput(why=f"--hours must be between 0 and {MOST_HOURS}, not {hours:g}")
    if concurrency is not None and runners is not None:
        raise InvalidInput(why="choose --concurrency or --runners")
    for name, number in (("concurrency", concurrency), ("runners", runners)):
        if number is not None and not 1 <= number <= MOST_SLOTS:
            raise InvalidInput(why=f"--{name} must be between 1 and {MOST_SLOTS:,}, not {number}")
    settings = connection.settings()
    async with open_database(settings) as database:
        today = await database.read(present, hours, settings.retry, settings.max_attempts)
        for target in dict.fromkeys(PauseTarget(PauseKind(kind), name) for (kind, name), _ in changes):
            if warning := await database.read(name_warning, target):
                print_stderr(f"runner: {warning}; its limit changes nothing")
    other = changed(today, order, concurrency, runners, changes)
    before = Simulation(today.workload, today.configuration, seed)
    after = Simulation(today.workload, other, seed)
    results = before.run(), after.run()
    if json:
        print_json(_simulation_document(today, other, after.batch, results))
    else:
        _print_simulation(today, other, after.batch, results)
    return Exit.OK


Results: TypeAlias = tuple[Mapping[str, QueueResult], Mapping[str, QueueResult]]
"""The results by queue today, and with the other configuration."""


def _simulation_document(today: Present, other: Configuration, batch: int, results: Results) -> dict[str, object]:
    queues = [{"queue": queue, "today": results[0][queue], "then": results[1][queue]} for queue in sorted(results[1])]
    minutes = today.workload.minutes
    return {"at": today.at, "minutes": minutes, "claim_order": str(other.order), "batch": batch, "queues": queues}


def _print_simulation(today: Present, other: Configuration, batch: int, results: Results) -> None:
    work, now_setup = today.workload, today.configuration
    print_line(f"today: {_setup(now_setup)}; then: {_setup(other)}", style="dim")
    if batch > 1:
        print_line(f"{work.tasks:,} tasks, in batches of {batch} that run one after the other", style="dim")
    retries = [sum(result.retries for result in each.values()) for each in results]
    if any(retries):
        number, then = retries
        print_line(f"attempts fail as often as in these hours: {number:,} retries, then {then:,}", style="dim")
    if not work.tasks:
        print_line("No tasks are due, and none arrived in these hours.")
        return
    rows = []
    for queue in sorted(results[1], key=lambda name: (-results[1][name].longest, name)):
        before, after = results[0][queue], results[1][queue]
        pairs = [(_drained(each), age(each.longest), f"{each.remaining:,}") for each in (before, after)]
        rows.append([queue, f"{after.tasks:,}", *(text for pair in zip(*pairs, strict=True) for text in pair)])
    print_table(SIMULATION_COLUMNS, rows)


def _setup(configuration: Configuration) -> str:
    slots = sum(pool.size for pool in configuration.pools)
    return f"{count_noun(slots, 'slot')}, {configuration.order}"


def _drained(result: QueueResult) -> str:
    return "never" if result.drained is None else age(result.drained)
