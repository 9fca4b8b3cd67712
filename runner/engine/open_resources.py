"""OpenResources: the resources of one runner, opened before its first task and closed after its last."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from runner.handlers.resources import RESOURCES, InvalidResource, Resource

log = logging.getLogger("runner")

T = TypeVar("T")
_END = object()


class OpenResources:
    """Opens and closes resources. Call `open` and `close` in one asyncio task, as cancel scopes require.

    Args:
        names: names of the resources to open, without those that they need.
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
        """Open the pending resources. A failure is logged; the resource and those that need it stay pending."""
        for resource in list(self._pending):
            needed = RESOURCES.parameters_of(resource.function)
            if any(name not in self.values for name in needed.values()):
                continue
            try:
                await self._open_one(resource, {parameter: self.values[name] for parameter, name in needed.items()})
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # a resource may even exit
                log.error("could not open resource %s (%s)", resource.name, resource.location, exc_info=error)
            else:
                self._pending.remove(resource)

    async def require(self, names: Iterable[str]) -> None:
        """Open resources and those that they need.

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
            except asyncio.CancelledError:
                log.error("resource %s (%s) did not close in time", resource.name, resource.location)
                raise
            except BaseException as error:
                log.error("could not close resource %s (%s)", resource.name, resource.location, exc_info=error)
        self.thread.close()


class SideThreads:
    """Threads for plain functions beside the tasks, started at the first call.

    Args:
        name: prefix of their names.
        size: maximum number of threads.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._pool: ThreadPoolExecutor | None = None
        self.busy = 0
        """Calls in progress: the process cannot exit normally before they end."""

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread; its exception is raised here."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)
        self.busy += 1  # a cancelled call continues and stays busy
        value, error = await asyncio.wrap_future(self._pool.submit(_contained, function, arguments))
        self.busy -= 1
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return] # of `function`

    def close(self) -> None:
        """Start no more calls."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _contained(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """Return an exception as a value: a future rejects StopIteration, and SystemExit would end the event loop."""
    try:
        return function(*arguments), None
    except BaseException as error:
        return None, error
