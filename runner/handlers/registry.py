"""Handlers: registered functions, known by name, and the Context that they can receive."""

import inspect
import logging
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from math import inf
from typing import Any, Literal, Protocol

from runner.errors import (
    DuplicateHandler,
    InvalidHandler,
    InvalidTask,
    UnknownHandler,
)
from runner.handlers.call_options import NO_CALL_OPTIONS, CallOptions
from runner.handlers.chunk import ChunkOption, chunk_types
from runner.handlers.codecs import check_codec
from runner.handlers.context import Context, context_parameter
from runner.handlers.dependencies import refuse_declared_cycle, stored_declared
from runner.handlers.functions import require_executable, signature_of
from runner.handlers.options import TASK_OPTIONS
from runner.handlers.outcome_rules import OnError, OnNone, OutcomeRule
from runner.handlers.resources import RESOURCES, InvalidResource
from runner.handlers.signature import ChunkSignature, Returned, Signature, chunk_result
from runner.model.outcome import ON_ERROR, ON_NONE, Outcome

log = logging.getLogger("runner")

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")

OWN_EXECUTORS = ("async", "thread", "process")
"""The executors of a runner itself; any other name is that of an external one."""

EXECUTOR_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
"""Where the function of a handler runs: on the event loop, in a thread, or in a process."""

LEAST_MEMORY = 64 << 20
"""The smallest memory limit in bytes: less than this is too little for Python and the libraries of a runner."""

LIMITS_MEMORY = sys.platform == "linux"
"""True if the system enforces a memory limit. macOS accepts one and ignores it."""


MEMORY = re.compile(r"([0-9]+) ?([mg])(?:i?b)?")
UNITS = {"m": 20, "g": 30}


def parse_memory(name: str, limit: str | int | None) -> int | None:
    """Read a memory limit: bytes, or text with a binary unit as for containers.

    Raises:
        InvalidHandler: the text is not valid.
    """
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool)):
        return limit
    parts = MEMORY.fullmatch(limit.lower()) if isinstance(limit, str) else None
    if parts is None:
        why = f'memory_limit is {limit!r}: use a number of bytes, or text such as "512m" or "2g"'
        raise InvalidHandler(name=name, why=why)
    return int(parts[1]) << UNITS[parts[2]]


class BreakerRule(Protocol):
    """When a handler stops because its tasks fail; runner.policy.breaker.Breaker is one."""

    @property
    def columns(self) -> dict[str, Any]:
        """The definition, as the registry of handlers stores it."""

    def effect(self, outcome: Outcome, error: BaseException | None) -> Literal["", "counts", "opens"]:
        """Decide the effect of the end of an attempt, which an exception may have led to."""


@dataclass(frozen=True, slots=True)
class Options:
    """Defaults of a handler for its tasks.

    Args:
        queue: queue name.
        retry: retry plan as text; None for the runner's.
        timeout: seconds allowed for one attempt; None for the runner's, infinity for no limit.
        max_attempts: maximum number of attempts; None for the runner's.
        priority: 1 to 9; None for the table's.
        expires, hosts, hosts_for: see NewTask; None for no limit.
        on_error: the outcome of an exception or a timeout; None for the runner's.
        on_none: the outcome of None where a result is declared; None for the runner's.
        call_options: options from which each call derives values, such as its unique key and bucket.
        limits: its limits over all runners, by column of the registry of handlers.
        limit_per_runner: maximum number of its tasks in one runner; None for its slots.
        executor: where the function runs: one of OWN_EXECUTORS or the name of an external one; None for the event loop
            (async functions) or a thread (plain functions).
        memory_limit: maximum number of bytes of private memory of its process; None for no limit.
        breaker: when the handler stops because its tasks fail; None for never.
        codec: what encrypts its tasks; None for that of the settings.
        chunk: how many of its tasks one call executes; None for one.
    """

    queue: str | None = None
    retry: str | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    priority: int | None = None
    expires: float | None = None
    hosts: str | None = None
    hosts_for: float | None = None
    on_error: OnError | None = None
    on_none: OnNone | None = None
    call_options: CallOptions = NO_CALL_OPTIONS
    limits: Mapping[str, Any] = field(default_factory=dict)
    limit_per_runner: int | None = None
    executor: str | None = None
    memory_limit: int | None = None
    breaker: BreakerRule | None = None
    codec: str | None = None
    chunk: ChunkOption | None = None


