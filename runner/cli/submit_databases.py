"""Submit databases: the database that a command submits to, or those of the shards of a profile."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from runner.cli.options import open_database
from runner.client.commit import submit_alone
from runner.client.payload_sealing import PayloadSealing
from runner.client.placement import Placement
from runner.db.database import Database
from runner.model.shard import ShardId
from runner.model.task import NewTask, SubmitResult
from runner.settings import Settings
from runner.settings.shards import shard_settings


class SubmitDatabases:
    """Opens each database when it is first needed. The functions are synchronous, so that a pipe can be interrupted.

    Args:
        loop: runs the statements.
        stack: closes the databases.
    """

    def __init__(self, settings: Settings, loop: asyncio.Runner, stack: AsyncExitStack) -> None:
        self._loop, self._stack, self._notify = loop, stack, settings.notify
        is_sharded = bool(settings.shards) and settings.shard is None
        self._placement = Placement(settings) if is_sharded else None
        self._settings = shard_settings(settings) if is_sharded else {"": settings}
        self._opened: dict[str, Database] = {}
        self._sealing = PayloadSealing(settings)
        self.keyring = self._sealing.keyring
        """Encrypts the payloads of handlers with a codec."""

    def _open(self, shard: str) -> Database:
        if shard not in self._opened:
            opening = self._stack.enter_async_context(open_database(self._settings[shard], creates=True))
            self._opened[shard] = self._loop.run(opening)
        return self._opened[shard]

    def read(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        """Read from the database; of several shards from the first, for what is the same in all."""
        return self._loop.run(self._open(next(iter(self._settings))).read(operation, *arguments))

    def submit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks, those of each shard in one transaction."""
        if self._placement is None:
            return self._submit("", tasks)
        by_shard = defaultdict[str, list[tuple[int, NewTask]]](list)
        for position, task in enumerate(tasks):
            shard, (placed,) = self._placement.place([task])
            by_shard[shard].append((position, placed))
        ids, duplicates, replaced = dict[int, int](), set[int](), set[int]()
        for shard, members in by_shard.items():
            result = self._submit(shard, [task for _, task in members])
            positions = [position for position, _ in members]
            ids |= {position: ShardId(shard, id) for position, id in zip(positions, result.ids, strict=True)}
            duplicates |= {positions[index] for index in result.duplicates}
            replaced |= {positions[index] for index in result.replaced}
        return SubmitResult([ids[position] for position in sorted(ids)], frozenset(duplicates), frozenset(replaced))

    def _submit(self, shard: str, tasks: Sequence[NewTask]) -> SubmitResult:
        return self._loop.run(submit_alone(self._open(shard), self._sealing.tasks(tasks), notify=self._notify))


@contextmanager
def submit_databases(settings: Settings) -> Iterator[SubmitDatabases]:
    """Provide the databases of a command during a block."""
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        databases = SubmitDatabases(settings, loop, stack)
        try:
            yield databases
        finally:
            loop.run(stack.aclose())
