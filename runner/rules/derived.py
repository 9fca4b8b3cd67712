"""derived: what follows from the arguments of a call, by a function that the author of the handler wrote."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from runner.errors import InvalidHandler, InvalidPayload
from runner.signature import POSITIONAL, Signature

ANY_NAME = inspect.Parameter.VAR_KEYWORD


def require_names(what: str, function: Callable[..., Any], signature: Signature) -> None:
    """Refuse a function that asks for arguments which the handler does not take.

    Args:
        what: the option that the function was given as.
        function: takes some of the handler's arguments by their names, or `**all` of them.
        signature: of the handler.

    Raises:
        InvalidHandler: naming the parameter.
    """
    for item in inspect.signature(function).parameters.values():
        if item.kind in POSITIONAL:
            raise InvalidHandler(name=signature.name, why=f"its {what} function takes {item}, which has no name")
        needed = item.kind is not ANY_NAME and item.default is inspect.Parameter.empty
        if needed and not signature.takes(item.name):
            why = f"its {what} function asks for {item.name!r}, which is no argument of the handler"
            raise InvalidHandler(name=signature.name, why=why)


def derive(what: str, function: Callable[..., Any], handler: str, arguments: Mapping[str, Any]) -> Any:
    """Ask the function, giving it those of the arguments that it takes.

    Args:
        what: the option that the function was given as.
        function: of the handler's author.
        handler: its name.
        arguments: of the call, all of them.

    Raises:
        InvalidPayload: the function raised an exception, which is the cause of this one.
    """
    names = _wanted(function)
    given = arguments if names is None else {name: arguments[name] for name in names if name in arguments}
    try:
        return function(**given)
    except Exception as error:
        why = f"its {what} function raised {type(error).__name__}"  # not its text, which may hold what is secret
        raise InvalidPayload(handler=handler, why=why) from error


@lru_cache(maxsize=256)
def _wanted(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names that a function takes; None for all."""
    parameters = inspect.signature(function).parameters.values()
    return None if any(item.kind is ANY_NAME for item in parameters) else tuple(item.name for item in parameters)
