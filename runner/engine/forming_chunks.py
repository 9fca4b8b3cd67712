"""Forming chunks: the chunks of a pool that still take tasks, before their end of waiting or their start."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterator
from math import ceil

from runner.engine.running import ChunkRunning, Running, SlotPool
from runner.handlers.registry import Handler

Key = tuple[str, str | None]
"""Handler and tenant: the tasks of a chunk have the same."""

GROWTH = 2
"""A claim expects chunks of at most this multiple of the last ones: tasks of many tenants fill many chunks."""


class FormingChunks:
    """The chunks of a pool that wait for more tasks or for a slot, and still take tasks.

    Args:
        slots: the pool.
    """

    def __init__(self, slots: SlotPool) -> None:
        self._slots = slots
        self._open: dict[Key, ChunkRunning] = {}
        """The chunks that take more tasks."""
        self._waiting: dict[ChunkRunning, asyncio.TimerHandle] = {}
        """The chunks that wait for more tasks, with their timers. The others wait for a slot, in the pool."""
        self._sizes: dict[str, float] = {}
        """The recent number of tasks per chunk, by handler."""
        self._context = contextvars.copy_context()

    def add(self, running: Running, *, alone: bool = False) -> None:
        """Add a claimed task to a chunk of its handler and tenant.

        Args:
            alone: True if it may have killed its runner, so that no other task shares its fate.
        """
        option = running.handler.defaults.chunk
        assert option is not None  # noqa: S101 - the pool asks first
        key = running.task.handler, running.task.tenant
        chunk = None if alone else self._open.get(key)
        if chunk is None:
            chunk = ChunkRunning(running, option)
            if not alone:
                self._open[key] = chunk
            loop = asyncio.get_running_loop()
            wait = min(option.wait, self._slots.longest_wait)
            self._waiting[chunk] = loop.call_later(wait, self._close, chunk, context=self._context)
        else:
            chunk.add(running)
        if not chunk.free_places or alone:
            self.forget(chunk)  # no further tasks
            self._end_wait(chunk)

    def room(self, handler: Handler) -> int:
        """Return the number of tasks of a handler to claim: enough to fill the chunks for the free slots.

        Tasks that are claimed ahead of a slot are no more than those of other handlers may be.
        """
        option = handler.defaults.chunk
        assert option is not None  # noqa: S101 - the claimer asks first
        own = [chunk for chunk in self._waiting if chunk.handler is handler]
        free = max(0, self._slots.free_count - len(self._waiting) + len(own))
        ahead = max(0, self._slots.room() - self._slots.free_count)
        expected = min(option.size, ceil(GROWTH * self._sizes.get(handler.name, option.size)))
        room = free * expected + min(ahead * expected, self._slots.look_ahead.most)
        return max(0, room - sum(len(chunk.members) for chunk in own))

    def starts(self, chunk: ChunkRunning) -> None:
        """Take no more tasks into a chunk, which starts."""
        self.forget(chunk)
        name, size = chunk.task.handler, len(chunk.members)
        self._sizes[name] = (self._sizes.get(name, size) + size) / 2

    def unstarted(self) -> Iterator[Running]:
        """Return the tasks of the chunks that wait for more."""
        return (member for chunk in self._waiting for member in chunk.members)

    def take(self, accepts: Callable[[ChunkRunning], bool]) -> list[Running]:
        """Remove and return the tasks of the chunks that wait for more tasks, if a function accepts their chunk."""
        chunks = [chunk for chunk in self._waiting if accepts(chunk)]
        for chunk in chunks:
            self._waiting.pop(chunk).cancel()
            self.forget(chunk)
        return [member for chunk in chunks for member in chunk.members]

    def _close(self, chunk: ChunkRunning) -> None:
        if chunk in self._waiting:
            self._end_wait(chunk)
            self._slots.on_chunk()

    def _end_wait(self, chunk: ChunkRunning) -> None:
        """Let a chunk wait for a slot. Until it starts, it takes further tasks that were claimed for free slots."""
        if (timer := self._waiting.pop(chunk, None)) is not None:
            timer.cancel()
            chunk.received_at = time.monotonic()
            self._slots.waiting.append(chunk)

    def forget(self, chunk: ChunkRunning) -> None:
        """Take no more tasks into a chunk."""
        key = chunk.task.handler, chunk.task.tenant
        if self._open.get(key) is chunk:
            del self._open[key]
