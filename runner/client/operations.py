"""The operations of an application on a task, in the audit log with their author."""

import sys
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from runner.client.client import get_client
from runner.client.status import TaskStatus
from runner.errors import InvalidInput, TaskNotFound, TaskUnchanged
from runner.model.duration import parse_duration
from runner.model.outcome import Delay
from runner.text import operator

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from runner.db.transaction import Transaction
    from runner.operations.results import Actor, Result


def begin_status(id: int) -> Future[TaskStatus]:
    """Begin to read the status of a task.

    Raises:
        TaskNotFound: from the future: the task does not exist.
    """
    client = get_client().client_of(id)

    async def read(database: Any) -> TaskStatus:
        from runner.queries.task.status import status_values

        values = await database.read(status_values, int(id))
        if values is None:
            raise TaskNotFound(id=id)
        if values["error"] is not None:
            values["error"] = client.sealing.keyring.open_text(values["error"], values["handler"])
        return TaskStatus(**values)

    return client.run(read)


def begin_cancel(id: int, reason: str | None, by: str | None) -> Future[None]:
    """Begin to cancel a task; see `TaskHandle.cancel`."""

    def verb(tx: "Transaction", author: "Actor") -> "Coroutine[Any, Any, Result]":
        from runner.operations.results import Target
        from runner.operations.terminate import terminate

        return terminate(tx, [Target(int(id))], author)

    return _begin(id, verb, reason, by)


def begin_retry(id: int, reason: str | None, by: str | None) -> Future[None]:
    """Begin to retry a task; see `TaskHandle.retry`."""

    def verb(tx: "Transaction", author: "Actor") -> "Coroutine[Any, Any, Result]":
        from runner.operations.results import Target
        from runner.operations.retry import retry_now

        return retry_now(tx, [Target(int(id))], author)

    return _begin(id, verb, reason, by)


def begin_signal(id: int, name: str, payload: Any, by: str | None) -> Future[None]:
    """Begin to send a signal to a task; see `TaskHandle.signal`."""
    try:
        text = None if payload is None else to_json(payload, inf_nan_mode="constants").decode()
    except ValueError as error:
        raise InvalidInput(why=f"the payload of signal {name!r} is not JSON: {error}") from None

    def verb(tx: "Transaction", author: "Actor") -> "Coroutine[Any, Any, Result]":
        from runner.operations.results import Target
        from runner.operations.signal import signal

        return signal(tx, [Target(int(id))], name, text, author)

    return _begin(id, verb, None, by)


def begin_reschedule(id: int, when: datetime | Delay, reason: str | None, by: str | None) -> Future[None]:
    """Begin to reschedule a task; see `TaskHandle.reschedule`."""
    delay = None if isinstance(when, datetime) else parse_duration(when)

    async def verb(tx: "Transaction", author: "Actor") -> "Result":
        from runner.db.transaction import clock
        from runner.operations.edit import edit
        from runner.operations.edit_values import Changes

        due = when if isinstance(when, datetime) else await clock(tx) + (delay or parse_duration(0))
        return await edit(tx, int(id), None, Changes(run_at=due), author)

    return _begin(id, verb, reason, by)


def _begin(
    id: int, verb: "Callable[[Transaction, Actor], Coroutine[Any, Any, Result]]", reason: str | None, by: str | None
) -> Future[None]:
    """Begin an operation on one task; its future raises TaskUnchanged or TaskNotFound if nothing has changed."""

    async def run(database: Any) -> None:
        from runner.operations.results import Actor
        from runner.operations.targets import MISSING

        result = await database.write(verb, Actor(author_name(by), operator.host(), reason))
        for skipped in result.skipped:
            if skipped.why == MISSING:
                raise TaskNotFound(id=id)
            raise TaskUnchanged(id=id, why=skipped.why)
        for stuck in result.stuck:
            raise TaskUnchanged(id=id, why=stuck.why)

    return get_client().client_of(id).run(partial(run))


def author_name(by: str | None) -> str:
    """The author of an operation for the audit log: the given name, or the user of this process; and the program.

    Args:
        by: the user of the application, such as "ana@example.org"; None for the process itself.
    """
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    program = "python" if name in ("", "-c", "-m", "-") else name
    return f"{by or operator.operator()} via {program}"
