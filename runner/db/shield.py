"""Shield: a short transaction completes before a cancellation reaches its caller."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end even if the caller is cancelled, then deliver the cancellation.

    A coroutine that is cancelled in the middle of a statement would leave the connection, and on SQLite the write
    lock, in an unknown state.

    Args:
        work: a short coroutine, such as one transaction.

    Returns:
        The result of `work`.

    Raises:
        asyncio.CancelledError: after the end of `work`, if the caller was cancelled.
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
            running.exception()  # retrieved, so that the event loop does not log it
        raise
