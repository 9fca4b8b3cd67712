"""`runner rewind`: let a task continue from an earlier checkpoint or step."""

from functools import partial
from typing import NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.operation_output import ResultDocument, exit_code, print_result
from runner.cli.options import DEFAULT_CONNECTION, Connection, TaskId, open_database
from runner.cli.output import print_json, print_line
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.operations.results import Result, Target, local_actor
from runner.operations.rewind import forget_steps
from runner.operations.rewind import rewind as apply_rewind
from runner.operations.sql_export import dry_run as roll_back
from runner.queries.task.attempts import CheckpointRow, checkpoint_lines, checkpoints_of, is_finished
from runner.queries.task.steps import StepRow, step_lines, steps_of
from runner.text.sanitize import one_line


class CheckpointList(NamedTuple):
    """The checkpoints and the steps of a task, the oldest ones first."""

    task: int
    checkpoints: list[CheckpointRow]
    steps: list[StepRow]


DOCUMENTS = (CheckpointList, ResultDocument)


async def rewind(
    id: TaskId,
    /,
    *,
    to: int | None = None,
    step: str | None = None,
    dry_run: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Make a task continue from an earlier checkpoint or step.

    Without --to and --step, lists both. The copy of the earlier checkpoint becomes
    the last one, so that none is lost. A step is forgotten with all that were
    written after it, and they run again. A running task cannot be changed.

    Args:
        id: The id of the task.
        to: The number of the checkpoint.
        step: The name of the first step to forget.
        dry_run: Only show whether the task would change.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
        connection: The database.
    """
    async with open_database(connection.settings()) as database:
        if to is not None and step is not None:
            raise InvalidInput(why="choose --to or --step")
        if to is not None or step is not None:
            operation = (
                partial(apply_rewind, targets=[Target(id)], number=to, by=local_actor(reason))
                if to is not None
                else partial(forget_steps, targets=[Target(id)], name=step or "", by=local_actor(reason))
            )
            if dry_run:
                result, _ = await database.write(roll_back, operation)
                return _show(result, f"checkpoint {to}" if step is None else f"step {one_line(step)}", json=json)
            return print_result("rewind", await database.write(operation), json=json)
        await database.read(is_finished, id)
        rows, steps = await database.read(checkpoints_of, id), await database.read(steps_of, id)
        at = await database.read(clock)
    if json:
        print_json(CheckpointList(id, rows, steps))
        return Exit.OK
    if not rows and not steps:
        print_line(f"Task {id} has no checkpoints and no steps. Handlers store them with ctx.checkpoint and ctx.step.")
    for line in (*checkpoint_lines(rows, at), *step_lines(steps, at)):
        print_line(line)
    return Exit.OK


def _show(result: Result, place: str, *, json: bool) -> int:
    """Print the result of a dry run."""
    if json:
        print_result("rewind", result, json=True)
    elif result.changed:
        print_line(f"would continue from {place}")
    for line in result.reasons():
        print_stderr(line)
    return exit_code(result)
