"""`runner resume`: end the pause of a queue or a handler."""

from functools import partial
from typing import Literal, NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, SINGLE_CHANGE, Connection, SingleChangeOptions, open_database
from runner.cli.output import print_answer
from runner.cli.pause import Handler, pause_target, print_script
from runner.operations.names import name_warning
from runner.operations.pause import pause_of
from runner.operations.results import local_actor
from runner.operations.resume import resume as apply_resume


class ResumeChange(NamedTuple):
    """The end of the pause of a queue or a handler.

    Args:
        target: such as "queue mail".
        changed: False if it was not paused.
    """

    verb: Literal["resume"]
    target: str
    changed: bool
    dry_run: bool


DOCUMENTS = (ResumeChange,)


async def resume(
    queue: str | None = None,
    /,
    *,
    handler: Handler = None,
    options: SingleChangeOptions = SINGLE_CHANGE,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """End a pause.

    Args:
        queue: The queue's name.
        handler: A handler's name, instead of a queue.
        options: How the change is shown and recorded.
        connection: The database.
    """
    target = pause_target(queue, handler)
    async with open_database(connection.settings()) as database:
        if options.sql:
            await print_script(database, target, partial(apply_resume, target=target, by=local_actor(options.reason)))
            return Exit.OK
        if options.dry_run:
            changed = bool(await database.read(pause_of, target, locked=False))
        else:
            changed = await database.write(apply_resume, target, local_actor(options.reason))
        warning = "" if changed else await database.read(name_warning, target)
    done, unchanged = ("would resume", "is not paused") if options.dry_run else ("resumed", "was not paused")
    change = ResumeChange("resume", str(target), changed, options.dry_run)
    print_answer(change, f"{target} {done if changed else unchanged}", json=options.json)
    if warning:
        print_stderr(f"runner: {warning}")
    return Exit.OK if changed else Exit.CONFLICT
