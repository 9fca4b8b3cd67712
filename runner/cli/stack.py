"""`runner show ID --stack`: the place where the handler of a running task is."""

import asyncio
import time
from typing import NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.output import print_json, print_line
from runner.db.database import Database
from runner.operations.results import local_actor
from runner.operations.runner_command import send_command
from runner.policy.runner_command import RunnerCommand
from runner.queries.runners import RunnerRow
from runner.queries.task.attempts import LogRow, log_line, log_of
from runner.queries.task.detail import task_detail
from runner.store.notes import STACK_LEVEL
from runner.text.operator import local_zone

LOOK_EVERY = 0.3
"""Seconds between two looks for the reply."""


LONGEST_WAIT = 12.0
"""Seconds for the reply: a runner receives the request with its next heartbeat, after 3 s by default."""


class StackDocument(NamedTuple):
    """The place where the handler of a task is.

    Args:
        runner: the id of its runner.
        stack: its lines; empty if the runner did not reply in time.
    """

    task: int
    runner: int
    stack: list[LogRow]


async def show_stack(database: Database, id: int, reason: str | None, *, json: bool) -> int:
    """Ask the runner of a task for its stack, and print it. Returns the exit code."""
    runner = (await database.read(task_detail, id)).runner
    if refusal := _refusal(id, runner):
        print_stderr(refusal)
        return Exit.CONFLICT
    assert runner is not None  # noqa: S101 - the refusal covers it
    last = await database.read(log_of, id, limit=1)
    await database.write(send_command, runner.id, str(RunnerCommand(stacks=(id,))), local_actor(reason))
    rows = await _reply(database, id, (last[-1].fence, last[-1].number) if last else (0, 0))
    if json:
        print_json(StackDocument(id, runner.id, rows))
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
