"""`runner stats`: the queues at a glance, what was done in the last hour, and what nobody can do."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.printing import Column, print_json, print_line, print_table, print_title
from runner.people import cells
from runner.store.observe.counts import QueueCounts, counts
from runner.store.observe.legible import clock
from runner.store.observe.pauses import Pause, pauses
from runner.store.observe.reports import Total, totals
from runner.store.observe.runners import UnknownHandler, unknown_handlers
from runner.store.transaction import Transaction

HOUR = timedelta(hours=1)

QUEUES = (
    Column("QUEUE"),
    Column("READY", right=True, whole=True),
    Column("LATER", right=True, whole=True),
    Column("RETRY", right=True, whole=True),
    Column("RUN", right=True, whole=True),
    Column("LOST", right=True, whole=True),
    Column("DEAD", right=True, whole=True),
    Column("OLDEST", right=True, whole=True),
    Column("IN/m", right=True, whole=True),
    Column("OUT/m", right=True, whole=True),
    Column("FAIL/m", right=True, whole=True),
)
HANDLERS = (
    Column("HANDLER"),
    Column("QUEUE"),
    Column("DONE", right=True, whole=True),
    Column("1ST TRY", right=True, whole=True),
    Column("RETRIED", right=True, whole=True),
    Column("DIED", right=True, whole=True),
    Column("P50", right=True, whole=True),
    Column("P95", right=True, whole=True),
)


class Stats(NamedTuple):
    """What `runner stats` tells, all of one moment."""

    at: datetime
    queues: list[QueueCounts]
    paused_handlers: Mapping[str, Pause]
    last_hour: list[Total]
    unknown_handlers: list[UnknownHandler]


async def stats(*, json: bool = False, connection: Connection = NOWHERE) -> int:
    """Sum up the queues: states, ages, rates, and tasks that no live runner takes.

    Counts stop at 10,000 (shown as 10,000+). IN/m, OUT/m and FAIL/m are of the
    last full minute: tasks submitted, tasks ended, attempts failed.

    Args:
        json: Print one JSON document.
        connection: Which database.
    """
    async with opened(connection.settings()) as database:
        found = await database.read(read_stats)
    print_json(_document(found)) if json else _print(found)
    return Exit.OK


async def read_stats(tx: Transaction) -> Stats:
    """Read what `runner stats` tells."""
    at = await clock(tx)
    hour = await totals(tx, at - HOUR, at + timedelta(minutes=1))
    return Stats(at, await counts(tx), (await pauses(tx)).handlers, hour, await unknown_handlers(tx))


def paused_line(place: str, pause: Pause, at: datetime) -> str:
    """Tell since when something stands still, who wanted it, why, and when it goes on."""
    until = f" {cells.distance(pause.until, at)}" if pause.until else " when someone says so"
    return (
        f"{place} has been paused for {cells.since(pause.since, at)} by {cells.text(pause.by)}"
        f" ({cells.text(pause.why)}); it resumes{until}."
    )


def unknown_line(found: UnknownHandler) -> str:
    """Tell of tasks that no live runner takes, and since when they are due."""
    where = ", ".join(found.queues)
    wait = f"due for {cells.age(found.due)}" if found.due >= 0 else f"due in {cells.age(-found.due)}"
    seen = f"last known {found.seen:%Y-%m-%d %H:%M} UTC" if found.seen else "never known to any"
    return f"No live runner takes handler {found.handler} (queue {where}, {wait}, {seen})."


def _document(found: Stats) -> dict[str, object]:
    return found._asdict()


def _print(found: Stats) -> None:
    if found.queues:
        print_table(QUEUES, [_queue(queue) for queue in found.queues])
    else:
        print_line("There are no tasks.")
    for queue in found.queues:
        if queue.paused is not None:
            print_line(paused_line(f"Queue {queue.queue}", queue.paused, found.at))
    for handler, pause in found.paused_handlers.items():
        print_line(paused_line(f"Handler {handler}", pause, found.at))
    if found.last_hour:
        print_title("The last hour")
        print_table(HANDLERS, [_total(total) for total in found.last_hour])
    for unknown in found.unknown_handlers:
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
        cells.age(queue.oldest),
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
        cells.share(flow.share_of(flow.first_try)),
        f"{flow.retried:,}",
        f"{flow.died:,}",
        cells.duration(total.p50),
        cells.duration(total.p95),
    ]
