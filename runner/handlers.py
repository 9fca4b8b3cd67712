"""Handlers: registered functions, known by name, and the Context that they may ask for."""

import importlib
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import entry_points
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from runner.errors import (
    DuplicateHandler,
    HandlersNotFound,
    InvalidHandler,
    NoTransaction,
    RunnerError,
    UnknownHandler,
)
from runner.outcome import Dead, Done, Outcome, Retry, Snooze
from runner.returned import Returned
from runner.rules.batch import Batch
from runner.rules.rules import NO_RULES, Rules
from runner.signature import Signature

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

ENTRY_POINTS = "runner.handlers"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")

OnError: TypeAlias = (
    Literal["retry", "dead"] | type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], Outcome | None]
)
"""What an exception means: try again, give up, give up for these classes, or what a function says (None: try again)."""


class OwnTransaction(Protocol):
    """What `ctx.transaction()` returns: a transaction at whose commit the task is done.

    `async with` gives SQLAlchemy's AsyncConnection to async handlers, `with` its Connection to plain functions. The
    task's result is what stands in `result` at the end of the block.
    """

    result: Any

    async def __aenter__(self) -> "AsyncConnection": ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def __enter__(self) -> "Connection": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may know of the task that it executes.

    Args:
        id: the task's.
        key: its business key.
        attempt: this attempt's number, from 1.
        max_attempts: how many there can be.
        fence: of this claim; give it to downstream systems that can refuse older ones.
        deadline: when this attempt times out; None when it never does.
        logger: puts the task's id and handler into each line.
        stop: is set when the task was terminated or its time is up.
        batch: how the tasks that it waited for have ended; None when it waited for none.
        own: opens what `transaction` returns; None where no runner executes the task.
    """

    id: int
    key: str | None
    attempt: int
    max_attempts: int
    fence: int
    deadline: datetime | None
    logger: logging.LoggerAdapter[logging.Logger]
    stop: threading.Event = field(default_factory=threading.Event, repr=False)
    own: Callable[[], OwnTransaction] | None = field(default=None, repr=False)
    batch: Batch | None = None

    def transaction(self) -> OwnTransaction:
        """Open a transaction of the database that holds the tasks, at whose commit this task is done.

        What the handler writes in it and the end of the task are one: both or neither. When the task is not this
        runner's any more, both are rolled back. When it is left with an exception, both are too, and the attempt has
        failed as with any exception.

        Returns:
            For `async with` or `with`, giving SQLAlchemy's connection. Set its `result` for the task to have one.

        Raises:
            FencedOut: at the end of the block, when the task is not this runner's any more.
            AlreadyDone: when an earlier transaction has ended the task.

        Example:
            >>> async def pay(ctx: Context, order: int) -> None:
            ...     async with ctx.transaction() as tx:
            ...         await tx.execute(sa.text("UPDATE orders SET paid = true WHERE id = :id"), {"id": order})
        """
        if self.own is None:
            raise NoTransaction(id=self.id)
        return self.own()

    @property
    def cancelled(self) -> bool:
        """True when the task was terminated or its time is up: a plain function should look, and return soon."""
        return self.stop.is_set()


@dataclass(frozen=True, slots=True)
class Options:
    """What a handler gives to its tasks unless they say it themselves.

    Args:
        queue: the lane that people name, pause and limit.
        retry: the retry plan as text; None takes the runner's.
        timeout: seconds that an attempt may take; None for no limit.
        max_attempts: how often a task may be tried; None takes the runner's.
        priority: 1 to 9; None takes the table's.
        on_error: what an exception means.
        rules: what follows from a call's arguments: its unique key, its bucket.
    """

    queue: str | None = None
    retry: str | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    priority: int | None = None
    on_error: OnError = "retry"
    rules: Rules = NO_RULES


class Handler:
    """A function that executes tasks.

    Args:
        name: under which tasks name it; stored in every task, so do not change it lightly.
        function: async, or plain (it then runs in a thread).
        defaults: for its tasks.

    Raises:
        InvalidHandler: when the function cannot be called with named arguments.
    """

    def __init__(self, name: str, function: Callable[..., Any], defaults: Options | None = None) -> None:
        if not NAME.fullmatch(name):
            raise InvalidHandler(name=name, why="it may have letters, digits and _ . : / - and begins with no sign")
        self.name = name
        self.function = function
        _check(name, defaults or Options())
        self.defaults = defaults or Options()
        self.is_async = inspect.iscoroutinefunction(function)
        self.context = _context_parameter(function)
        self.signature = Signature(name, function, self.context)
        self.returned = Returned(function)
        self.defaults.rules.require(self.signature)

    @property
    def place(self) -> str:
        """Where the function is defined, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def bind(self, payload: str, context: Callable[[], Context]) -> dict[str, Any]:
        """The keyword arguments to call the function with.

        Raises:
            InvalidPayload: when the payload does not fit.
        """
        arguments = self.signature.decode(payload)
        if self.context is not None:
            arguments[self.context] = context()
        return arguments

    def judge(self, error: Exception) -> Outcome:
        """What an exception means for the task; the engine adds the failure."""
        rule = self.defaults.on_error
        match rule:
            case str():
                return Retry() if rule == "retry" else Dead()
            case type() | tuple():
                return Dead() if isinstance(error, rule) else Retry()
        decided = rule(error)
        return decided if isinstance(decided, (Done, Retry, Dead, Snooze)) else Retry()


