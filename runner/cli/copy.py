"""`runner copy`: submit a task like another one."""

import sys
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from cyclopts import Group, Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import (
    DEFAULT_CONNECTION,
    Connection,
    TaskId,
    open_database,
    set_options,
    with_task_options,
)
from runner.cli.output import print_answer, print_json
from runner.handlers.keyring import Keyring
from runner.handlers.option_values import Clock
from runner.handlers.options import SETTABLE
from runner.model.task import NewTask
from runner.operations.new_task import COPIED, SubmitOptions, copy_of, copy_task
from runner.operations.results import local_actor
from runner.text.document import Flat, Treatment
from runner.text.operator import local_zone, now

COPY_OPTIONS = ("run_at", "delay", "expires", "expires_at", *COPIED)


@Parameter(name="*", group=Group("Copy", sort_key=50))
@dataclass(frozen=True)
@with_task_options(COPY_OPTIONS)
class CopyOptions:
    """Options of the copy. An omitted option is that of the first task, except for its time and expiry.

    Args:
        unchecked: Do not compare the payload with the signature that runners stored.
        dry_run: Only show the values of the copy.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
    """

    unchecked: bool = False
    dry_run: bool = False
    reason: str | None = None
    json: bool = False


NO_COPY_OPTIONS = CopyOptions()


class CopyPreview(NamedTuple):
    """A copy that a dry run shows.

    Args:
        copy_of: the id of the copied task.
    """

    copy_of: int
    task: Annotated[NewTask, Flat(without=("payload", "headers", "tags", "unique_key", "after", "order_key"))]
    payload: Annotated[str, Treatment.JSON]
    headers: Annotated[str | None, Treatment.JSON]
    tags: Annotated[str | None, Treatment.JSON]


class CopyDocument(NamedTuple):
    """A submitted copy.

    Args:
        id: the id of the new task.
        copy_of: the id of the copied task.
    """

    id: int
    copy_of: int


DOCUMENTS = (CopyPreview, CopyDocument)


async def copy(
    id: TaskId,
    payload: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    options: CopyOptions = NO_COPY_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Submit a copy of a task, with the same or another payload.

    The task may have any state, and does not change. The copy runs now, unless
    --at or --delay is set. It has no unique key, order key or dependencies. The
    audit links both tasks, and runner undo cancels a copy that has not started.

    Args:
        id: The task to copy.
        payload: Other arguments, a JSON object; *** keeps the secret in its place;
            - reads standard input.
        options: Options of the copy.
        connection: The database.
    """
    settings = connection.settings()
    clock = Clock(now(), local_zone())
    values = {name: _parse(name, value, clock) for name, value in set_options(options, COPY_OPTIONS).items()}
    if payload is not None:
        values["payload"] = sys.stdin.read() if payload == "-" else payload
    limits = SubmitOptions(settings.notify, int(settings.payload_limit), not options.unchecked, Keyring(settings))
    async with open_database(settings) as database:
        if options.dry_run:
            task = await database.read(copy_of, id, values, limits)
            print_json(CopyPreview(id, task, task.payload, task.headers, task.tags))
            return Exit.OK
        copied = await database.write(copy_task, id, values, local_actor(options.reason), limits)
    print_answer(CopyDocument(copied, id), f"Submitted task {copied}, a copy of task {id}.", json=options.json)
    return Exit.OK


def _parse(name: str, value: Any, clock: Clock) -> Any:
    parse = SETTABLE[name].parse
    return parse(name, value, clock) if parse is not None else value
