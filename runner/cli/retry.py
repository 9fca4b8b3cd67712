"""`runner retry`: run tasks again now."""

from functools import partial

from runner.cli.operate import Change, Targets, change_named
from runner.cli.operation_output import CHANGE_DOCUMENTS
from runner.cli.options import DEFAULT_CONNECTION, NO_OPTIONS, ChangeOptions, Connection, read_targets
from runner.model.duration import parse_spread
from runner.operations.canary import check_canary
from runner.operations.retry import retry_now

DOCUMENTS = CHANGE_DOCUMENTS


async def retry(
    *targets: Targets,
    spread: str | None = None,
    canary: bool = False,
    options: ChangeOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Run tasks again now: waiting ones right away, dead and cancelled ones as new attempts.

    TASKS are ids (runner retry 12 13) or a filter (runner retry queue:mail
    state:dead). A filter shows a preview first. To apply it, repeat the number of
    changes with --yes, or confirm on a terminal.

    Args:
        targets: Task ids, or a filter.
        spread: Spread the tasks at random over this time: 10m.
        canary: Retry 1, then 10, then 100 tasks, then the rest, and stop when one
            of them fails again.
        options: Confirmation.
        connection: The database.
    """
    seconds = parse_spread(spread)
    if canary:
        check_canary(read_targets(targets), seconds)
    change = Change("retry_now", partial(retry_now, spread=seconds), canary=canary)
    return await change_named(change, targets, options, connection)
