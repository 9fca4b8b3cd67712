"""Hooks: functions of an application that run around submits, attempts and runners."""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, overload

from runner.errors import ConfigurationError
from runner.handlers.inherited_headers import with_inherited
from runner.handlers.resources import RESOURCES, free_parameters, location_of
from runner.model.headers import NO_HEADERS
from runner.model.task import Claimed, NewTask, SubmitResult

log = logging.getLogger("runner")

HookName: TypeAlias = Literal[
    "on_start",
    "on_stop",
    "around_execute",
    "around_process",
    "around_submit",
    "on_success",
    "on_failure",
    "on_retry",
    "on_dead",
]


class InvalidCallback(ConfigurationError):
    """{name} cannot be registered with @{event}: {why}."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt, after it was written.

    Args:
        id: task id.
        handler: handler name.
        queue: queue name.
        key: business key.
        attempt: number of the attempt, from 1.
        max_attempts: maximum number of attempts; None if unknown.
        verb: the move of the task: succeed, retry, die or rescue; for `ctx.after_settle` also any other move, or
            "fenced" if the runner had lost the task and its outcome is discarded.
        duration: seconds that the handler ran; None if unknown.
        reason: reason of a failure, without the values of secret fields; None after a success.
        error: the exception of the handler; None without one.
        wait: seconds from the due time to the start; None if unknown or not started.
        tenant: the customer, account or host that the task belongs to; None without one.
        tags: words to search by.
        runner_id: id of the runner, also of a lost one; None if unknown.
        headers: the headers of the task.
    """

    id: int
    handler: str
    queue: str
    key: str | None
    attempt: int
    max_attempts: int | None
    verb: str
    duration: float | None = None
    reason: str | None = None
    error: BaseException | None = None
    wait: float | None = None
    tenant: str | None = None
    tags: tuple[str, ...] = ()
    runner_id: int | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


HOOKS: Mapping[str, tuple[HookName, ...]] = {
    "succeed": ("on_success",),
    "retry": ("on_failure", "on_retry"),
    "rescue": ("on_failure", "on_retry"),
    "die": ("on_failure", "on_dead"),
}
"""The events of each move."""


class Callback:
    """A registered function.

    Args:
        event: the event at which it runs.
        function: the function.
        when: decides whether it runs around an attempt; None for always.

    Raises:
        InvalidCallback: the function does not have the form that the event needs.
    """

    def __init__(
        self, event: HookName, function: Callable[..., Any], when: Callable[[Claimed], object] | None = None
    ) -> None:
        self.event = event
        self.function = function
        self.when = when
        self._names: tuple[dict[str, str], list[str]] | None = None
        """The resource of each parameter that receives one, and the other parameters."""
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if yields != event.startswith("around_"):
            why = "it must yield once" if event.startswith("around_") else "it must not yield"
            raise InvalidCallback(event=event, name=self.location, why=why)
        if event == "around_submit" and self.is_async:
            why = "it must be a plain generator function, because plain code submits too"
            raise InvalidCallback(event=event, name=self.location, why=why)

    @property
    def location(self) -> str:
        """Module and qualified name of the function, for messages."""
        return location_of(self.function)

    def require(self) -> dict[str, str]:
        """Return the resource of each parameter that receives one.

        Raises:
            InvalidResource: a parameter is not a resource.
        """
        return RESOURCES.require(self.function, 0 if self.event in ("on_start", "on_stop") else 1)

    def arguments(self, values: Mapping[str, Any], *subject: object) -> dict[str, Any]:
        """Return the keyword arguments for a call.

        Args:
            values: the open resources by name.
            subject: the Context or the AttemptEnd, for the first parameter that is not a resource.

        Raises:
            InvalidResource: a parameter is not a resource.
            KeyError: a resource is not open.
        """
        if self._names is None:
            required = self.require()
            self._names = required, list(free_parameters(self.function, required))
        names, free = self._names
        arguments = {parameter: values[name] for parameter, name in names.items()}
        return arguments | dict(zip(free, subject, strict=False))


