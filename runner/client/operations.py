"""The operations of an application on a task, in the audit log with their author."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic_core import to_json

from runner.client.client import get_client, refuse_event_loop
from runner.client.status import TaskStatus
from runner.errors import InvalidInput, TaskNotFound, TaskUnchanged
from runner.model.duration import parse_duration
from runner.model.outcome import Delay
from runner.model.task import LAST_ID
from runner.text import operator

if TYPE_CHECKING:
    from runner.db.statement import Steps
    from runner.db.transaction import Transaction
    from runner.operations.results import Actor, Result

T = TypeVar("T")


@dataclass(frozen=True)
class TaskOperation(Generic[T]):
    """A read or a change of one task, in a transaction of its own or in that of the application.

    Args:
        id: the task.
        call: the name of its call, for messages.
        verb: a query or an operation.
        arguments: its arguments.
        conclude: makes the return value of the answer of the verb, or raises the reason why nothing has changed.
        reads: True if it only reads.
    """

    id: int
    call: str
    verb: Callable[..., Awaitable[Any]]
    arguments: tuple[Any, ...]
    conclude: Callable[[Any], T]
    reads: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.id <= LAST_ID:
            raise TaskNotFound(id=self.id)

    def run(self, tx: object = None) -> T:
        """Run it in a thread without an event loop, or with `tx` anywhere."""
        client = get_client().client_of(self.id)
        if tx is not None:
            from runner.client.external import explained, follower

            with explained():
                return self.conclude(follower(tx, f"{self.call}_async")(tx, self._steps))
        refuse_event_loop(self.call)
        return self.conclude(client.begin(self.verb, *self.arguments, reads=self.reads).result())

    async def run_async(self, tx: object = None) -> T:
        """Run it on an event loop."""
        client = get_client().client_of(self.id)
        if tx is not None:
            from runner.client.external import explained, follower_async

            with explained():
                return self.conclude(await follower_async(tx, self.call)(tx, self._steps))
        return self.conclude(await asyncio.wrap_future(client.begin(self.verb, *self.arguments, reads=self.reads)))

    def _steps(self, driver: Any) -> "Steps[Any]":
        from runner.db.external_transaction import external_steps
        from runner.db.statement import StatementFrame

        settings = get_client().client_of(self.id).settings
        return external_steps(StatementFrame.of(settings, driver), self.verb, *self.arguments, reads=self.reads)


def status(id: int) -> TaskOperation[TaskStatus]:
    """Read the status of a task; see `TaskHandle.status`."""
    from runner.queries.task.event_facts import status_values

    def conclude(values: dict[str, Any] | None) -> TaskStatus:
        if values is None:
            raise TaskNotFound(id=id)
        if values["error"] is not None:
            keyring = get_client().client_of(id).sealing.keyring
            values["error"] = keyring.open_text(values["error"], values["handler"])
        return TaskStatus(**values)

    return TaskOperation(id, "status", status_values, (int(id),), conclude, reads=True)


def cancel(id: int, reason: str | None, by: str | None) -> TaskOperation[None]:
    """Cancel a task; see `TaskHandle.cancel`."""
    from runner.operations.results import Target
    from runner.operations.terminate import terminate

    return _change(id, "cancel", terminate, ([Target(int(id))],), reason, by)


def retry(id: int, reason: str | None, by: str | None) -> TaskOperation[None]:
    """Retry a task; see `TaskHandle.retry`."""
    from runner.operations.results import Target
    from runner.operations.retry import retry_now

    return _change(id, "retry", retry_now, ([Target(int(id))],), reason, by)


def signal(id: int, name: str, payload: Any, by: str | None) -> TaskOperation[None]:
    """Send a signal to a task; see `TaskHandle.signal`."""
    from runner.operations.results import Target
    from runner.operations.signal import signal as send

    try:
        text = None if payload is None else to_json(payload, inf_nan_mode="constants").decode()
    except ValueError as error:
        raise InvalidInput(why=f"the payload of signal {name!r} is not JSON: {error}") from None
    return _change(id, "signal", send, ([Target(int(id))], name, text), None, by)


def reschedule(id: int, when: datetime | Delay, reason: str | None, by: str | None) -> TaskOperation[None]:
    """Reschedule a task; see `TaskHandle.reschedule`."""
    delay = None if isinstance(when, datetime) else parse_duration(when)

    async def verb(tx: "Transaction", id: int, author: "Actor") -> "Result":
        from runner.db.transaction import clock
        from runner.operations.edit import edit
        from runner.operations.edit_values import Changes

        due = when if isinstance(when, datetime) else await clock(tx) + (delay or parse_duration(0))
        return await edit(tx, id, None, Changes(run_at=due), author)

    return _change(id, "reschedule", verb, (int(id),), reason, by)


def _change(
    id: int,
    call: str,
    verb: "Callable[..., Awaitable[Result]]",
    arguments: tuple[Any, ...],
    reason: str | None,
    by: str | None,
) -> TaskOperation[None]:
    from runner.operations.results import Actor

    author = Actor(author_name(by), operator.host(), reason)
    return TaskOperation(id, call, verb, (*arguments, author), partial(_require_change, id))


def _require_change(id: int, result: "Result") -> None:
    """Raise TaskUnchanged or TaskNotFound if an operation on one task has changed nothing."""
    from runner.operations.targets import MISSING

    for skipped in result.skipped:
        if skipped.why == MISSING:
            raise TaskNotFound(id=id)
        raise TaskUnchanged(id=id, why=skipped.why)
    for stuck in result.stuck:
        raise TaskUnchanged(id=id, why=stuck.why)


def author_name(by: str | None) -> str:
    """The author of an operation for the audit log: the given name, or the user of this process; and the program.

    Args:
        by: the user of the application, such as "ana@example.org"; None for the process itself.
    """
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    program = "python" if name in ("", "-c", "-m", "-") else name
    return f"{by or operator.operator()} via {program}"