def _check(name: str, options: Options) -> None:
    """Refuse what no row could hold: it would fail every claim that meets one of these tasks."""
    bounds = {"timeout": (0.001, 1e9), "max_attempts": (1, 1_000_000_000), "priority": (1, 9)}
    for option, (least, most) in bounds.items():
        value = getattr(options, option)
        if value is not None and not least <= value <= most:
            raise InvalidHandler(name=name, why=f"its {option} must be from {least:g} to {most:g}, and is {value:g}")


def _context_parameter(function: Callable[..., Any]) -> str | None:
    for item in inspect.signature(function).parameters.values():
        if item.annotation is Context or item.annotation in ("Context", "runner.Context"):
            return item.name
        if item.name == "ctx" and item.annotation is inspect.Parameter.empty:
            return item.name
    return None


class Registry(Mapping[str, Handler]):
    """Handlers by name; two with one name are refused."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Enter a handler.

        Raises:
            DuplicateHandler: when the name is taken by another function. The same one again (a module that is
                loaded anew) takes its old place.
        """
        known = self._handlers.get(handler.name)
        if known is not None and known.place != handler.place:
            raise DuplicateHandler(name=handler.name, first=known.place, second=handler.place)
        self._handlers[handler.name] = handler

    def find(self, name: str) -> Handler:
        """The handler of that name.

        Raises:
            UnknownHandler: when there is none.
        """
        try:
            return self._handlers[name]
        except KeyError:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise UnknownHandler(name=name, known=known) from None

    def __getitem__(self, name: str) -> Handler:
        return self._handlers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


REGISTRY = Registry()
"""Where @handler enters what it decorates."""


def discover(modules: Iterable[str] = (), *, installed: bool = True) -> Registry:
    """Load modules, so that their handlers enter the registry.

    Args:
        modules: dotted names.
        installed: also load what installed packages offer in the entry-point group `runner.handlers`.

    Raises:
        HandlersNotFound: when a module cannot be loaded.
        DuplicateHandler: when two handlers have one name.
        InvalidHandler: when no arguments of a handler can be made of a payload.
    """
    offered = [entry.value.partition(":")[0] for entry in entry_points(group=ENTRY_POINTS)] if installed else []
    for module in (*modules, *offered):
        try:
            importlib.import_module(module)
        except RunnerError:
            raise
        except Exception as error:
            raise HandlersNotFound(module=module, why=f"{type(error).__name__}: {error}") from error
    for handler in REGISTRY.values():
        handler.signature.require_types()  # before its tasks lose their attempts by it
    return REGISTRY
