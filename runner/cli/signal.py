"""`runner signal`: send a signal to tasks."""

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from runner.cli.operate import Change, change_named
from runner.cli.operation_output import CHANGE_DOCUMENTS
from runner.cli.options import DEFAULT_CONNECTION, NO_OPTIONS, ChangeOptions, Connection
from runner.operations.signal import signal as apply_signal

DOCUMENTS = CHANGE_DOCUMENTS


async def signal(
    target: Annotated[str, Parameter(name="TASKS")],
    name: str,
    payload: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    options: ChangeOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Send a signal to tasks that wait for it, or will wait for it.

    A handler waits with ctx.wait_for("approved"). TASKS is an id, or a filter in
    quotes, such as key:order-17. A signal with the name of a sleep ends it.

    Args:
        target: A task id, or a filter.
        name: The name of the signal.
        payload: A JSON value for the handler.
        options: Confirmation.
        connection: The database.
    """
    operation = partial(apply_signal, name=name, payload=payload)
    return await change_named(Change("signal", operation), [target], options, connection)
