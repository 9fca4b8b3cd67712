"""ShardReads: the latest answers of all shards, of which a silent one delays the others once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Generic, NamedTuple, TypeVar

from runner.errors import DatabaseUnavailable, RunnerError
from runner.text import formatting
from tasktui.session.session import Session

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds for which the answers of other shards wait for those of a slow one."""

FRESH = 10.0
"""Seconds for which the last answer of a shard counts while the next one is late."""


class ShardAnswer(NamedTuple, Generic[T]):
    """The answer of a shard.

    Args:
        value: what it read; None without an answer.
        error: why there is none; empty with one.
    """

    value: T | None = None
    error: str = ""


class ShardReads(Generic[T]):
    """Reads all shards at the same time.

    A read that is late goes on. Until it ends, its shard is not asked again, and the other shards do not wait for it.

    Args:
        read: reads one of them.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        shards: Sequence[Session],
        read: Callable[[Session], Awaitable[T]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shards = tuple(shards)
        self._read = read
        self._clock = clock
        self._running: dict[str, asyncio.Task[tuple[float, T]]] = {}
        self._began: dict[str, float] = {}
        self._late: set[str] = set()
        self._last: dict[str, tuple[float, T]] = {}

    @property
    def silent(self) -> frozenset[str]:
        """The names of the shards whose last read is late."""
        return frozenset(self._running)

    async def read(self) -> Mapping[str, ShardAnswer[T]]:
        """Read all shards, and return the answer of each by its name."""
        for shard in self._shards:
            if shard.name not in self._running:
                self._began[shard.name] = self._clock()
                self._running[shard.name] = task = asyncio.ensure_future(self._timed(shard))
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # also if no read follows
        prompt = [task for name, task in self._running.items() if name not in self._late]
        await asyncio.wait(prompt or list(self._running.values()), timeout=PATIENCE)
        return {shard.name: self._answer(shard.name) for shard in self._shards}

    async def _timed(self, shard: Session) -> tuple[float, T]:
        """Read a shard, and return the time of the answer too."""
        try:
            value = await self._read(shard)
        finally:
            is_prompt = self._clock() - self._began[shard.name] <= PATIENCE
            (self._late.discard if is_prompt else self._late.add)(shard.name)
        return self._clock(), value

    def _answer(self, name: str) -> ShardAnswer[T]:
        if self._running[name].done():
            try:
                self._last[name] = self._running.pop(name).result()
            except RunnerError as error:
                self._last.pop(name, None)
                return ShardAnswer(None, _cause(error))
        else:
            self._late.add(name)
        read_at, last = self._last.get(name, (-inf, None))
        if last is not None and self._clock() - read_at < FRESH:
            return ShardAnswer(last)
        return ShardAnswer(None, f"no answer for {formatting.age(self._clock() - self._began[name])}")


def _cause(error: RunnerError) -> str:
    return str(error.fields["why"] if isinstance(error, DatabaseUnavailable) else error)
