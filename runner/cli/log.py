"""`runner show ID --log`: the log lines of a task."""

from collections.abc import Sequence
from typing import NamedTuple

from runner.cli.exit_codes import Exit
from runner.cli.follow import event_line
from runner.cli.follow import follow as follow_events
from runner.cli.output import print_json, print_line
from runner.client.event_position import EventPosition
from runner.db.database import Database
from runner.errors import InvalidInput
from runner.model.task_event import LineLogged
from runner.queries.task.attempts import LogRow, is_finished, log_line, log_of
from runner.text.operator import local_zone


class LogDocument(NamedTuple):
    """The last log lines of a task."""

    task: int
    lines: Sequence[LogRow]


async def show_log(database: Database, id: int, attempt: int | None, limit: int, *, follow: bool, json: bool) -> int:
    """Print the last lines, and with `follow` further ones until the task has finished. Returns the exit code."""
    if limit < 1:
        raise InvalidInput(why=f"--limit is {limit}; it must be at least 1")
    await database.read(is_finished, id)
    rows = await database.read(log_of, id, attempt=attempt, limit=limit)
    if json:
        print_json(LogDocument(id, rows))
        return Exit.OK
    if not rows and not follow:
        print_line(f"Task {id} has no log lines. Handlers write them with ctx.logger.")
    _print(rows)
    if follow:
        await _follow(database, id, rows, attempt)
    return Exit.OK


async def _follow(database: Database, id: int, rows: Sequence[LogRow], attempt: int | None) -> None:
    """Print further lines until the task has finished."""
    position = EventPosition(closed=rows[0].fence - 1 if rows else 0)
    for row in rows:
        position = position.with_line(row.fence, row.number)
    async for event in follow_events(database, id, position, [LineLogged.kind]):
        if attempt in (None, event.attempt):
            print_line(event_line(event))


def _print(rows: Sequence[LogRow]) -> None:
    zone = local_zone()
    for row in rows:
        print_line(log_line(row, zone))
