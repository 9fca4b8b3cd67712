"""`runner delay`: postpone tasks."""

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from runner.cli.operate import Change, Targets, change_named
from runner.cli.operation_output import CHANGE_DOCUMENTS
from runner.cli.options import DEFAULT_CONNECTION, NO_OPTIONS, ChangeOptions, Connection
from runner.errors import InvalidInput
from runner.model.duration import parse_duration
from runner.operations.delay import delay as apply_delay

DOCUMENTS = CHANGE_DOCUMENTS


async def delay(
    *targets: Targets,
    length: Annotated[str, Parameter(name=("--by", "--for"), allow_leading_hyphen=True)],
    options: ChangeOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Postpone waiting tasks, counted from their planned time.

    TASKS are ids or a filter, as for runner retry.

    Args:
        targets: Task ids, or a filter.
        length: Duration: 30s, 10m, 2h.
        options: Confirmation.
        connection: The database.
    """
    if length.strip().startswith("-"):
        why = "--by must be positive, such as 10m; to run tasks earlier use runner edit ID --run-at, or runner retry"
        raise InvalidInput(why=why)
    seconds = parse_duration(length).total_seconds()
    operation = partial(apply_delay, seconds=seconds)
    return await change_named(Change("delay", operation), targets, options, connection)
