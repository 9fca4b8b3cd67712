"""`runner rewind`: let a task continue from an earlier checkpoint."""

from functools import partial
from typing import NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.operation_output import ResultDocument, exit_code, print_result
from runner.cli.options import DEFAULT_CONNECTION, Connection, TaskId, open_database
from runner.cli.output import print_json, print_line
from runner.db.transaction import clock
from runner.operations.results import Result, Target, local_actor
from runner.operations.rewind import rewind as apply_rewind
from runner.operations.sql_export import dry_run as roll_back
from runner.queries.task.attempts import CheckpointRow, checkpoint_lines, checkpoints_of, is_finished


class CheckpointList(NamedTuple):
    """The checkpoints of a task, the oldest one first."""

    task: int
    checkpoints: list[CheckpointRow]


DOCUMENTS = (CheckpointList, ResultDocument)


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
        print_json(CheckpointList(id, rows))
    elif not rows:
        print_line(f"Task {id} has no checkpoints. Handlers store them with ctx.checkpoint.")
    for line in [] if json else checkpoint_lines(rows, at):
        print_line(line)
    return Exit.OK


def _show(result: Result, number: int, *, json: bool) -> int:
    """Print the result of a dry run."""
    if json:
        print_result("rewind", result, json=True)
    elif result.changed:
        print_line(f"would continue from checkpoint {number}")
    for line in result.reasons():
        print_stderr(line)
    return exit_code(result)
