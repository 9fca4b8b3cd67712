"""Jobs: the asyncio tasks of attempts. Only the runner and the attempt itself can cancel one."""

import asyncio
import logging
from typing import Any, ClassVar

from runner.model.task import CURRENT_TASK, Claimed

log = logging.getLogger("runner.task")

_cancel = asyncio.Task.cancel
"""The method as it was at the import: libraries such as nest_asyncio replace the class."""


class AttemptJob(asyncio.Task[Any]):
    """The asyncio task of an attempt.

    A handler may cancel all asyncio tasks of the event loop that it runs on. The attempts beside it continue.
    """

    owner: Claimed | None = None
    """The task that the attempt executes; None before its first step."""
    reported: ClassVar[tuple[int, int] | None] = None
    """Task and fence of the last attempt that tried to cancel others."""

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the attempt from inside, or at the end of the event loop; ignore a cancellation by another attempt."""
        by = CURRENT_TASK.get()
        if by is None or _is_same(by, self.owner):
            return super().cancel(msg)
        key = by.id, by.fence
        if key != AttemptJob.reported:  # one line for all that an attempt tries to cancel
            AttemptJob.reported = key
            log.warning("task %d (%s) tried to cancel other attempts: ignored, they continue", by.id, by.handler)
        return False


def _is_same(one: Claimed, other: Claimed | None) -> bool:
    """True for the same attempt, whose headers may have changed."""
    return one is other or (other is not None and (one.id, one.fence) == (other.id, other.fence))


def end(job: "asyncio.Task[Any]") -> None:
    """Cancel a job because its runner wants it to end. Record the reason before.

    The code that calls this may run in the context of another attempt.
    """
    _cancel(job)


class Child(asyncio.Task[Any]):
    """An asyncio task that a handler has started. Others may cancel it: the handler may share a client with them."""

    owner: Claimed

    def of(self, owner: Claimed) -> "Child":
        """Set the task whose handler has started it."""
        self.owner = owner
        return self

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, and record which other attempt does so."""
        by, owner = CURRENT_TASK.get(), self.owner
        if by is not None and not _is_same(by, owner) and not self.done():
            if len(_disturbed) >= MOST_DISTURBED:
                _disturbed.clear()
            _disturbed[owner.id, owner.fence] = f"task {by.id} ({by.handler})"
        return super().cancel(msg)


MOST_DISTURBED = 1_000
"""Attempts to remember of which others have cancelled an asyncio task."""

_disturbed: dict[tuple[int, int], str] = {}


def take_disturber(task: Claimed) -> str | None:
    """Return the attempt that cancelled an asyncio task of this one, and forget it; None if no other has done so."""
    return _disturbed.pop((task.id, task.fence), None)
