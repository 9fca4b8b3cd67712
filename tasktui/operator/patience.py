"""Patience: how long somebody waits for an answer of the database. A deadline at the server is kept by the server only.

One that is frozen, or behind a network that swallows everything, never says that it breaks anything off.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Patience:
    """Transactions that are under way, and for how long somebody waits for each.

    One that nobody waits for any more goes on to its end: a statement that is broken off in the middle would leave its
    connection in an unknown state.
    """

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    async def wait(self, work: Coroutine[Any, Any, T], seconds: float, silence: Exception) -> T:
        """Run a transaction, and wait for its answer.

        Args:
            work: the transaction.
            seconds: for how long.
            silence: raised when there is no answer by then.

        Returns:
            What the transaction returns.
        """
        running = asyncio.ensure_future(work)
        self._under_way.add(running)
        running.add_done_callback(self._done)
        done, _ = await asyncio.wait({running}, timeout=seconds)
        if not done:
            raise silence
        return running.result()

    async def ended(self) -> None:
        """Wait until nothing is under way any more."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to be told
