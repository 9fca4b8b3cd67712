"""`runner show ID --follow`: the events of a task as they happen."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from datetime import timedelta

from runner.cli.exit_codes import Exit
from runner.cli.output import print_line
from runner.client.event_poller import EventPoller
from runner.client.event_position import EventPosition
from runner.db.database import Database
from runner.model.task_event import (
    EVENT_KINDS,
    AttemptFailed,
    LineLogged,
    ProgressReported,
    StateChanged,
    TaskEvent,
)
from runner.queries.task.attempts import LogRow, log_line
from runner.queries.task.event_facts import EventFacts, EventRequest, read_event_facts
from runner.text.operator import local_zone, now
from runner.text.progress import TaskProgress
from runner.text.redact import mask
from runner.text.sanitize import one_line
from runner.text.times import format_age, format_moment


async def show_events(database: Database, id: int) -> int:
    """Print the current state of a task, and its events until it has finished. Returns the exit code."""
    async for event in follow(database, id, None):
        print_line(event_line(event))
    return Exit.OK


async def follow(
    database: Database, id: int, position: EventPosition | None, kinds: Iterable[str] = EVENT_KINDS
) -> AsyncIterator[TaskEvent]:
    """The events of a task after a position; None for the current state.

    Raises:
        TaskNotFound: no task has this id.
    """

    def look(requests: Sequence[EventRequest]) -> Awaitable[dict[int, EventFacts]]:
        return database.read(read_event_facts, requests)

    poller = EventPoller(look, asyncio.get_running_loop())
    wanted, known_at, ended = frozenset(kinds), 0.0, False
    while not ended:
        page, known_at = await asyncio.wrap_future(poller.wait(id, position, wanted, known_at))
        position, ended = page.position, page.ended
        for event in page.events:
            yield event


def event_line(event: TaskEvent) -> str:
    """An event as a line: time, attempt, and what happened; safe to print, with secrets masked."""
    zone = local_zone()
    at = format_moment(event.time, zone) if event.time else ""
    match event:
        case LineLogged():
            return log_line(LogRow(0, 0, event.attempt, event.time, event.level, event.line), zone)
        case AttemptFailed():
            again = f", next attempt in {format_age(timedelta(seconds=event.delay))}" if event.delay is not None else ""
            text = f"failed: {one_line(mask(f'{event.error_type}: {event.message}'))}{again}"
        case ProgressReported():
            progress = TaskProgress(event.done, event.total, event.unit, event.rate, None)
            text = one_line(progress.describe(event.time or now()))
        case StateChanged():
            text = "retrying" if event.retrying else str(event.state)
            text += f", waits for {one_line(event.waits_for)}" if event.waits_for else ""
            text += ", asked to stop" if event.cancel_requested else ""
        case _:
            text = event.kind
    return f"{at}  attempt {event.attempt}  {text}"