class LifeCycle:
    """The registered functions by event, in the order of registration."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callback]] = {}
        """The functions by event."""

    def add(self, callback: Callback) -> None:
        """Register a function. The same function again, from a reloaded module, replaces itself."""
        callbacks = self.callbacks.setdefault(callback.event, [])
        others = [item for item in callbacks if item.location != callback.location]
        self.callbacks[callback.event] = [*others, callback]

    def of(self, event: HookName) -> Sequence[Callback]:
        """Return the functions of an event."""
        return self.callbacks.get(event, ())

    def needs(self) -> set[str]:
        """Return the names of the resources that the functions need.

        Raises:
            InvalidResource: a parameter is not a resource.
        """
        return {name for event in self.callbacks.values() for item in event for name in item.require().values()}

    def clear(self) -> None:
        """Remove all functions, for tests."""
        self.callbacks.clear()


LIFE_CYCLE = LifeCycle()
"""The functions that the decorators of this module add to."""

Plain: TypeAlias = Callable[..., Awaitable[None] | None]
F = TypeVar("F", bound=Plain)
Around = TypeVar("Around", bound=Callable[..., AsyncIterator[None] | Iterator[None]])
AroundSubmit = TypeVar(
    "AroundSubmit", bound=Callable[[list[NewTask]], Generator[Sequence[NewTask] | None, SubmitResult, None]]
)


def _register(event: HookName, function: Callable[..., Any], when: Callable[[Claimed], object] | None = None) -> None:
    LIFE_CYCLE.add(Callback(event, function, when))


def on_start(function: F) -> F:
    """Call a function when a runner starts, after it has opened its resources and before its first task.

    Args:
        function: an async function, or a plain one, which runs in a thread. Its parameters receive resources. An
            exception is logged, and the runner continues.
    """
    _register("on_start", function)
    return function


def on_stop(function: F) -> F:
    """Call a function when a runner stops, after its last task and before it closes its resources.

    Args:
        function: as for `on_start`.
    """
    _register("on_stop", function)
    return function


@overload
def around_execute(function: Around) -> Around: ...


@overload
def around_execute(*, when: Callable[[Claimed], object]) -> Callable[[Around], Around]: ...


def around_execute(
    function: Around | None = None, *, when: Callable[[Claimed], object] | None = None
) -> Around | Callable[[Around], Around]:
    """Run code around every attempt: before `yield` and after it. The first registered function is the outermost.

    `yield` returns the result of the handler or raises its exception.

    Args:
        function: a generator function, async or plain, that takes the Context and yields once. It runs on the event
            loop, also around plain functions. An exception before `yield` ends the attempt like an exception of the
            handler. After `yield`, a raised Retry, Dead or Snooze replaces the outcome of a failed attempt; other
            exceptions are logged and change nothing.
        when: a plain function that takes the claimed task and returns True for the attempts that `function` runs
            around; the others cost little more than this call, which is in the context of the attempt.

    Examples:
        >>> @around_execute
        ... async def measure(ctx: Context) -> AsyncIterator[None]:
        ...     with histogram.labels(ctx.handler).time():
        ...         yield
    """

    def register(function: Around) -> Around:
        _register("around_execute", function, when)
        return function

    return register if function is None else register(function)


def around_process(function: Around) -> Around:
    """Run code around every process handler, in its worker process. `around_execute` runs in the runner, around that.

    Args:
        function: as for `around_execute`. It runs on the event loop of the worker process, which knows the functions
            that the module of the handler registers, directly or by its imports. Its parameters receive no resources.

    Examples:
        >>> @around_process
        ... def limit(ctx: Context) -> Iterator[None]:
        ...     with threadpool_limits(1):
        ...         yield
    """
    _register("around_process", function)
    return function


def around_submit(function: AroundSubmit) -> AroundSubmit:
    """Run code around every submit of this process: before `yield` and after it.

    Args:
        function: a plain generator function that takes the list of NewTask, yields once the tasks to submit instead, or
            None for the same, and receives the SubmitResult from `yield`. An exception before `yield` refuses the
            submit; one after it is logged.

    Examples:
        >>> @around_submit
        ... def stamp(tasks: list[NewTask]) -> Generator[list[NewTask], SubmitResult, None]:
        ...     yield [task._replace(submitted_by=current_user()) for task in tasks]
    """
    _register("around_submit", function)
    return function


def on_success(function: F) -> F:
    """Call a function after each task that succeeded.

    Args:
        function: an async function, or a plain one, which runs in a thread. It takes the AttemptEnd; its other
            parameters receive resources. An exception is logged and changes nothing.
    """
    _register("on_success", function)
    return function


def on_failure(function: F) -> F:
    """Call a function after each failed attempt, with or without a retry; see `on_success`."""
    _register("on_failure", function)
    return function


def on_retry(function: F) -> F:
    """Call a function after each failed attempt that is followed by another; see `on_success`."""
    _register("on_retry", function)
    return function


def on_dead(function: F) -> F:
    """Call a function after each task that is dead; see `on_success`."""
    _register("on_dead", function)
    return function


class SubmitMiddleware:
    """One submit, inside the functions of @around_submit.

    Args:
        tasks: the tasks of the submit.

    Raises:
        BaseException: a function refused the submit.
    """

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self._generators: list[tuple[Callback, Generator[Sequence[NewTask] | None, SubmitResult, None]]] = []
        self.tasks: Sequence[NewTask] = tasks
        """The tasks to submit."""
        self.result = SubmitResult([])
        """The result of a submit inside `submitting`."""
        try:
            for callback in LIFE_CYCLE.of("around_submit"):
                self._begin(callback)
            self.tasks = with_inherited(self.tasks)
        except BaseException as error:
            self.fail(error)
            raise

    def _begin(self, callback: Callback) -> None:
        generator = callback.function(list(self.tasks))
        try:
            tasks = next(generator)
        except StopIteration:
            raise InvalidCallback(event=callback.event, name=callback.location, why="it must yield once") from None
        self._generators.append((callback, generator))
        if tasks is not None:
            self.tasks = self._checked(callback, tasks)

    def _checked(self, callback: Callback, tasks: Any) -> list[NewTask]:
        """Refuse a change of the number of tasks: the caller gets one handle per call."""
        rows = list(tasks)
        if len(rows) != len(self.tasks) or not all(isinstance(task, NewTask) for task in rows):
            why = f"it must yield None or a list of {len(self.tasks)} NewTask, as many as it received"
            raise InvalidCallback(event=callback.event, name=callback.location, why=why)
        return rows

    def end(self, result: SubmitResult) -> None:
        """Run the parts after `yield`. An exception is logged: the tasks are submitted."""
        self._finish(lambda generator: generator.send(result), "a submit")

    def fail(self, error: BaseException) -> None:
        """Raise the error of the submit at each `yield`. The caller gets the error in any case."""
        self._finish(lambda generator: generator.throw(error), "a failed submit", error)

    def _finish(self, resume: Callable[[Any], Any], after: str, expected: BaseException | None = None) -> None:
        while self._generators:
            callback, generator = self._generators.pop()
            try:
                resume(generator)
            except StopIteration:
                continue
            except BaseException as failure:
                if failure is not expected:
                    log.error("%s failed after %s", callback.location, after, exc_info=failure)
            else:
                log.error("%s yields twice: it must yield once", callback.location)


@contextmanager
def submitting(tasks: Sequence[NewTask]) -> Iterator[SubmitMiddleware]:
    """Submit tasks in the block, inside the functions of @around_submit; the block sets the result."""
    around = SubmitMiddleware(tasks)
    try:
        yield around
    except BaseException as error:
        around.fail(error)
        raise
    around.end(around.result)
