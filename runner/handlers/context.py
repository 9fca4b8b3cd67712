"""Context: what a handler learns about the task that it executes."""

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from runner.errors import NoTransaction
from runner.handlers.batch import BatchResult
from runner.handlers.notes import MemoryNotes, Notes, checkpoint

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
        notes: receives checkpoints, progress and log lines.
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
    notes: Notes = field(default_factory=MemoryNotes, repr=False, compare=False)

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
    def state(self) -> Any:
        """The state of the last checkpoint, as plain JSON: in this attempt or an earlier one; None without one."""
        return self.notes.state

    def checkpoint(self, state: Any) -> Awaitable[None]:
        """Store the state of the work, from which the next attempt continues: `await ctx.checkpoint({"line": 400})`.

        When it returns, the state is durable. A plain function calls it without `await`.

        Args:
            state: anything that JSON can hold, at most `checkpoint_limit` bytes.

        Raises:
            InvalidCheckpoint: the state is not JSON or too large; the last checkpoint stays.
            FencedOut: the runner no longer holds the task.
            DatabaseUnavailable: the database cannot be reached.
        """
        return checkpoint(self.notes, state)

    def keep(self, state: Any) -> None:
        """Set the state of the work without waiting. The runner stores it every `checkpoint_interval`.

        It also stores it when the attempt is interrupted, fails or times out. After a crash, the next attempt continues
        from the last stored state.

        Args:
            state: as for `checkpoint`.

        Raises:
            InvalidCheckpoint: the state is not JSON or too large.
        """
        self.notes.keep(state)

    def progress(self, done: float, total: float | None = None, unit: str = "") -> None:
        """Show how far the work is: `ctx.progress(42, 105, "files")`. It costs no statement; call it often.

        Args:
            done: finished units, not negative.
            total: all units; None if unknown.
            unit: name of the units, at most 40 characters.

        Raises:
            InvalidProgress: a number is negative or not finite.
        """
        self.notes.progress(done, total, unit)

    @property
    def cancelled(self) -> bool:
        """True if the task was terminated or timed out. A plain function should check it and return soon."""
        return self.stop.is_set()


def context_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that receives the Context; None if the function has none."""
    for item in inspect.signature(function).parameters.values():
        if item.annotation is Context or item.annotation in ("Context", "runner.Context"):
            return item.name
        if item.name == "ctx" and item.annotation is inspect.Parameter.empty:
            return item.name
    return None
