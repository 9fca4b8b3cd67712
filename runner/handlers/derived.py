"""Derived values: calls a function of a handler's author with the arguments of a task."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from runner.errors import InvalidHandler, InvalidPayload
from runner.handlers.signature import POSITIONAL, Signature
from runner.model.task import BUCKETS

ANY_NAME = inspect.Parameter.VAR_KEYWORD


def require_names(option: str, function: Callable[..., Any], signature: Signature) -> None:
    """Reject a function that takes arguments the handler does not have.

    Args:
        option: task option that holds the function.
        function: takes some of the handler's arguments by name, or `**all` of them.
        signature: signature of the handler.

    Raises:
        InvalidHandler: a parameter of the function is positional or unknown.
    """
    for item in inspect.signature(function).parameters.values():
        if item.kind in POSITIONAL:
            raise InvalidHandler(
                name=signature.name, why=f"its {option} function takes {item}, but arguments have names"
            )
        is_required = item.kind is not ANY_NAME and item.default is inspect.Parameter.empty
        if is_required and not signature.takes(item.name):
            why = f"its {option} function takes {item.name!r}, which is not an argument of the handler"
            raise InvalidHandler(name=signature.name, why=why)


def derive(option: str, function: Callable[..., Any], handler: str, arguments: Mapping[str, Any]) -> Any:
    """Call the function with the arguments that it takes.

    Args:
        option: task option that holds the function.
        function: the function.
        handler: handler name.
        arguments: all arguments of the call.

    Raises:
        InvalidPayload: the function raised an exception, which is the cause of this one.
    """
    names = _parameters(function)
    accepted = arguments if names is None else {name: arguments[name] for name in names if name in arguments}
    try:
        return function(**accepted)
    except Exception as error:
        why = f"its {option} function raised {type(error).__name__}"  # without the message, which may hold a secret
        raise InvalidPayload(handler=handler, why=why) from error


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Parameter names of the function; None if it takes all arguments."""
    parameters = inspect.signature(function).parameters.values()
    return None if any(item.kind is ANY_NAME for item in parameters) else tuple(item.name for item in parameters)


Tenant: TypeAlias = str | Callable[..., str | None]
"""The tenant of a task, or a function that returns it, or None for no tenant, from the call's arguments."""


def tenant_of(tenant: Tenant | None, handler: str, arguments: Callable[[], Mapping[str, Any]]) -> str | None:
    """Return the tenant of a call; None for none.

    Args:
        tenant: the task option.
        handler: handler name.
        arguments: returns the call's arguments, including defaults.

    Raises:
        InvalidPayload: the function failed or did not return text.
    """
    if not callable(tenant):
        return tenant
    name = derive("tenant", tenant, handler, arguments())
    if name is not None and not isinstance(name, str):
        why = f"its tenant function returned {type(name).__name__}, not text; use str(...)"
        raise InvalidPayload(handler=handler, why=why)
    return name


Bucket: TypeAlias = int | Callable[..., int]
"""A number from 0 to BUCKETS - 1, or a function that computes a whole number from the call's arguments.

The bucket is that number modulo BUCKETS. The function receives arguments as a unique_key function does."""


def bucket_of(bucket: Bucket | None, handler: str, arguments: Callable[[], Mapping[str, Any]]) -> int | None:
    """Return the bucket of a call; None for a random one.

    Args:
        bucket: the task option.
        handler: handler name.
        arguments: returns the call's arguments, including defaults.

    Raises:
        InvalidPayload: the function failed or did not return a whole number.
    """
    if not callable(bucket):
        return bucket
    number = derive("bucket", bucket, handler, arguments())
    if not isinstance(number, int):
        why = f"its bucket function returned {type(number).__name__}, not a whole number"
        raise InvalidPayload(handler=handler, why=why)
    return number % BUCKETS
