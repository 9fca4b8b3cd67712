"""TestDoor: submits to a test's store, and runs at once what is submitted when it is told to."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from runner.door.door import Door
from runner.settings import Settings
from runner.task import NewTask


class TestDoor(Door):
    """The door of a test's store.

    Args:
        settings: where the store is.
        drain: runs what is due on the caller's event loop.
    """

    def __init__(self, settings: Settings, drain: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(settings)
        self._drain = drain
        self.inline = False
        """True while tasks run as they are submitted."""

    def submit(self, tasks: Sequence[NewTask]) -> Any:
        """Submit, and in inline mode run; the caller has no event loop."""
        submitted = super().submit(tasks)
        if self.inline and not submitted.exception():
            asyncio.run(self._drained())
        return submitted

    async def submit_async(self, tasks: Sequence[NewTask]) -> Any:
        """Submit, and in inline mode run on the caller's event loop."""
        answer = await asyncio.wrap_future(super().submit(tasks))
        if self.inline:
            await self._drain()
        return answer

    async def _drained(self) -> None:
        await self._drain()
