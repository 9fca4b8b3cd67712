"""Functions of an application: their parameters, annotations and calls."""

import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, ForwardRef, get_type_hints

from runner.errors import InvalidHandler, InvalidPayload

log = logging.getLogger("runner")

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
ANY_NAME = inspect.Parameter.VAR_KEYWORD

UNREADABLE = (AttributeError, NameError, TypeError)
"""The errors of an annotation that cannot be evaluated."""

RETURN = "return"
"""The name of the return annotation."""


if sys.version_info >= (3, 14):
    from annotationlib import Format

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function. An annotation that cannot be evaluated yet is a ForwardRef in it.

        Args:
            function: a function of the application. Python 3.14 evaluates its annotations when they are first read.
        """
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

else:

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function.

        Args:
            function: a function of the application. Python evaluated its annotations at the definition, or they are
                text.
        """
        return inspect.signature(function)


def is_named(annotation: Any, names: Collection[str]) -> bool:
    """True if an annotation is one of these names, and not evaluated."""
    return (annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation) in names


def hints_of(function: Callable[..., Any], names: Collection[str]) -> dict[str, Any]:
    """Return the evaluated annotations of a function.

    Args:
        names: the parameters to evaluate, and `RETURN`. Annotations of others may name types that only type checkers
            import.

    Raises:
        NameError: one of these annotations names a type that is not defined.
        AttributeError: or a member that its module does not have.
        TypeError: or is not a type.
    """
    try:
        return get_type_hints(function, include_extras=True)
    except (AttributeError, NameError):
        return _some_hints(function, names)


def readable_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function that can be evaluated, without the metadata of `Annotated`."""
    try:
        return get_type_hints(function)
    except UNREADABLE:
        hints: dict[str, Any] = {}
        for name in (*signature_of(function).parameters, RETURN):
            with suppress(*UNREADABLE):
                hints |= _some_hints(function, [name], include_extras=False)
        return hints


def _some_hints(function: Callable[..., Any], names: Collection[str], include_extras: bool = True) -> dict[str, Any]:
    """Evaluate some annotations, as those of a function that has no others."""

    def stub() -> None: ...

    signature = signature_of(function)
    annotations = {item.name: item.annotation for item in signature.parameters.values()}
    annotations[RETURN] = signature.return_annotation
    stub.__annotations__ = {
        name: annotation
        for name, annotation in annotations.items()
        if name in names and annotation is not inspect.Signature.empty
    }
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    return get_type_hints(stub, globalns=scope, include_extras=include_extras)


def require_executable(handler: str, function: object) -> None:
    """Reject a function that no payload can call, or that would not execute.

    Raises:
        InvalidHandler: it is a class, a method of one, a generator function, without a name or not callable.
    """
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        why = f"{name} is a generator, which would succeed without executing it: replace its yield"
    elif inspect.isclass(function):
        why = f"{name} is a class: decorate a function"
    elif isinstance(function, classmethod) or _is_method(function):
        why = f"{name} is a method: decorate a function outside the class"
    elif not callable(function):
        why = f"{name} is not a function"
    elif not hasattr(function, "__qualname__"):
        why = f"its type {type(function).__qualname__} has no name: decorate a function that calls it"
    else:
        return
    raise InvalidHandler(name=handler, why=why)


def _is_method(function: object) -> bool:
    """True if a class is being defined around the function, and it takes an object of it."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not inspect.isfunction(function) or owner.endswith("<locals>") or not owner:
        return False
    return next(iter(signature_of(function).parameters), "") in ("self", "cls")


def require_names(option: str, function: Callable[..., Any], handler: str, takes: Callable[[str], bool]) -> None:
    """Reject a function that takes arguments the handler does not have.

    Args:
        function: takes some of the handler's arguments by name, or `**all` of them.
        takes: true for the name of an argument of the handler.

    Raises:
        InvalidHandler: a parameter of the function is positional or unknown.
    """
    for item in signature_of(function).parameters.values():
        if item.kind in POSITIONAL:
            raise InvalidHandler(name=handler, why=f"its {option} function takes {item}, but arguments have names")
        is_required = item.kind is not ANY_NAME and item.default is inspect.Parameter.empty
        if is_required and not takes(item.name):
            why = f"its {option} function takes {item.name!r}, which is not an argument of the handler"
            raise InvalidHandler(name=handler, why=why)


def derive(option: str, function: Callable[..., Any], handler: str, arguments: Mapping[str, Any]) -> Any:
    """Call the function with the arguments that it takes.

    Raises:
        InvalidPayload: the function raised an exception, which is the cause of this one.
    """
    names = _parameters(function)
    accepted = arguments if names is None else {name: arguments[name] for name in names if name in arguments}
    try:
        return function(**accepted)
    except KeyboardInterrupt:  # of a person, in the program that submits
        raise
    except BaseException as error:  # an exit would end a program as if it had submitted the task
        why = f"its {option} function raised {type(error).__name__}"  # without the message, which may hold a secret
        raise InvalidPayload(handler=handler, why=why) from error


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Parameter names of the function; None if it takes all arguments."""
    parameters = signature_of(function).parameters.values()
    return None if any(item.kind is ANY_NAME for item in parameters) else tuple(item.name for item in parameters)


LEFT = "task %d (%s): a process that the handler forked left the handler and ends; end it with os._exit in the handler"


async def call_on_loop(
    function: Callable[..., Awaitable[Any]], arguments: dict[str, Any], handler: str, task_id: int
) -> Any:
    """Call the coroutine function of a handler, inside middleware."""
    forks = FORKS.count
    try:
        return await function(**arguments)
    finally:
        end_copy(forks, handler, task_id)


class Forks:
    """The number of forks that led to this process. Asking the system for its id costs a task a tenth of its time."""

    count = 0

    def add(self) -> None:
        """Count a fork, in the new process."""
        self.count += 1


FORKS = Forks()
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=FORKS.add)


def end_copy(forks: int, handler: str, task_id: int) -> None:
    """End a process that a handler forked and that leaves the handler, also with an exception.

    It has the connections, the lease and the event loop of the runner, and would continue as a copy of it. It ends with
    the status of its SystemExit, with 0 if the handler returned, and with 1 after any other exception.

    Args:
        forks: the count of FORKS when the handler was called.
    """
    if FORKS.count == forks:
        return
    error = sys.exc_info()[1]
    status: Any = error.code if isinstance(error, SystemExit) else int(error is not None)
    try:
        if not isinstance(error, SystemExit):
            log.error(LEFT, task_id, handler, exc_info=error)
    finally:
        os._exit(status & 0xFF if isinstance(status, int) else int(status is not None))
