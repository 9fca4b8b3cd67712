"""`runner stats`: queue totals, the last hour, tasks without a runner."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from runner.cli.comparison import ComparisonDocument, print_comparison
from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import note_model, print_json, print_line, print_table, print_title
from runner.cli.shard_totals import ShardTotals
from runner.db.transaction import Transaction, clock
from runner.policy.limits import LimitUsage
from runner.queries.counts import MOST_QUEUES, QueueCounts, QueueTotals, counts, queue_totals
from runner.queries.limits import limit_usages
from runner.queries.registries import Pause, pauses
from runner.queries.runners import HandlerWithoutRunner, unknown_handlers
from runner.queries.summary import Total, totals
from runner.text import formatting
from runner.text.columns import Column, figure, thousands
from runner.text.operator import local_zone
from runner.text.times import format_moment

HOUR = timedelta(hours=1)

MOST_TOTALS = 1_000
"""Maximum number of handlers and their queues, those with the most ended tasks."""

LISTED = "those with pauses, limits, lost tasks and failures, and the first by name"

QUEUES: tuple[Column[QueueCounts], ...] = (
    Column("QUEUE", lambda queue: queue.queue),
    figure("READY", lambda queue: queue.ready),
    figure("SCHED", lambda queue: queue.scheduled),
    figure("RETRY", lambda queue: queue.retrying),
    figure("RUN", lambda queue: f"{queue.running}{'' if (most := queue.limits.running) is None else f'/{most:,}'}"),
    figure("LOST", lambda queue: queue.lost),
    figure("DEAD", lambda queue: queue.dead),
    figure("OLDEST", lambda queue: queue.oldest, formatting.age),
    figure("IN/m", lambda queue: queue.arrived),
    figure("OUT/m", lambda queue: queue.minute.finished, thousands),
    figure("FAIL/m", lambda queue: queue.minute.failed, thousands),
)
HANDLERS: tuple[Column[Total], ...] = (
    Column("HANDLER", lambda total: total.handler),
    Column("QUEUE", lambda total: total.queue),
    figure("DONE", lambda total: total.flow.succeeded, thousands),
    figure("1ST ATT", lambda total: total.flow.share_of(total.flow.first_try), formatting.share),
    figure("RETRY", lambda total: total.flow.retried, thousands),
    figure("DEAD", lambda total: total.flow.died, thousands),
    figure("P50", lambda total: total.p50, formatting.duration),
    figure("P95", lambda total: total.p95, formatting.duration),
)


class Stats(NamedTuple):
    """The figures of `runner stats`, read in one transaction."""

    at: datetime
    queues: list[QueueCounts]
    paused_handlers: Mapping[str, Pause]
    limits: list[LimitUsage]
    last_hour: list[Total]
    unknown_handlers: list[HandlerWithoutRunner]


DOCUMENTS = (Stats, ComparisonDocument)


def _total(reports: Sequence[Stats]) -> QueueTotals:
    return queue_totals(report.queues for report in reports)


TOTALS = ShardTotals(
    Stats,
    _total,
    (
        figure("READY", lambda total: total.ready),
        figure("SCHED", lambda total: total.scheduled),
        figure("RETRY", lambda total: total.retrying),
        figure("RUN", lambda total: total.running),
        figure("LOST", lambda total: total.lost),
        figure("DEAD", lambda total: total.dead),
        figure("OLDEST", lambda total: total.oldest, formatting.age),
        figure("IN/m", lambda total: total.arrived),
        figure("OUT/m", lambda total: total.finished, thousands),
        figure("FAIL/m", lambda total: total.failed, thousands),
    ),
)


async def stats(*, beside: str | None = None, json: bool = False, connection: Connection = DEFAULT_CONNECTION) -> int:
    """Summarize the queues: states, ages, rates, and tasks that no live runner takes.

    Counts stop at 10,000 (shown as 10,000+). IN/m, OUT/m and FAIL/m cover the last
    full minute: tasks submitted, tasks finished, attempts failed.

    --beside us compares the queues with those of the profile us, and --beside 03:12
    with the same database at that time. DIFFERS names the figures of which one is
    at least twice the other, and "settings" for other limits or pauses.

    Args:
        beside: A profile, or a past time such as 03:12 or 20m.
        json: Print one JSON document.
        connection: The database.
    """
    settings = connection.settings()
    async with open_database(settings) as database:
        if beside is not None:
            await print_comparison(database, settings.profile or "", beside, connection, json=json)
            return Exit.OK
        report = await database.read(read_stats)
    note_model(report)
    print_json(report) if json else _print(report)
    return Exit.OK


async def read_stats(tx: Transaction) -> Stats:
    """Read the figures of `runner stats`."""
    at = await clock(tx)
    hour, queues, paused, limits, unknown = await tx.gather(
        totals(tx, at - HOUR, at + timedelta(minutes=1), most=MOST_TOTALS),
        counts(tx),
        pauses(tx),
        limit_usages(tx),
        unknown_handlers(tx),
    )
    return Stats(at, queues, paused.handlers, limits, hour, unknown)


def paused_line(subject: str, pause: Pause, at: datetime) -> str:
    """A sentence about a pause: since when, by whom, why and until when."""
    end = f"it resumes {formatting.distance(pause.until, at)}" if pause.until else "it has no end time"
    since, why = formatting.since(pause.since, at), formatting.text(pause.why)
    return f"{subject} has been paused for {since} by {formatting.text(pause.by)} ({why}); {end}."


def limit_line(usage: LimitUsage) -> str:
    """A sentence about limits: how far they are used, since when, by whom and why."""
    author = f" Set {usage.since} ago by {usage.by}{f': {usage.why}' if usage.why else ''}." if usage.since else ""
    use = f"{usage.total:,} running{f', no room ({usage.full[0]})' if usage.full else ''}"
    return f"{usage.words.capitalize()} is limited: {usage.limits}; {use}.{author}"


def unknown_line(unknown: HandlerWithoutRunner) -> str:
    """A sentence about tasks that no live runner takes."""
    hosts = f" on host {' or '.join(unknown.hosts).replace(',', ' or ')}" if unknown.hosts else ""
    queues = ", ".join(unknown.queues)
    age = f"due for {formatting.age(unknown.due)}" if unknown.due >= 0 else f"due in {formatting.age(-unknown.due)}"
    last_seen = f"last registered {format_moment(unknown.seen, local_zone())}" if unknown.seen else "never registered"
    return f"No live runner takes handler {unknown.handler}{hosts} (queue {queues}, {age}, {last_seen})."


def _print(report: Stats) -> None:
    if report.queues:
        print_table(QUEUES, report.queues)
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
        print_table(HANDLERS, report.last_hour)
        if len(report.last_hour) == MOST_TOTALS:
            print_line(f"At most {MOST_TOTALS:,} are listed, those with the most tasks that ended.")
    for unknown in report.unknown_handlers:
        print_line(unknown_line(unknown), style="bold")
