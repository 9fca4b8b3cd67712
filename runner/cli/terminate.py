"""`runner terminate`: terminate tasks."""

from runner.cli.operate import Change, Targets, change_named
from runner.cli.operation_output import CHANGE_DOCUMENTS
from runner.cli.options import DEFAULT_CONNECTION, NO_OPTIONS, ChangeOptions, Connection
from runner.operations.terminate import terminate as apply_terminate

DOCUMENTS = CHANGE_DOCUMENTS


async def terminate(
    *targets: Targets, options: ChangeOptions = NO_OPTIONS, connection: Connection = DEFAULT_CONNECTION
) -> int:
    """Terminate tasks: waiting ones now, running ones by request.

    The runner of a running task receives the request with its next heartbeat.
    TASKS are ids or a filter, as for runner retry.

    Args:
        targets: Task ids, or a filter.
        options: Confirmation.
        connection: The database.
    """
    return await change_named(Change("terminate", apply_terminate), targets, options, connection)
