"""Registering a handler with @handler, and submitting tasks for it."""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from runner.client.results import TaskHandle, handle
from runner.client.submission import Submission, Submitter
from runner.errors import InvalidEdit, InvalidHandler
from runner.handlers.call_options import CallNumber, CallOptions, CallText, Duplicate, require_call_text
from runner.handlers.chunk import Chunk, read_chunk
from runner.handlers.context import Context
from runner.handlers.dependencies import Parent, ParentHandler, declared
from runner.handlers.foreign_words import NAMELESS, converted_call, converts_options
from runner.handlers.functions import signature_of
from runner.handlers.options import CALL_OPTIONS, read_options
from runner.handlers.outcome_rules import OnError, OnNone
from runner.handlers.registry import REGISTRY, Handler, Options, parse_memory
from runner.model.duration import parse_duration
from runner.model.outcome import Delay
from runner.model.task import NewTask, OnFailure
from runner.policy.breaker import Breaker, read_breaker
from runner.policy.retry import load_retry
from runner.text.hosts import host_list

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
"""Type of the function, for direct calls; unlike P, with the Context."""
R = TypeVar("R")
"""Type of the task's result."""
T = TypeVar("T")
"""Type of the arguments of one task of a chunk."""


FUNCTION_ATTRIBUTES = (
    *("__module__", "__name__", "__qualname__", "__doc__", "__annotate__", "__annotations__"),
    *("__code__", "__defaults__", "__kwdefaults__"),  # with these, inspect.iscoroutinefunction takes it for a function
)
"""Attributes of a function that its handler takes over."""


