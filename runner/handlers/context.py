"""Context: what a handler learns about the task that it executes."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from runner.errors import NoTransaction
from runner.handlers.batch import BatchResult

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection


class OwnTransaction(Protocol):
    """The return value of `ctx.transaction()`: a transaction whose commit completes the task.

    `async with` returns SQLAlchemy's AsyncConnection to async handlers; `with` returns its Connection to plain
    functions. The value of `result` at the end of the block becomes the task's result.
    """

    result: Any

    async def __aenter__(self) -> "AsyncConnection": ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def __enter__(self) -> "Connection": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """The task that a handler executes.

    Args:
        id: task id.
        key: business key.
        attempt: number of this attempt, from 1.
        max_attempts: maximum number of attempts.
        fence: fence of this claim. Pass it to downstream systems that can reject older fences.
        deadline: time at which this attempt times out; None without a timeout.
        logger: adds the task's id and handler to each line.
        stop: set when an operator terminates the task or the attempt times out.
        batch: outcomes of the tasks that this one depended on; None without dependencies.
        open_transaction: opens the transaction that `transaction` returns; None outside a runner.
        handler: name of the handler.
        queue: name of the queue.
    """

    id: int
    key: str | None
    attempt: int
    max_attempts: int
    fence: int
    deadline: datetime | None
    logger: logging.LoggerAdapter[logging.Logger]
    stop: threading.Event = field(default_factory=threading.Event, repr=False)
    open_transaction: Callable[[], OwnTransaction] | None = field(default=None, repr=False)
    batch: BatchResult | None = None
    handler: str = ""
    queue: str = ""

    def transaction(self) -> OwnTransaction:
        """Open a transaction on the task database whose commit completes this task.

        The handler's writes and the completion of the task commit together or not at all. If the runner no longer
        holds the task, both are rolled back. If the block raises, both are rolled back and the attempt fails as with
        any exception.

        Returns:
            A context manager for `async with` or `with` that returns a SQLAlchemy connection. Set its `result` to
            store a result for the task.

        Raises:
            FencedOut: at the end of the block, if the runner no longer holds the task.
            AlreadyDone: an earlier transaction completed the task.
            NoTransaction: no runner executes the task.

        Example:
            >>> async def pay(ctx: Context, order: int) -> None:
            ...     async with ctx.transaction() as tx:
            ...         await tx.execute(sa.text("UPDATE orders SET paid = true WHERE id = :id"), {"id": order})
        """
        if self.open_transaction is None:
            raise NoTransaction(id=self.id)
        return self.open_transaction()

    @property
    def cancelled(self) -> bool:
        """True if the task was terminated or timed out. A plain function should check it and return soon."""
        return self.stop.is_set()
