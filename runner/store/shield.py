"""The cancellation shield: a short transaction that has begun is let end before a cancel is delivered."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end even if the caller is cancelled meanwhile, then deliver the cancel.

    A coroutine that is cancelled in the middle of a statement would leave the connection, and on SQLite the write
    lock, in an unknown state.

    Args:
        work: something short, such as one transaction.

    Returns:
        What `work` returns.

    Raises:
        asyncio.CancelledError: after `work` has ended, if the caller was cancelled.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                continue
        if not running.cancelled():
            running.exception()  # it was seen here, so the event loop need not complain of it
        raise