class TaskHandler(Handler, Submitter[P, R], Generic[P, F, R]):
    """A decorated handler. Call it to run the function directly; submit it to run it as a task.

    It has the name, module, documentation, signature and kind (async or plain) of its function, which is also its
    `__wrapped__`.
    """

    def __init__(self, name: str, function: F, defaults: Options | None = None) -> None:
        super().__init__(name, function, defaults)
        for attribute in FUNCTION_ATTRIBUTES:
            with suppress(AttributeError, NameError):  # Python 3.14 evaluates the annotations when they are first read
                setattr(self, attribute, getattr(function, attribute))
        self.__wrapped__ = function

    if TYPE_CHECKING:

        @property
        def __call__(self) -> F:
            """Call the function directly, without a task."""
            ...

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call the function directly, without a task."""
            return self.function(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            """Name the call to write for one of another task system, such as `delay`."""
            raise AttributeError(converted_call(vars(self).get("name", ""), name))

    def __reduce__(self) -> str:
        """Copy and pickle by name, as a function."""
        return str(vars(self).get("__qualname__", self.name))

    def __repr__(self) -> str:
        kind = "async " if self.is_async else ""
        return f"<handler {self.name!r}: {kind}{self.location}{signature_of(self.function)}>"

    @cached_property
    def _submission(self) -> Submission[P, R]:  # type: ignore[override] # read only
        """The submission without options, kept because making one takes as long as the rest of a submit."""
        return self.options()

    def task_handle(self, id: int | str) -> TaskHandle[R]:
        """Return the handle of an existing task, with the type of its result.

        Args:
            id: the id; with shards, the shard and the id, such as "eu:17".

        Raises:
            InvalidTask: `id` is not a whole number.
        """
        return handle(id)

    @converts_options
    def options(  # noqa: PLR0913 - one argument per task option
        self,
        *,
        run_at: datetime | None = None,
        delay: Delay | None = None,
        expires: Delay | None = None,
        expires_at: datetime | None = None,
        priority: int | None = None,
        key: str | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        retry: str | None = None,
        timeout: Delay | None = None,
        tags: Iterable[str] = (),
        headers: Mapping[str, str] | None = None,
        bucket: CallNumber | None = None,
        tenant: CallText | None = None,
        hosts: str | Iterable[str] | None = None,
        hosts_for: Delay | None = None,
        route: CallText | None = None,
        unique_key: CallText | None = None,
        unique: str | None = None,
        on_duplicate: Duplicate | None = None,
        order_key: CallText | None = None,
        order_on_failure: OnFailure | None = None,
        after: Parent | Iterable[Parent] = (),
        tx: object = None,
    ) -> Submission[P, R]:
        """Set options for tasks, instead of the handler's defaults.

        Args:
            run_at: earliest time of execution, with a time zone.
            delay: shortest time from now to the execution: text ("10m"), seconds or timedelta.
            expires: longest time from the due time to the start of an attempt: text ("10m"), seconds or timedelta.
            expires_at: time after which no attempt starts, with a time zone; replaces `expires`.
            priority: 1 to 9; 9 runs first.
            key: business key to search by.
            queue: queue name.
            max_attempts: maximum number of attempts.
            retry: retry plan as text.
            timeout: time allowed for one attempt: text ("30s"), seconds or timedelta.
            tags: words to search by.
            headers: short texts by name that travel with the task to `ctx.headers`, such as {"request-id": "a1"}.
            bucket: 0 to 999, which spreads tasks over runners, or a function of the call's arguments; default: random.
            tenant: customer, account or host of the task, for limits, or a function of the call's arguments.
            hosts: names of the hosts that may take it: "web-3", ["web-1", "web-2"], "same" (this host) or "any".
            hosts_for: longest time from the due time in which only these hosts may take it; then any host may.
            route: text that chooses the shard, or a function of the call's arguments. See docs/beyond-one-machine.md.
            unique_key: key that no other task of the handler may hold, or a function of the call's arguments.
            unique: how long it holds the key: "until finished", "until started", "forever", "for 1h", "debounce 5s".
            on_duplicate: if another task holds the key: "skip" submits nothing, "replace" updates it, "error" raises.
            order_key: key, or a function of the call's arguments, whose tasks run one at a time in the order of submit.
            order_on_failure: effect of a dead or cancelled predecessor with the order key: "wait", "cancel" or "run".
            after: dependencies: task ids, or pairs of a handler and a key; DependsOn also sets the effect of a failure.
            tx: your connection or session; the task becomes part of its open transaction. See docs/transactions.md.

        Raises:
            InvalidTask, InvalidHandler: a value is not valid, or a function takes arguments that the handler lacks.
        """
        return self._with(*read_options(locals(), self.defaults.call_options), tx)

    def _with(self, fields: dict[str, Any], call_options: CallOptions, tx: object) -> Submission[P, R]:
        call_options.require(self.signature)
        if "retry" in fields:
            fields["retry"] = str(load_retry(fields["retry"]))
        return Submission(self, NewTask(self.name, **{**self.submit_defaults, **fields}), call_options, tx)


class _Decorator:
    """The decorator that `handler(...)` returns; it keeps the types of the function's parameters except Context."""

    def __init__(self, name: str, defaults: Options) -> None:
        self._name = name
        self._defaults = defaults

    @overload
    def __call__(  # type: ignore[overload-overlap] # the first that matches wins: P has no Context then
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]
    ) -> TaskHandler[P, Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R]
    ) -> TaskHandler[P, Callable[Concatenate[Context, P], R], R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap] # the first that matches wins: a task has the arguments of its T
        self, function: Callable[Concatenate[Chunk[T, R], P], Coroutine[Any, Any, Any]]
    ) -> TaskHandler[[T], Callable[Concatenate[Chunk[T, R], P], Coroutine[Any, Any, Any]], R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Chunk[T, R], P], Any]
    ) -> TaskHandler[[T], Callable[Concatenate[Chunk[T, R], P], Any], R]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> TaskHandler[P, Callable[P, Coroutine[Any, Any, R]], R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> TaskHandler[P, Callable[P, R], R]: ...

    def __call__(self, function: Callable[..., Any]) -> TaskHandler[Any, Any, Any]:
        registered: TaskHandler[Any, Any, Any] = TaskHandler(self._name, function, self._defaults)
        REGISTRY.add(registered)
        return registered


@converts_options
def handler(  # noqa: D417, PLR0913 - one argument per task option
    name: str,
    *,
    queue: str | None = None,
    retry: str | None = None,
    timeout: Delay | None = None,
    max_attempts: int | None = None,
    priority: int | None = None,
    expires: Delay | None = None,
    on_error: OnError | None = None,
    on_none: OnNone | None = None,
    bucket: CallNumber | None = None,
    tenant: CallText | None = None,
    hosts: str | Iterable[str] | None = None,
    hosts_for: Delay | None = None,
    route: CallText | None = None,
    unique_key: CallText | None = None,
    unique: str | None = None,
    on_duplicate: Duplicate | None = None,
    order_key: CallText | None = None,
    order_on_failure: OnFailure | None = None,
    key: CallText | None = None,
    after: ParentHandler | Iterable[ParentHandler] | None = None,
    limit: int | None = None,
    limit_per_tenant: int | None = None,
    limit_per_runner: int | None = None,
    rate: str | None = None,
    executor: str | None = None,
    memory_limit: str | int | None = None,
    breaker: str | Breaker | None = None,
    codec: str | None = None,
    chunk: int | None = None,
    chunk_wait: Delay | None = None,
) -> _Decorator:
    """Register a function as a handler.

    Args:
        name: unique name of the handler; every task stores it.
        queue, priority: of its tasks; None for "default" and 1. Priorities are 1 to 9; 9 runs first.
        retry: retry plan: stages (1m,5m,20m), exp:10s*2<1h, sidekiq, 30s or never; None for the runner's.
        timeout, max_attempts: of one attempt, such as "30s" or "none", and of all; None for the runner's.
        expires: longest time from the due time of its tasks to the start of an attempt; None for no limit.
        on_error, on_none: outcome of an exception or timeout, or of None for a result: a word or a function.
        bucket, tenant, hosts, hosts_for, route, and the options of unique keys and order keys: see `options`.
        key: business key of its tasks, or a function of the call's arguments, unless a submit sets one.
        after: handlers or names; each task depends on their tasks with its key. DependsOn sets the effect of a failure.
        limit, limit_per_tenant, rate: maximum of its running tasks, and of starts (5/s); operators can change them.
        limit_per_runner: maximum number of its tasks in one runner, which leaves the other slots to other handlers.
        executor, memory_limit: "process" with its maximum private memory ("512m", Linux only), or an own executor.
        breaker: number of failures after which its tasks wait, such as 10/min, or a Breaker; None for never.
        codec: what encrypts its tasks: "fernet", an own one as package.module:name, or "none"; None for the setting.
        chunk, chunk_wait: maximum number of tasks per call, and how long a Chunk waits for them; default "200ms".

    Returns:
        A decorator for an async or a plain function.

    Raises:
        InvalidRetryPlan, InvalidTask, InvalidHandler, DuplicateHandler: a value is not valid, or the name is taken.
    """
    return _Decorator(name, _defaults(dict(locals())))


def _defaults(arguments: Mapping[str, Any]) -> Options:
    """Read the arguments of `handler`."""
    if callable(arguments["name"]):
        raise InvalidHandler(name=getattr(arguments["name"], "__name__", ""), why=NAMELESS)
    _, call_options = read_options({name: arguments[name] for name in CALL_OPTIONS})
    key = arguments["key"] if arguments["key"] is None else require_call_text("key", arguments["key"])
    shared = (arguments["limit"], arguments["limit_per_tenant"], arguments["rate"])
    return Options(
        queue=arguments["queue"],
        retry=None if arguments["retry"] is None else str(load_retry(arguments["retry"])),
        timeout=_seconds(arguments["timeout"]),
        max_attempts=arguments["max_attempts"],
        priority=arguments["priority"],
        expires=_seconds(arguments["expires"]),
        hosts=None if arguments["hosts"] is None else host_list(arguments["hosts"]),
        hosts_for=_seconds(arguments["hosts_for"]),
        on_error=arguments["on_error"],
        on_none=arguments["on_none"],
        call_options=call_options._replace(key=key, after=declared(arguments["after"])),
        limits=_limits(arguments["name"], shared, arguments["limit_per_runner"]),
        limit_per_runner=arguments["limit_per_runner"],
        executor=arguments["executor"],
        memory_limit=parse_memory(arguments["name"], arguments["memory_limit"]),
        breaker=read_breaker(arguments["name"], arguments["breaker"]),
        codec=arguments["codec"],
        chunk=read_chunk(arguments["name"], arguments["chunk"], arguments["chunk_wait"]),
    )


def _limits(name: str, shared: tuple[int | None, int | None, str | None], per_runner: int | None) -> dict[str, Any]:
    if shared == (None, None, None) and per_runner is None:
        return {}
    from runner.policy.limits import read_limits  # imports SQLAlchemy, which most producers do not need
    from runner.policy.rate import checked

    try:
        checked("limit_per_runner", per_runner)
        return read_limits(*shared)
    except InvalidEdit as error:
        raise InvalidHandler(name=name, why=str(error)) from None


NO_TIMEOUT = "none"
"""The value of `timeout` for a handler without a time limit."""


def _seconds(delay: Delay | None) -> float | None:
    if delay is None or delay == NO_TIMEOUT:
        return None if delay is None else inf
    return parse_duration(delay).total_seconds()
