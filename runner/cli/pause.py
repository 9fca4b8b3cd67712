"""`runner pause`: stop starting the tasks of a queue or a handler."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Literal, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, SINGLE_CHANGE, Connection, SingleChangeOptions, open_database
from runner.cli.output import print_answer
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.operations.names import pause_note
from runner.operations.pause import Paused, PauseKind, PauseTarget, preview_pause
from runner.operations.pause import pause as apply_pause
from runner.operations.results import local_actor
from runner.operations.sql_export import pause_script
from runner.text import formatting
from runner.text.operator import local_zone
from runner.text.times import parse_moment

Handler = Annotated[str | None, Parameter(name="--handler")]


class PauseChange(NamedTuple):
    """A pause of a queue or a handler.

    Args:
        target: such as "queue mail".
        until: its end; None for none.
        replaced: True if it was paused before.
    """

    verb: Literal["pause"]
    target: str
    until: datetime | None
    why: str | None
    replaced: bool
    dry_run: bool


DOCUMENTS = (PauseChange,)


async def pause(
    queue: str | None = None,
    /,
    until: str | None = None,
    *,
    handler: Handler = None,
    options: SingleChangeOptions = SINGLE_CHANGE,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Stop starting the tasks of a queue or a handler; running tasks continue.

    Args:
        queue: The queue's name.
        handler: A handler's name, instead of a queue.
        until: End of the pause: 30m, 14:30; without it, runner resume ends
            it. A second pause keeps the end and the reason it omits.
        options: How the change is shown and recorded.
        connection: The database.
    """
    target = pause_target(queue, handler)
    async with open_database(connection.settings()) as database:
        at = await database.read(clock)
        end = parse_moment(until, at, local_zone()) if until is not None else None
        by = local_actor(options.reason)
        if options.sql:
            await print_script(database, target, partial(apply_pause, target=target, by=by, until=end))
            return Exit.OK
        warning = await database.read(pause_note, target)
        if options.dry_run:
            pause_row = await database.read(preview_pause, target, by, end)
        else:
            pause_row = await database.write(apply_pause, target, by, end)
    change = PauseChange("pause", str(target), *pause_row, options.dry_run)
    print_answer(change, _sentence(target, pause_row, at, dry_run=options.dry_run), json=options.json)
    if warning:
        print_stderr(f"runner: {warning}")
    return Exit.OK


async def print_script(database: Database, target: PauseTarget, operation: Callable[..., Awaitable[object]]) -> None:
    """Print the SQL of a pause or a resume, and change nothing."""
    print(await database.write(pause_script, target, operation), end="")


def _sentence(target: PauseTarget, pause: Paused, at: datetime, *, dry_run: bool) -> str:
    again = " (already paused)" if pause.again else ""
    why = f": {pause.why}" if pause.why else ""
    manually = f"resume with: runner resume {_arguments(target)}"
    end = f"resumes {formatting.distance(pause.until, at)}" if pause.until else manually
    return f"{target} {'would be paused' if dry_run else 'paused'}{again}{why}; {end}"


def _arguments(target: PauseTarget) -> str:
    return f"--handler {target.name}" if target.kind is PauseKind.HANDLER else target.name


def pause_target(queue: str | None, handler: str | None) -> PauseTarget:
    """The queue or the handler that a command names."""
    if (queue is None) == (handler is None):
        raise InvalidInput(why="name a queue, or a handler with --handler, but not both")
    return PauseTarget(PauseKind.QUEUE, queue) if queue is not None else PauseTarget(PauseKind.HANDLER, handler or "")
