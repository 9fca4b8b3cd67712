"""OwnTransaction: a transaction of a handler that commits with the record of its work."""

from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection


INSIDE_OF: ContextVar[tuple[int, int] | None] = ContextVar("transaction", default=None)
"""Task id and fence of the attempt in whose transaction this code runs; None outside. The asyncio tasks of other
attempts may inherit it."""

INSIDE = "it is inside of a transaction: call it before that block"
"""Why a step or a checkpoint is refused: on SQLite it would wait for the locks of the transaction around it, and on
PostgreSQL it would stay after a rollback."""


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