class Handler:
    """A function that executes tasks.

    Args:
        name: unique name. Tasks store it, so renaming a handler orphans its tasks.
        function: async function, or plain function, which runs in a thread.
        defaults: defaults for its tasks.

    Raises:
        InvalidHandler: the name or a default is not valid, or the function is a class, a method of one or a generator,
            or has positional-only parameters.
    """

    is_declared = True
    """True if its code is here, so that its signature, limits and breaker replace those of its registry row."""

    def __init__(self, name: str, function: Callable[..., Any], defaults: Options | None = None) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            why = "a name has 1 to 200 letters, digits and _ . : / - and starts with a letter, a digit or _"
            raise InvalidHandler(name=name, why=why)
        require_executable(name, function)
        self.name = name
        self.function = function
        self.body = function
        """The function that a runner calls: `function`, or its wrapper by an application framework."""
        _check_defaults(name, defaults or Options())
        self.defaults = defaults or Options()
        self.is_async = inspect.iscoroutinefunction(function)
        _check_executor(name, self.is_async, self.defaults)
        check_codec(name, self.defaults.codec)
        self.in_process = self.defaults.executor == "process"
        """True if it runs in a worker process."""
        self.external = None if self.defaults.executor in (None, *OWN_EXECUTORS) else self.defaults.executor
        """The external executor that runs it; None for the runner itself."""
        self.context = context_parameter(function)
        self.chunk = chunk_types(name, function)
        """The parameter that receives a Chunk, and its types; None for a function that executes one task."""
        _check_chunk(self)
        RESOURCES.users.add(self)
        self.result_type = Returned(function) if self.chunk is None else chunk_result(self.chunk.result)
        self.defaults.call_options.require(self.signature)
        self.on_error = OutcomeRule.of_handler(name, ON_ERROR, self.defaults.on_error)
        self.on_none = OutcomeRule.of_handler(name, ON_NONE, self.defaults.on_none)

    @property
    def parents(self) -> tuple[str, ...]:
        """Names of the handlers whose tasks with the same key come before its own."""
        return tuple(stored_declared(self.defaults.call_options.after or ()))

    def require_parents(self, handlers: Mapping[str, "Handler"]) -> None:
        """Check that the handlers exist that it runs after.

        Raises:
            InvalidHandler: one is not among the loaded handlers; its tasks would wait for ever.
        """
        for name in self.parents:
            if name not in handlers:
                similar = get_close_matches(name, handlers, 1)
                hint = f"did you mean {similar[0]!r}?" if similar else "load its module too"
                raise InvalidHandler(name=self.name, why=f"it runs after {name!r}, which is not loaded: {hint}")

    @property
    def location(self) -> str:
        """Module and qualified name of the function, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @cached_property
    def submit_defaults(self) -> Mapping[str, Any]:
        """The defaults that a submit writes into the row; a claim takes the others."""
        names = [option.name for option in TASK_OPTIONS if option.default == "submit"]
        return {name: getattr(self.defaults, name) for name in names}

    @cached_property
    def signature(self) -> Signature:
        """The parameters of a call: those of the function without the Context and the resources, or of its Chunk."""
        if self.chunk is not None:
            return ChunkSignature(self.name, self.chunk.payload)
        context = () if self.context is None else (self.context,)
        return Signature(self.name, self.function, (*context, *self.resources))

    @cached_property
    def resources(self) -> Mapping[str, str]:
        """The name of the resource for each parameter that receives one."""
        return {key: name for key, name in RESOURCES.parameters_of(self.function).items() if key != self.context}

    def forget_parameters(self) -> None:
        """Read the parameters again, after the registration of a resource: the handler may be defined before it."""
        for name in ("signature", "resources"):
            vars(self).pop(name, None)

    def require(self) -> None:
        """Check the parameters. Call it once all modules are loaded.

        Raises:
            InvalidHandler: an argument cannot be read from JSON, or a parameter has no resource.
        """
        self.require_resources()
        self.signature.require_types()
        if self.on_none is not None and not self.result_type.excludes_none:
            why = "on_none needs a declared result: annotate the return value of the function with a type without None"
            raise InvalidHandler(name=self.name, why=why)
        apart = self.in_process or self.external is not None
        if apart and (self.function.__module__ == "__main__" or "<locals>" in self.function.__qualname__):
            where = "the program that starts" if self.function.__module__ == "__main__" else "a function"
            why = "needs a function that another process can import: define it in a module, not in"
            raise InvalidHandler(name=self.name, why=f'executor="{self.defaults.executor}" {why} {where}')

    def require_resources(self) -> None:
        """Check that each injected parameter has a resource.

        Raises:
            InvalidHandler: a parameter has none.
        """
        missing = [parameter for parameter, name in self.resources.items() if not name]
        if missing:
            why = f"its parameter {missing[0]} is injected, but no @resource has its type or name"
            raise InvalidHandler(name=self.name, why=why)
        if self.chunk is not None:
            received = {self.chunk.parameter, *self.resources}
            others = [name for name in signature_of(self.function).parameters if name not in received]
            if others:
                why = f"its parameter {others[0]} receives nothing: a chunk handler takes its Chunk and resources"
                raise InvalidHandler(name=self.name, why=why)

    def injections(self, context: Callable[[], Context], resources: Mapping[str, Any] = {}) -> dict[str, Any]:
        """Return the keyword arguments of the function that are not part of a call: the Context and the resources.

        Args:
            context: makes the Context.
            resources: the open resources by name.

        Raises:
            InvalidResource: a resource of the function is not open.
        """
        arguments: dict[str, Any] = {} if self.context is None else {self.context: context()}
        for parameter, name in self.resources.items():
            if name not in resources:
                raise InvalidResource(name=name or parameter, why=f"it is not open, and handler {self.name} needs it")
            arguments[parameter] = resources[name]
        return arguments


def _check_defaults(name: str, options: Options) -> None:
    """Reject values that a row cannot hold: they would fail every claim of these tasks."""
    for option in TASK_OPTIONS:
        if option.default in ("submit", "claim") and option.check is not None:
            value = getattr(options, option.name)
            try:
                if value is not None and value != inf:
                    option.check(option.name, value)
            except InvalidTask as error:
                raise InvalidHandler(name=name, why=f"{option.name} is {value!r}: {error.fields['why']}") from None


def _check_executor(name: str, is_async: bool, options: Options) -> None:
    """Reject an executor that the function cannot use."""
    executor, limit = options.executor, options.memory_limit
    why = None
    if executor is not None and not (isinstance(executor, str) and EXECUTOR_NAME.fullmatch(executor)):
        why = f'executor is {executor!r}: use "async", "thread", "process" or a name of the setting executors'
    elif executor == "async" and not is_async:
        why = 'executor="async" needs an async function: define it with async def'
    elif executor == "thread" and is_async:
        why = 'executor="thread" needs a plain function: define it without async'
    elif limit is not None and executor != "process":
        why = 'memory_limit needs executor="process": other executors share the memory of one process'
    elif limit is not None and limit < LEAST_MEMORY:
        why = f"memory_limit is {limit:,} bytes: Python and this package need {LEAST_MEMORY:,} (64m)"
    if why is not None:
        raise InvalidHandler(name=name, why=why)


def _check_chunk(handler: Handler) -> None:
    """Reject a chunk that does not fit the function or its executor."""
    options, chunk, why = handler.defaults, handler.chunk, None
    if options.chunk is None and chunk is not None:
        why = f"its parameter {chunk.parameter} is a Chunk: set its maximum number of tasks, such as chunk=100"
    elif options.chunk is not None and chunk is None:
        why = "chunk needs a function with a Chunk, such as def send(chunk: Chunk[Mail])"
    elif chunk is not None and handler.context is not None:
        why = f"its parameter {handler.context} is a Context: in a chunk, each task has its own, task.ctx"
    elif chunk is not None and handler.external is not None:
        why = f"executor={options.executor!r} executes single tasks: a chunk runs in the runner or in its processes"
    if why is not None:
        raise InvalidHandler(name=handler.name, why=why)


class Registry(Mapping[str, Handler]):
    """Handlers by name; names are unique."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._wrap: Callable[[Handler], Callable[..., Any]] | None = None
        self.prepare: str | None = None
        """The function that loads the framework in a worker process, as module:function."""

    def wrap(self, wrapper: Callable[[Handler], Callable[..., Any]] | None, prepare: str | None = None) -> None:
        """Let an application framework wrap the function of each handler, registered before or after this call.

        Args:
            wrapper: returns the function that a runner calls in the place of the handler's own; None for none.
            prepare: function that a worker process calls before it imports a handler, as module:function.
        """
        self._wrap, self.prepare = wrapper, prepare
        for handler in self._handlers.values():
            handler.body = wrapper(handler) if wrapper else handler.function

    def add(self, handler: Handler) -> None:
        """Register a handler. The same function again, from a reloaded module, replaces itself.

        Raises:
            DuplicateHandler: another function has this name.
        """
        existing = self._handlers.get(handler.name)
        if existing is not None and existing.location != handler.location:
            raise DuplicateHandler(name=handler.name, first=existing.location, second=handler.location)
        if handler.parents:
            parents = {name: other.parents for name, other in self._handlers.items()}
            refuse_declared_cycle(handler.name, parents | {handler.name: handler.parents})
        if self._wrap is not None:
            handler.body = self._wrap(handler)
        self._handlers[handler.name] = handler

    def find(self, name: str) -> Handler:
        """Return the handler of a name.

        Raises:
            UnknownHandler: no handler has this name.
        """
        try:
            return self._handlers[name]
        except KeyError:
            names = ", ".join(sorted(self._handlers)) or "none"
            raise UnknownHandler(name=name, known=names) from None

    def __getitem__(self, name: str) -> Handler:
        return self._handlers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


REGISTRY = Registry()
"""The registry that @handler adds to."""


def process_slots(processes: int | None, handlers: Mapping[str, Handler]) -> int:
    """Return the number of worker processes, and warn of memory limits without effect.

    Args:
        processes: the setting; None for one per processor.
        handlers: the handlers of a runner; without one that needs a process, the number is 0.
    """
    if not any(handler.in_process for handler in handlers.values()):
        return 0
    _warn_of_memory_limits(handlers)
    return processes or os.cpu_count() or 1


def _warn_of_memory_limits(handlers: Mapping[str, Handler]) -> None:
    """Name the handlers whose memory limit has no effect on this system."""
    names = sorted(name for name, handler in handlers.items() if handler.defaults.memory_limit is not None)
    if names and not LIMITS_MEMORY:
        log.warning(
            "memory_limit has no effect on %s, only on Linux: %s may use all memory; their timeout and the kill of "
            "their processes work as on Linux",
            platform.system(),
            ", ".join(names),
        )
