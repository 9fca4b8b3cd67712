"""`runner stats`: queue totals, the last hour, and tasks without a runner."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from runner.cli.connection import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.exit_codes import Exit
from runner.cli.output import TableColumn, print_json, print_line, print_table, print_title
from runner.db.transaction import Transaction, clock
from runner.queries.pauses import Pause, pauses
from runner.queries.queues import QueueCounts, counts
from runner.queries.reports import Total, totals
from runner.queries.runners import HandlerWithoutRunner, unknown_handlers
from runner.text import format

HOUR = timedelta(hours=1)

QUEUES = (
    TableColumn("QUEUE"),
    TableColumn("READY", right=True, whole=True),
    TableColumn("SCHED", right=True, whole=True),
    TableColumn("RETRY", right=True, whole=True),
    TableColumn("RUN", right=True, whole=True),
    TableColumn("LOST", right=True, whole=True),
    TableColumn("DEAD", right=True, whole=True),
    TableColumn("OLDEST", right=True, whole=True),
    TableColumn("IN/m", right=True, whole=True),
    TableColumn("OUT/m", right=True, whole=True),
    TableColumn("FAIL/m", right=True, whole=True),
)
HANDLERS = (
    TableColumn("HANDLER"),
    TableColumn("QUEUE"),
    TableColumn("DONE", right=True, whole=True),
    TableColumn("1ST ATT", right=True, whole=True),
    TableColumn("RETRY", right=True, whole=True),
    TableColumn("DEAD", right=True, whole=True),
    TableColumn("P50", right=True, whole=True),
    TableColumn("P95", right=True, whole=True),
)


class Stats(NamedTuple):
    """The figures of `runner stats`, read in one transaction."""

    at: datetime
    queues: list[QueueCounts]
    paused_handlers: Mapping[str, Pause]
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
    hour = await totals(tx, at - HOUR, at + timedelta(minutes=1))
    return Stats(at, await counts(tx), (await pauses(tx)).handlers, hour, await unknown_handlers(tx))


def paused_line(subject: str, pause: Pause, at: datetime) -> str:
    """A sentence about a pause: since when, by whom, why and until when."""
    end = f"it resumes {format.distance(pause.until, at)}" if pause.until else "it has no end time"
    since, why = format.since(pause.since, at), format.text(pause.why)
    return f"{subject} has been paused for {since} by {format.text(pause.by)} ({why}); {end}."


def unknown_line(unknown: HandlerWithoutRunner) -> str:
    """A sentence about tasks that no live runner takes."""
    queues = ", ".join(unknown.queues)
    age = f"due for {format.age(unknown.due)}" if unknown.due >= 0 else f"due in {format.age(-unknown.due)}"
    last_seen = f"last registered {unknown.seen:%Y-%m-%d %H:%M} UTC" if unknown.seen else "never registered"
    return f"No live runner takes handler {unknown.handler} (queue {queues}, {age}, {last_seen})."


def _document(report: Stats) -> dict[str, object]:
    return report._asdict()


def _print(report: Stats) -> None:
    if report.queues:
        print_table(QUEUES, [_queue(queue) for queue in report.queues])
    else:
        print_line("There are no tasks.")
    for queue in report.queues:
        if queue.paused is not None:
            print_line(paused_line(f"Queue {queue.queue}", queue.paused, report.at))
    for handler, pause in report.paused_handlers.items():
        print_line(paused_line(f"Handler {handler}", pause, report.at))
    if report.last_hour:
        print_title("Last hour")
        print_table(HANDLERS, [_total(total) for total in report.last_hour])
    for unknown in report.unknown_handlers:
        print_line(unknown_line(unknown), style="bold")


def _queue(queue: QueueCounts) -> Sequence[str]:
    limit = f"/{queue.limit}" if queue.limit else ""
    return [
        queue.queue,
        str(queue.ready),
        str(queue.scheduled),
        str(queue.retrying),
        f"{queue.running}{limit}",
        str(queue.lost),
        str(queue.dead),
        format.age(queue.oldest),
        str(queue.arrived),
        f"{queue.minute.ended:,}",
        f"{queue.minute.failed:,}",
    ]


def _total(total: Total) -> Sequence[str]:
    flow = total.flow
    return [
        total.handler,
        total.queue,
        f"{flow.succeeded:,}",
        format.share(flow.share_of(flow.first_try)),
        f"{flow.retried:,}",
        f"{flow.died:,}",
        format.duration(total.p50),
        format.duration(total.p95),
    ]
