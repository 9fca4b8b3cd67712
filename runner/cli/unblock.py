"""`runner unblock`: release tasks from their dependencies."""

from functools import partial

from runner.cli.operate import Change, Targets, change_named
from runner.cli.operation_output import CHANGE_DOCUMENTS
from runner.cli.options import DEFAULT_CONNECTION, NO_OPTIONS, ChangeOptions, Connection, EntryId
from runner.operations.unblock import unblock as apply_unblock

DOCUMENTS = CHANGE_DOCUMENTS


async def unblock(
    *targets: Targets,
    dependency: EntryId | None = None,
    options: ChangeOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Release tasks from their dependencies, as if every parent had succeeded.

    TASKS are ids or a filter, as for runner retry.

    Args:
        targets: Task ids, or a filter.
        dependency: Only the dependency with this id, as runner show prints.
        options: Confirmation.
        connection: The database.
    """
    operation = partial(apply_unblock, dependency_id=dependency)
    return await change_named(Change("unblock", operation), targets, options, connection)
