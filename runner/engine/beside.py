"""beside: coroutines that run as long as a block does."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

log = logging.getLogger("runner")


@contextlib.asynccontextmanager
async def beside(*works: Coroutine[Any, Any, None], broken: Callable[[], None]) -> AsyncIterator[None]:
    """Let coroutines run beside the block, and end them with it; call `broken` when one ends by a fault of its own."""
    running = [asyncio.ensure_future(work) for work in works]
    for task in running:
        task.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else broken())
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        for failure in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(failure, Exception):
                log.error("a part of the runner broke", exc_info=failure)
