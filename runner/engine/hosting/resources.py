"""The resources of a runner: opened before its first task, closed after its last."""

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Any

from runner.engine.events import Events, HandlersReady
from runner.engine.hosting.hooks import Hooks, Middleware, SideThreads
from runner.event_wait import within
from runner.handlers.hooks import LIFE_CYCLE
from runner.handlers.registry import Handler
from runner.handlers.resources import RESOURCES, InvalidResource, Resource
from runner.own_code import is_cancelled
from runner.policy.retry import BackOff

log = logging.getLogger("runner")

_END = object()


CLOSE_LIMIT = 5.0
"""Seconds for hooks, on_stop and the closing of the resources."""


class OpenResources:
    """Opens and closes resources. Call `open` and `close` in one asyncio task, as cancel scopes require.

    Args:
        names: names of the resources to open; the resources that they need follow from them.
        replacements: objects to use instead of opening the resource with their name.

    Raises:
        InvalidResource: resources need each other, or a parameter is not a resource.
    """

    def __init__(self, names: Iterable[str], replacements: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = dict(replacements or {})
        """The open resources by name."""
        order = RESOURCES.in_order(name for name in names if name not in self.values)
        self._pending = [resource for resource in order if resource.name not in self.values]
        self._open: list[tuple[Resource[Any], Any]] = []
        self.thread = SideThreads("runner-resources", 1)
        """The thread of plain functions: all resources use the same one."""

    @property
    def pending(self) -> list[str]:
        """The names of the resources that are not open yet."""
        return [resource.name for resource in self._pending]

    async def open(self) -> None:
        """Open the pending resources. A failure is logged; the resource and its dependents stay pending."""
        for resource in list(self._pending):
            needed = RESOURCES.parameters_of(resource.function)
            if any(name not in self.values for name in needed.values()):
                continue
            try:
                await self._open_one(resource, {parameter: self.values[name] for parameter, name in needed.items()})
            except BaseException as error:  # a resource may even exit
                if is_cancelled(error):
                    raise
                log.error("could not open resource %s (%s)", resource.name, resource.location, exc_info=error)
            else:
                self._pending.remove(resource)

    async def require(self, names: Iterable[str]) -> None:
        """Open resources after the resources that they need.

        Raises:
            BaseException: a resource could not be opened.
        """
        for resource in RESOURCES.in_order(name for name in names if name not in self.values):
            if resource.name not in self.values:
                needed = RESOURCES.parameters_of(resource.function)
                await self._open_one(resource, {parameter: self.values[name] for parameter, name in needed.items()})

    async def _open_one(self, resource: Resource[Any], arguments: Mapping[str, Any]) -> None:
        generator: Any = resource.function(**arguments)
        value = await (anext(generator, _END) if resource.is_async else self.thread.call(next, generator, _END))
        if value is _END:
            raise InvalidResource(name=resource.name, why="its function ended without a yield")
        self._open.append((resource, generator))
        self.values[resource.name] = value

    async def close(self) -> None:
        """Close the open resources, the last one first. A failure is logged and stops no other."""
        while self._open:
            resource, generator = self._open.pop()
            self.values.pop(resource.name, None)
            try:
                more = await (anext(generator, _END) if resource.is_async else self.thread.call(next, generator, _END))
                if more is not _END:
                    log.error("resource %s (%s) yields twice: it must yield once", resource.name, resource.location)
            except BaseException as error:
                if is_cancelled(error):
                    log.error("resource %s (%s) did not close in time", resource.name, resource.location)
                    raise
                log.error("could not close resource %s (%s)", resource.name, resource.location, exc_info=error)
        self.thread.close()


class RunnerResources:
    """The resources and the registered functions of one runner.

    Args:
        events: receives that `claimable` has more handlers, and has the ends of attempts for the hooks.
        replacements: objects to use instead of opening the resource with their name.

    Raises:
        InvalidResource: a parameter is not a resource, or resources need each other.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        events: Events,
        replacements: Mapping[str, Any] | None = None,
    ) -> None:
        self._handlers = handlers
        self._events = events
        for handler in handlers.values():
            if "" in handler.resources.values():
                handler.require()
        names = {name for handler in handlers.values() for name in _needs(handler)} | LIFE_CYCLE.needs()
        self.opened = OpenResources(sorted(names), replacements)
        self.hooks = Hooks(self.opened.values, events)
        self.middleware = Middleware(LIFE_CYCLE.of("around_execute"), self.opened.values)
        self.claimable: dict[str, Handler] = {}
        """The handlers whose resources are open."""
        self._begins = bool(self.opened.pending or LIFE_CYCLE.of("on_start") or LIFE_CYCLE.of("on_stop"))
        self._closing = asyncio.Event()
        self._started = False
        self._life: asyncio.Task[None] | None = None
        self._update()

    @property
    def close_limit(self) -> float:
        """Maximum time in seconds that `close` takes; 0 if nothing is registered."""
        return CLOSE_LIMIT if self._begins or self.hooks.has_listeners else 0.0

    @property
    def complete(self) -> bool:
        """True if every handler can run."""
        return self._started and not self.opened.pending

    @property
    def stuck(self) -> int:
        """Threads that still run a function of a resource or a hook."""
        return self.opened.thread.busy + self.hooks.threads.busy

    def start(self) -> None:
        """Open the resources in the background."""
        if self._begins:
            self._life = asyncio.ensure_future(self._live())
        else:
            self._started = True
            self._events.publish(HandlersReady())

    async def close(self, limit: float = CLOSE_LIMIT) -> None:
        """Finish the hooks, call on_stop and close the resources.

        Args:
            limit: maximum time in seconds; then everything left is cancelled.
        """
        self._closing.set()
        if self._life is None:
            await self.hooks.drain(limit)
        else:
            if not self._started:
                self._life.cancel()
            _, late = await asyncio.wait([self._life], timeout=limit)
            if late:
                self._life.cancel()
                await asyncio.wait([self._life], timeout=1.0)
        self.hooks.threads.close()

    async def _live(self) -> None:
        """Open and close in one asyncio task, as cancel scopes require."""
        try:
            await self.opened.open()
            await self.hooks.call_all("on_start")
            self._started = True
            self._update()
            self._events.publish(HandlersReady())
            await self._open_rest()
            await self._closing.wait()
        finally:
            await self.hooks.drain(CLOSE_LIMIT)
            if self._started:
                await self.hooks.call_all("on_stop")
            await self.opened.close()

    async def _open_rest(self) -> None:
        """Retry the resources that could not be opened."""
        back_off = BackOff()
        while (pending := self.opened.pending) and not self._closing.is_set():
            wait = back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
            waiting = ", ".join(sorted(self._handlers.keys() - self.claimable.keys())) or "none"
            log.warning(
                "resources not open: %s; retrying in %.1f s; waiting handlers: %s", ", ".join(pending), wait, waiting
            )
            if await within(self._closing, wait):
                return
            await self.opened.open()
            if len(self.opened.pending) < len(pending):
                self._update()
                self._events.publish(HandlersReady())

    def _update(self) -> None:
        ready = self.opened.values.keys()
        self.claimable |= {name: handler for name, handler in self._handlers.items() if ready >= _needs(handler)}


def _needs(handler: Handler) -> set[str]:
    """The resources of a handler in this process. A worker process opens its own."""
    return set() if handler.in_process else set(handler.resources.values())
