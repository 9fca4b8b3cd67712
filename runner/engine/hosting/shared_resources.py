"""Shared resources: those of a process whose runners serve several shards, opened once."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from runner.engine.events import Events, HandlersReady
from runner.engine.hosting.hooks import Hooks
from runner.engine.hosting.resources import CLOSE_LIMIT, RunnerResources
from runner.engine.in_flight import SlotsMaker
from runner.handlers.registry import Handler


class SharedResources(RunnerResources):
    """The resources of all shards. The first runner that starts opens them.

    Raises:
        InvalidResource: a parameter is not a resource, or resources need each other.
    """

    def __init__(self, handlers: Mapping[str, Handler], replacements: Mapping[str, Any]) -> None:
        self.ready = Events()
        """Has the event that handlers are ready."""
        super().__init__(handlers, self.ready, replacements)
        self._opens = False

    def start(self) -> None:
        """Open the resources in the background, once."""
        if not self._opens:
            self._opens = True
            super().start()

    @property
    def started(self) -> bool:
        """True when the resources have been opened, as far as they could be."""
        return self._started


class ShardResources(RunnerResources):
    """The resources of a process, for the runner of one shard, and its own hooks.

    Args:
        shared: the resources of the process, which has the connections.
        events: those of the runner.
    """

    def __init__(self, shared: SharedResources, events: Events) -> None:
        # Not the constructor of the base: all but the hooks is shared.
        self._shared, self._events = shared, events
        self.opened, self.middleware, self.claimable = shared.opened, shared.middleware, shared.claimable
        self.hooks = Hooks(shared.opened.values, events)

    @property
    def close_limit(self) -> float:
        """See RunnerResources."""
        return self._shared.close_limit

    @property
    def complete(self) -> bool:
        """See RunnerResources."""
        return self._shared.complete

    def start(self) -> None:
        """Open the resources of the process, unless another runner has done it."""
        is_open = self._shared.started
        self._shared.ready.subscribe(HandlersReady, self._events.publish)
        self._shared.start()
        if is_open:
            self._events.publish(HandlersReady())

    async def close(self, limit: float = CLOSE_LIMIT) -> None:
        """Finish the hooks; the process closes the resources when the runners of all shards have ended."""
        await self.hooks.drain(limit)
        self.hooks.threads.close()


class ShardParts(NamedTuple):
    """What the runners of the shards of a process have in common.

    Args:
        slots: makes the pools of a runner.
        resources: makes the resources of a runner with its events.
        on_idle: called with the start of a look, in monotonic seconds, that found nothing to do.
        may_claim_suspects: returns True unless a shard must rescue the tasks of lost runners first.
    """

    slots: SlotsMaker
    resources: Callable[[Events], RunnerResources]
    on_idle: Callable[[float], None]
    may_claim_suspects: Callable[[], bool]
