"""Shards: the runners of one process, one per shard, with one set of slots."""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from runner.engine.events import AttemptsEnded, RoomFreed, TasksClaimed
from runner.engine.hosting.shared_resources import ShardParts, ShardResources, SharedResources
from runner.engine.runner import NO_EXECUTORS, Engine, own_parts
from runner.engine.shared_slots import SharedSlots, take_part
from runner.errors import InvalidSettings, StoreError
from runner.event_wait import within
from runner.handlers.registry import Handler
from runner.model.shard import CURRENT_SHARD
from runner.policy.executor_spec import external_executors
from runner.settings import Settings
from runner.settings.shards import shard_settings

if TYPE_CHECKING:
    from runner.engine.serving.served_database import ServedDatabase

log = logging.getLogger("runner")

RESTART = 30.0
"""Seconds after which the runner of a shard starts again whose database refused it for good."""


class ShardEngines:
    """The runners of all shards. A shard that does not answer delays no other one.

    Args:
        handlers: the handlers, by name; the settings select from them.
        resources: objects to use instead of opening a resource, by name.
        pulled: returns the part of a shard that hands its tasks to executors that pull them over HTTP; None runs them
            here.

    Raises:
        InvalidSettings: a shard has no profile, or a setting does not work with shards.
        InvalidResource: a resource is missing, or resources need each other.
    """

    def __init__(
        self,
        settings: Settings,
        handlers: Mapping[str, Handler],
        pulled: "Callable[[str], ServedDatabase] | None" = None,
        resources: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.settings, self._handlers, replacements = own_parts(settings, handlers, resources)
        if pulled is None and external_executors(settings.executors, self._handlers, NO_EXECUTORS):
            raise InvalidSettings(where=settings.origins.of("executors"), why=NO_EXTERNAL)
        self.resources = SharedResources(self._handlers, replacements)
        self._slots, self._pulled = SharedSlots(), pulled
        self._own = shard_settings(self.settings)
        self._idle_since: dict[str, float] = {}
        self._busy_at = -inf
        self._stop = asyncio.Event()
        self._refused: dict[str, StoreError] = {}
        self.on_new: Callable[[Engine], object] = lambda _: None
        """Called with a runner that takes the place of one whose database refused it."""
        self._by_shard = {name: self._make(name) for name in self._own}

    async def first_try(self) -> None:
        """Wait until one of the runners has tried to register."""
        tries = [asyncio.ensure_future(part.first_try()) for part in self.parts]
        await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
        for each in tries:
            each.cancel()

    @property
    def parts(self) -> Sequence[Engine]:
        """The runner of each shard."""
        return list(self._by_shard.values())

    @property
    def by_shard(self) -> Mapping[str, Engine]:
        """The runner of each shard, by its name."""
        return self._by_shard

    def _make(self, name: str) -> Engine:
        context = contextvars.copy_context()
        context.run(CURRENT_SHARD.set, name)
        settings = self._own[name]
        settings = settings.model_copy(update={"prefetch": settings.prefetch // len(self._own)})
        parts = ShardParts(
            partial(self._slots.make, name),
            partial(ShardResources, self.resources),
            partial(self._note_idle, name),
            self._may_claim_suspects,
        )
        pulled = None if self._pulled is None else self._pulled(name)
        engine = context.run(Engine, settings, self._handlers, pulled=pulled, shard=parts)
        wake = partial(engine.events.publish, RoomFreed())

        def on_room() -> None:
            engine.worker.start_soon()
            wake()

        take_part(engine.worker.in_flight, engine.claimer.may_claim, engine.worker.may_start, on_room)
        engine.events.subscribe(TasksClaimed, self._note_work)
        engine.events.subscribe(AttemptsEnded, self._note_work)
        return engine

    def _may_claim_suspects(self) -> bool:
        """False until each shard has rescued: a suspect of one that kills each process would prevent every rescue."""
        return not any(engine.must_rescue for engine in self.parts)

    def _note_work(self, event: TasksClaimed | AttemptsEnded) -> None:
        if not isinstance(event, TasksClaimed) or event.tasks:  # idle shards claim nothing again and again
            self._busy_at = time.monotonic()

    def _note_idle(self, name: str, began: float) -> None:
        """Stop when no shard has anything to do: the last handlers may have submitted to any of them."""
        self._idle_since[name] = began
        if len(self._idle_since) == len(self._own) and min(self._idle_since.values()) > self._busy_at:
            self.stop()

    def stop(self) -> None:
        """Drain all shards."""
        self._stop.set()
        for engine in self.parts:
            engine.stop()

    async def stop_requested(self) -> None:
        """Wait until `stop` is called."""
        await self._stop.wait()

    @property
    def stopping(self) -> bool:
        """True after `stop` was called."""
        return self._stop.is_set()

    async def run(self, *, until_idle: bool = False) -> bool:
        """Claim and execute tasks of all shards until `stop`.

        Args:
            until_idle: stop when nothing runs, is due or will be retried in any shard.

        Returns:
            True if every started task has ended and every outcome is written.

        Raises:
            StoreError: the databases of all shards refuse this runner permanently.
        """
        runs = [asyncio.ensure_future(self._keep(name, until_idle)) for name in self._own]
        try:
            return all(await asyncio.gather(*runs))
        finally:
            self.stop()
            await asyncio.wait(runs)
            await self.resources.close()

    async def _keep(self, name: str, until_idle: bool) -> bool:
        """Run one shard, and begin again if its database refuses the runner."""
        while True:
            engine = self._by_shard[name]
            context = contextvars.copy_context()
            context.run(CURRENT_SHARD.set, name)
            try:
                clean = await asyncio.create_task(engine.run(until_idle=until_idle), context=context)
            except StoreError as error:
                self._refused[name] = error
                if len(self._refused) == len(self._own) or self.stopping:
                    raise
                log.error("shard %s: %s; its runner starts again in %.0f s, the others go on", name, error, RESTART)
                if await within(self._stop, RESTART):
                    return False
                self._by_shard[name] = self._make(name)
                self.on_new(self._by_shard[name])
                self._refused.pop(name, None)
            else:
                self.stop()  # an operator drains one of them, and means the process
                return clean


NO_EXTERNAL = "external executors do not serve a profile with shards; run a runner for each shard, with --profile"
