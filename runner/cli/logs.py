"""`runner logs`, `runner stack` and `runner rewind`: the log lines, the stack and the checkpoints of a task."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.operation_output import exit_code, print_result
from runner.cli.options import DEFAULT_CONNECTION, Connection, TaskId, open_database
from runner.cli.output import plain, print_json, print_line
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.operations.results import Result, Target, local_actor
from runner.operations.retry import rewind as apply_rewind
from runner.operations.runner_command import send_command
from runner.operations.sql_export import dry_run as roll_back
from runner.policy.runner_command import RunnerCommand
from runner.queries.runners import RunnerRow
from runner.queries.task.attempts import LogRow, checkpoint_lines, checkpoints_of, is_finished, log_line, log_of
from runner.queries.task.detail import task_detail
from runner.store.attempts import STACK_LEVEL
from runner.text.operator import local_zone
from runner.text.redact import decode

FOLLOW_EVERY = 0.5
"""Seconds between two looks for new lines."""

LAST_LINES = 1.5
"""Seconds after the end of a task in which its runner writes the last lines, which it does every second."""

LOOK_EVERY = 0.3
"""Seconds between two looks for the reply."""

LONGEST_WAIT = 12.0
"""Seconds for the reply: a runner receives the request with its next heartbeat, after 3 s by default."""


async def logs(
    id: TaskId,
    /,
    *,
    follow: bool = False,
    attempt: int | None = None,
    limit: int = 1_000,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Print the lines that a handler wrote with ctx.logger.

    A runner writes them every second. An attempt keeps at most 1,000 lines. Likely
    secrets are masked.

    Args:
        id: The id of the task.
        follow: Wait for more lines until the task has finished.
        attempt: Only the lines of this attempt.
        limit: Only the last lines.
        json: Print one JSON object per line.
        connection: The database.
    """
    if limit < 1:
        raise InvalidInput(why=f"--limit is {limit}; it must be at least 1")
    if follow and json:
        raise InvalidInput(why="--follow prints lines; use it without --json")
    async with open_database(connection.settings()) as database:
        finished = await database.read(is_finished, id)
        rows = await database.read(log_of, id, attempt=attempt, limit=limit)
        if json:
            print_json({"task": id, "lines": plain(rows)})
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


async def rewind(
    id: TaskId,
    /,
    *,
    to: int | None = None,
    dry_run: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Make a task continue from an earlier checkpoint.

    Without --to, lists the checkpoints. The copy of the earlier one becomes the
    last one, so that no checkpoint is lost. A running task cannot be changed.

    Args:
        id: The id of the task.
        to: The number of the checkpoint.
        dry_run: Only show whether the task would change.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
        connection: The database.
    """
    async with open_database(connection.settings()) as database:
        if to is not None:
            operation = partial(apply_rewind, targets=[Target(id)], number=to, by=local_actor(reason))
            if dry_run:
                result, _ = await database.write(roll_back, operation)
                return _show(result, to, json=json)
            return print_result("rewind", await database.write(operation), json=json)
        await database.read(is_finished, id)
        rows = await database.read(checkpoints_of, id)
        at = await database.read(clock)
    if json:
        print_json({"task": id, "checkpoints": [plain(row) | {"state": decode(row.state)} for row in rows]})
    elif not rows:
        print_line(f"Task {id} has no checkpoints. Handlers store them with ctx.checkpoint.")
    for line in [] if json else checkpoint_lines(rows, at):
        print_line(line)
    return Exit.OK


def _show(result: Result, number: int, *, json: bool) -> int:
    """Print the result of a dry run."""
    if json:
        print_json({"verb": "rewind", **plain(result), "dry_run": True})
    elif result.changed:
        print_line(f"would continue from checkpoint {number}")
    for line in result.reasons():
        print_stderr(line)
    return exit_code(result)


async def stack(
    id: TaskId, /, *, reason: str | None = None, json: bool = False, connection: Connection = DEFAULT_CONNECTION
) -> int:
    """Show where the handler of a running task is: file, line and function.

    The runner of the task writes the stack into the log of the attempt, so that
    runner logs and the console show it too. It has no values of variables.

    Args:
        id: The id of the task.
        reason: The reason; recorded with the request.
        json: Print one JSON document.
        connection: The database.
    """
    async with open_database(connection.settings()) as database:
        runner = (await database.read(task_detail, id)).runner
        if refusal := _refusal(id, runner):
            print_stderr(refusal)
            return Exit.CONFLICT
        assert runner is not None  # noqa: S101 - the refusal covers it
        last = await database.read(log_of, id, limit=1)
        await database.write(send_command, runner.id, str(RunnerCommand(stacks=(id,))), local_actor(reason))
        rows = await _reply(database, id, (last[-1].fence, last[-1].number) if last else (0, 0))
    if json:
        print_json({"task": id, "runner": runner.id, "stack": plain(rows)})
    for row in [] if json else rows:
        print_line(log_line(row, local_zone()))
    if not rows:
        print_stderr(f"runner {runner.id} did not reply within {LONGEST_WAIT:.0f} s; see runner why {id}")
    return Exit.OK if rows else Exit.UNFINISHED


def _refusal(id: int, runner: RunnerRow | None) -> str:
    """Return the reason why a request is useless."""
    if runner is None:
        return f"task {id} is not running on a registered runner; see runner why {id}"
    if not runner.alive:
        return f"runner {runner.id} of task {id} is lost; see runner why {id}"
    return ""


async def _reply(database: Database, id: int, after: tuple[int, int]) -> list[LogRow]:
    """Wait for the lines of the stack."""
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        await asyncio.sleep(LOOK_EVERY)
        rows = [row for row in await database.read(log_of, id, after) if row.level == STACK_LEVEL]
        if rows:
            return rows
    return []
