"""Resources: objects that a runner opens once and passes to functions by parameter, such as a connection pool."""

import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, get_args
from weakref import WeakSet

from runner.errors import ConfigurationError
from runner.handlers.functions import RETURN, readable_hints, signature_of

T = TypeVar("T")


class InvalidResource(ConfigurationError):
    """Resource {name!r} cannot be used: {why}."""


class _Injected:
    """The type of `injected`."""

    __name__ = "injected"

    def __repr__(self) -> str:
        return "injected"


injected: Any = _Injected()
"""The default of a parameter that receives a resource, so that type checkers accept calls without it."""


class Resource(Generic[T]):
    """An object that each runner opens once.

    Args:
        function: a generator function, async or plain, that yields the object once and then closes it. Its parameters
            receive other resources. A plain one runs in a thread.

    Raises:
        InvalidResource: the function is not a generator function.
    """

    def __init__(self, function: Callable[..., AsyncIterator[T] | Iterator[T]]) -> None:
        self.name = getattr(function, "__name__", repr(function))
        self.function = function
        self.is_async = inspect.isasyncgenfunction(function)
        if not self.is_async and not inspect.isgeneratorfunction(function):
            raise InvalidResource(name=self.name, why="its function must yield the object: use yield, not return")

    @cached_property
    def type(self) -> Any:
        """The class of the object by the return annotation; None without a readable annotation."""
        return next(iter(get_args(readable_hints(self.function).get(RETURN))), None)

    @property
    def location(self) -> str:
        """Module and qualified name of the function, for messages."""
        return location_of(self.function)

    def __repr__(self) -> str:
        return f"<resource {self.name!r}: {self.location}>"


class ResourceUser(Protocol):
    """Reads the parameters of a function and keeps the result."""

    def forget_parameters(self) -> None:
        """Read the parameters again when they are needed."""


class Resources(Mapping[str, Resource[Any]]):
    """Resources by name."""

    def __init__(self) -> None:
        self._resources: dict[str, Resource[Any]] = {}
        self.users = WeakSet[ResourceUser]()
        """Objects that have read parameters. After each registration a function may have other resources among them."""

    def add(self, resource: Resource[Any]) -> None:
        """Register a resource. The same function again, from a reloaded module, replaces itself.

        Raises:
            InvalidResource: another function has this name.
        """
        existing = self._resources.get(resource.name)
        if existing is not None and existing.location != resource.location:
            why = f"{existing.location} and {resource.location} define it: rename one of them"
            raise InvalidResource(name=resource.name, why=why)
        self._resources[resource.name] = resource
        self._changed()

    def remove(self, name: str) -> None:
        """Remove a resource, for tests."""
        del self._resources[name]
        self._changed()

    def _changed(self) -> None:
        for user in list(self.users):
            user.forget_parameters()

    def parameters_of(self, function: Callable[..., Any]) -> dict[str, str]:
        """Find the parameters of a function that receive a resource.

        A parameter receives the resource with its name and type. If no resource has its name, it receives the only
        resource of its type, unless the type is a built-in one, such as str or dict.

        Returns:
            The name of the resource for each parameter; "" for a parameter with the default `injected` and no resource.

        Raises:
            InvalidResource: several resources have the type of a parameter, and none has its name.
        """
        parameters = signature_of(function).parameters.values()
        if not self._resources and all(item.default is not injected for item in parameters):
            return {}
        hints = readable_hints(function)
        names: dict[str, str] = {}
        for item in parameters:
            name = self._match(function, item.name, hints.get(item.name, Any))
            if name is not None or item.default is injected:
                names[item.name] = name or ""
        return names

    def _match(self, function: Callable[..., Any], name: str, annotation: Any) -> str | None:
        namesake = self._resources.get(name)
        if namesake is not None and (annotation is Any or namesake.type in (None, annotation)):
            return name
        if not isinstance(annotation, type) or annotation.__module__ == "builtins":
            return None
        names = [resource.name for resource in self._resources.values() if resource.type == annotation]
        if len(names) > 1:
            why = f"{location_of(function)} may mean {' or '.join(sorted(names))}: name its parameter after one of them"
            raise InvalidResource(name=annotation.__qualname__, why=why)
        return names[0] if names else None

    def in_order(self, names: Iterable[str]) -> list[Resource[Any]]:
        """Return resources with the ones that they need, in the order of opening.

        Raises:
            InvalidResource: resources need each other, or a parameter is not a resource.
        """
        order: dict[str, Resource[Any]] = {}
        for name in names:
            self._visit(name, order, ())
        return list(order.values())

    def _visit(self, name: str, order: dict[str, Resource[Any]], path: tuple[str, ...]) -> None:
        if name in order:
            return
        if name in path:
            raise InvalidResource(name=name, why=f"it needs itself: {' -> '.join((*path, name))}")
        resource = self._resources[name]
        for needed in self.require(resource.function).values():
            self._visit(needed, order, (*path, name))
        order[name] = resource

    def require(self, function: Callable[..., Any], others: int = 0) -> dict[str, str]:
        """Find the resources for all parameters of a function.

        Args:
            function: a function that a runner calls.
            others: maximum number of parameters that receive something else; these come first.

        Raises:
            InvalidResource: a parameter is not a resource.
        """
        names = self.parameters_of(function)
        missing = free_parameters(function, names)[others:]
        missing += [parameter for parameter, name in names.items() if not name]
        if missing:
            raise InvalidResource(name=missing[0], why=f"{location_of(function)} needs it, but no @resource defines it")
        return names

    def __getitem__(self, name: str) -> Resource[Any]:
        return self._resources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._resources)

    def __len__(self) -> int:
        return len(self._resources)


RESOURCES = Resources()
"""The resources that @resource adds to."""


def resource(function: Callable[..., AsyncIterator[T] | Iterator[T]]) -> Resource[T]:
    """Register a resource: an object that each runner opens once, before its first task, and closes after its last.

    A handler receives it through a parameter of the resource's type, or of its name without an annotation. Give the
    parameter the default `injected`, so that type checkers accept a submit without it.

    Args:
        function: a generator function, async or plain, that yields the object once.

    Raises:
        InvalidResource: the function is not a generator function, or another resource has this name.

    Examples:
        >>> @resource
        ... async def http() -> AsyncIterator[httpx.AsyncClient]:
        ...     async with httpx.AsyncClient() as client:
        ...         yield client
        >>> @handler("shop.ping")
        ... async def ping(url: str, http: httpx.AsyncClient = injected) -> int:
        ...     return (await http.get(url)).status_code
    """
    registered = Resource(function)
    RESOURCES.add(registered)
    return registered


def location_of(function: Callable[..., Any]) -> str:
    """Return the module and the qualified name of a function."""
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def free_parameters(function: Callable[..., Any], names: Collection[str]) -> list[str]:
    """Return the parameters of a function that need a value and are not among `names`."""
    parameters = signature_of(function).parameters.values()
    return [item.name for item in parameters if item.default is inspect.Parameter.empty and item.name not in names]
