"""`runner show ID --log`: the log lines of a task."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from runner.cli.exit_codes import Exit
from runner.cli.output import print_json, print_line
from runner.db.database import Database
from runner.errors import InvalidInput
from runner.queries.task.attempts import LogRow, is_finished, log_line, log_of
from runner.text.operator import local_zone

FOLLOW_EVERY = 0.5
"""Seconds between two looks for new lines."""

LAST_LINES = 1.5
"""Seconds after the end of a task in which its runner writes the last lines, which it does every second."""


class LogDocument(NamedTuple):
    """The last log lines of a task."""

    task: int
    lines: Sequence[LogRow]


async def show_log(database: Database, id: int, attempt: int | None, limit: int, *, follow: bool, json: bool) -> int:
    """Print the last lines, and with `follow` further ones until the task has finished. Returns the exit code."""
    if limit < 1:
        raise InvalidInput(why=f"--limit is {limit}; it must be at least 1")
    if follow and json:
        raise InvalidInput(why="--follow prints lines; use it without --json")
    finished = await database.read(is_finished, id)
    rows = await database.read(log_of, id, attempt=attempt, limit=limit)
    if json:
        print_json(LogDocument(id, rows))
        return Exit.OK
    if not rows and not follow:
        print_line(f"Task {id} has no log lines. Handlers write them with ctx.logger.")
    _print(rows)
    if follow and not finished:
        await _follow(database, id, rows, attempt)
    return Exit.OK


async def _follow(database: Database, id: int, rows: Sequence[LogRow], attempt: int | None) -> None:
    """Print further lines until the task has finished."""
    position, finished = _end(rows, (0, 0)), False
    while not finished:
        await asyncio.sleep(FOLLOW_EVERY)
        if finished := await database.read(is_finished, id):
            await asyncio.sleep(LAST_LINES)
        rows = await database.read(log_of, id, position, attempt)
        _print(rows)
        position = _end(rows, position)


def _end(rows: Sequence[LogRow], before: tuple[int, int]) -> tuple[int, int]:
    return (rows[-1].fence, rows[-1].number) if rows else before


def _print(rows: Sequence[LogRow]) -> None:
    zone = local_zone()
    for row in rows:
        print_line(log_line(row, zone))
