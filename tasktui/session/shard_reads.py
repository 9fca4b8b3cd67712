"""ShardReads: the latest answers of all shards, of which a silent one delays the others once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeVar, cast

from runner.errors import DatabaseUnavailable, RunnerError
from runner.text import formatting
from tasktui.session.session import Session
from tasktui.session.shards import ShardsSession

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


class _ShardRead(NamedTuple, Generic[T]):
    """A read of a shard that has begun."""

    key: object
    began: float
    task: asyncio.Task[tuple[float, T]]


def split(answers: Mapping[str, ShardAnswer[T]]) -> tuple[dict[str, T], dict[str, str]]:
    """The value of each shard that answered, and the error of each other one."""
    values = {name: cast("T", answer.value) for name, answer in answers.items() if not answer.error}
    return values, {name: answer.error for name, answer in answers.items() if answer.error}


class ShardReads(Generic[T]):
    """Reads all shards at the same time, or the one database of a session without shards.

    A read that is late goes on. Until it ends, its shard is not asked again, and the other shards do not wait for it.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[str, _ShardRead[T]] = {}
        self._late: set[str] = set()
        self._last: dict[str, tuple[object, float, T]] = {}

    async def read(
        self, session: Session, verb: Callable[[Session], Awaitable[T]], key: object = None
    ) -> Mapping[str, ShardAnswer[T]]:
        """Read each database of a session, and return the answer of each by its name.

        Args:
            verb: reads one of them.
            key: identifies what it reads; the last answer counts only for the same key.

        Raises:
            RunnerError: the session has no shards, and its database gave this error.
        """
        if not isinstance(session, ShardsSession):
            return {session.name: ShardAnswer(await verb(session))}
        for shard in session.shards:
            running = self._running.get(shard.name)
            if running is None or (running.key != key and running.task.done()):
                task = asyncio.ensure_future(self._timed(shard, verb))
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # also if no read follows
                self._running[shard.name] = _ShardRead(key, self._clock(), task)
        prompt = [running.task for name, running in self._running.items() if name not in self._late]
        await asyncio.wait(prompt or [running.task for running in self._running.values()], timeout=PATIENCE)
        answers = {shard.name: self._answer(shard.name, key) for shard in session.shards}
        session.silent = frozenset(self._running)
        return answers

    async def _timed(self, shard: Session, verb: Callable[[Session], Awaitable[T]]) -> tuple[float, T]:
        """Read a shard, and return the time of the answer too."""
        began = self._clock()
        try:
            value = await verb(shard)
        finally:
            is_prompt = self._clock() - began <= PATIENCE
            (self._late.discard if is_prompt else self._late.add)(shard.name)
        return self._clock(), value

    def _answer(self, name: str, key: object) -> ShardAnswer[T]:
        running = self._running[name]
        if running.task.done():
            del self._running[name]
            try:
                self._last[name] = (running.key, *running.task.result())
            except DatabaseUnavailable as error:
                self._last.pop(name, None)
                return ShardAnswer(error=str(error.fields["why"]))
            except RunnerError as error:
                self._last.pop(name, None)
                return ShardAnswer(error=str(error))
            if running.key == key:
                return ShardAnswer(self._last[name][2])
        else:
            self._late.add(name)
        now, last = self._clock(), self._last.get(name)
        if last is not None and last[0] == key and now - last[1] < FRESH:
            return ShardAnswer(last[2])
        return ShardAnswer(error=f"no answer for {formatting.age(now - running.began)}")
