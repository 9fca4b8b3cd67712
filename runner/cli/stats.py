"""`runner stats` and `runner failures`: queue totals, the last hour, tasks without a runner, and failure groups."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, read_filter, warn_of_names
from runner.cli.output import TableColumn, numbers, plain, print_block, print_json, print_line, print_table, print_title
from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.policy.limits import LIMITS, LimitUsage
from runner.queries.counting import lane_heads
from runner.queries.failures import Failures
from runner.queries.failures import failures as read_failures
from runner.queries.queues import MOST_QUEUES, QueueCounts, counts
from runner.queries.registries import Pause, limit_usages, pauses
from runner.queries.runners import HandlerWithoutRunner, unknown_handlers
from runner.queries.summary import Total, totals
from runner.text import formatting
from runner.text.operator import local_zone
from runner.text.redact import mask
from runner.text.sanitize import count_noun
from runner.text.times import format_moment

HOUR = timedelta(hours=1)

MOST_TOTALS = 1_000
"""Maximum number of handlers and their queues, those with the most ended tasks."""

LISTED = "those with pauses, limits, lost tasks and failures, and those that wait longest"

QUEUES = (
    TableColumn("QUEUE"),
    *numbers("READY", "SCHED", "RETRY", "RUN", "LOST", "DEAD", "OLDEST", "IN/m", "OUT/m", "FAIL/m"),
)
HANDLERS = (
    TableColumn("HANDLER"),
    TableColumn("QUEUE"),
    *numbers("DONE", "1ST ATT", "RETRY", "DEAD", "P50", "P95"),
)


class Stats(NamedTuple):
    """The figures of `runner stats`, read in one transaction."""

    at: datetime
    queues: list[QueueCounts]
    paused_handlers: Mapping[str, Pause]
    limits: list[LimitUsage]
    last_hour: list[Total]
    unknown_handlers: list[HandlerWithoutRunner]


async def stats(*, json: bool = False, connection: Connection = DEFAULT_CONNECTION) -> int:
    """Summarize the queues: states, ages, rates, and tasks that no live runner takes.

    Counts stop at 10,000 (shown as 10,000+). IN/m, OUT/m and FAIL/m cover the last
    full minute: tasks submitted, tasks finished, attempts failed.

    Args:
        json: Print one JSON document.
        connection: The database.
    """
    async with open_database(connection.settings()) as database:
        report = await database.read(read_stats)
    print_json(_document(report)) if json else _print(report)
    return Exit.OK


async def read_stats(tx: Transaction) -> Stats:
    """Read the figures of `runner stats`."""
    at = await clock(tx)
    hour = await totals(tx, at - HOUR, at + timedelta(minutes=1), most=MOST_TOTALS)
    heads = await lane_heads(tx)
    paused, limits = (await pauses(tx)).handlers, await limit_usages(tx)
    return Stats(at, await counts(tx, heads=heads), paused, limits, hour, await unknown_handlers(tx, heads))


def paused_line(subject: str, pause: Pause, at: datetime) -> str:
    """A sentence about a pause: since when, by whom, why and until when."""
    end = f"it resumes {formatting.distance(pause.until, at)}" if pause.until else "it has no end time"
    since, why = formatting.since(pause.since, at), formatting.text(pause.why)
    return f"{subject} has been paused for {since} by {formatting.text(pause.by)} ({why}); {end}."


def limit_line(usage: LimitUsage) -> str:
    """A sentence about limits: how far they are used, since when, by whom and why."""
    author = f" Set {usage.since} ago by {usage.by}{f': {usage.why}' if usage.why else ''}." if usage.since else ""
    full = [limit.name for limit in LIMITS if limit.full(usage, None)]
    use = f"{usage.total:,} running{f', no room ({full[0]})' if full else ''}"
    return f"{usage.words.capitalize()} is limited: {usage.limits}; {use}.{author}"


def unknown_line(unknown: HandlerWithoutRunner) -> str:
    """A sentence about tasks that no live runner takes."""
    hosts = f" on host {' or '.join(unknown.hosts).replace(',', ' or ')}" if unknown.hosts else ""
    queues = ", ".join(unknown.queues)
    age = f"due for {formatting.age(unknown.due)}" if unknown.due >= 0 else f"due in {formatting.age(-unknown.due)}"
    last_seen = f"last registered {format_moment(unknown.seen, local_zone())}" if unknown.seen else "never registered"
    return f"No live runner takes handler {unknown.handler}{hosts} (queue {queues}, {age}, {last_seen})."


def _document(report: Stats) -> dict[str, object]:
    return report._asdict()


def _print(report: Stats) -> None:
    if report.queues:
        print_table(QUEUES, [_queue(queue) for queue in report.queues])
    else:
        print_line("There are no tasks.")
    if len(report.queues) == MOST_QUEUES:
        print_line(f"At most {MOST_QUEUES:,} queues are listed: {LISTED}. For another one: runner tasks queue=NAME")
    for queue in report.queues:
        if queue.paused is not None:
            print_line(paused_line(f"Queue {queue.queue}", queue.paused, report.at))
    for usage in report.limits:
        print_line(limit_line(usage))
    for handler, pause in report.paused_handlers.items():
        print_line(paused_line(f"Handler {handler}", pause, report.at))
    if report.last_hour:
        print_title("Last hour")
        print_table(HANDLERS, [_total(total) for total in report.last_hour])
        if len(report.last_hour) == MOST_TOTALS:
            print_line(f"At most {MOST_TOTALS:,} are listed, those with the most tasks that ended.")
    for unknown in report.unknown_handlers:
        print_line(unknown_line(unknown), style="bold")


def _queue(queue: QueueCounts) -> Sequence[str]:
    return [
        queue.queue,
        str(queue.ready),
        str(queue.scheduled),
        str(queue.retrying),
        str(queue.running) if queue.limits.running is None else f"{queue.running}/{queue.limits.running:,}",
        str(queue.lost),
        str(queue.dead),
        formatting.age(queue.oldest),
        str(queue.arrived),
        f"{queue.minute.finished:,}",
        f"{queue.minute.failed:,}",
    ]


def _total(total: Total) -> Sequence[str]:
    flow = total.flow
    return [
        total.handler,
        total.queue,
        f"{flow.succeeded:,}",
        formatting.share(flow.share_of(flow.first_try)),
        f"{flow.retried:,}",
        f"{flow.died:,}",
        formatting.duration(total.p50),
        formatting.duration(total.p95),
    ]


DAY = timedelta(days=1)

MAX_LIMIT = 1_000
"""Groups per call."""

COLUMNS = (
    TableColumn("GROUP", no_wrap=True),
    *numbers("COUNT", "NOW/m", "TASKS", "DEAD", "LAST"),
    TableColumn("HANDLER"),
    TableColumn("ERROR"),
)


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
        print_json({"filter": str(attempts), "failures": [plain(group) for group in groups], "at": at})
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
    print_table(COLUMNS, [_row(group, at) for group in groups])
    print_line(count_noun(len(groups), "failure group"), style="dim")
    for group in groups if traceback else ():
        print_title(f"{group.fingerprint}: last in task {group.task_id}, {_error(group)}")
        print_block(mask(group.traceback or "no traceback"))


def _row(group: Failures, at: datetime) -> list[str]:
    return [
        group.fingerprint,
        str(group.count),
        f"{group.rate:,.3g}",
        f"{group.tasks:,}",
        f"{group.dead:,}",
        formatting.since(group.last, at),
        group.handler,
        _error(group),
    ]


def _error(group: Failures) -> str:
    return formatting.reason(f"{group.error_type}: {group.message}")
