"""The types of settings: text from the environment and from files becomes a checked value."""

from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt
from pydantic import AfterValidator, BeforeValidator, ByteSize, StringConstraints

from runner.errors import InvalidDuration
from runner.model.duration import parse_duration

MAX_PREFIX = 20
"""Maximum length of a table prefix: with it, the longest index name fits into PostgreSQL's 63 bytes."""


def _duration(value: Any) -> timedelta:
    try:
        return parse_duration(value)
    except InvalidDuration:
        raise ValueError("expected a duration such as 250ms, 30s, 5m, 1h30m or 2d") from None


def _or_none(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in {"none", "never", "forever"} else value


def _items(value: Any) -> Any:
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


ZERO = timedelta(0)
Delay: TypeAlias = Annotated[timedelta, Ge(ZERO), BeforeValidator(_duration)]
Period: TypeAlias = Annotated[timedelta, Gt(ZERO), BeforeValidator(_duration)]
Limit: TypeAlias = Annotated[Period | None, BeforeValidator(_or_none)]
Count: TypeAlias = Annotated[int, Ge(1)]
Maximum: TypeAlias = Annotated[Count | None, BeforeValidator(_or_none)]
Number: TypeAlias = Annotated[int, Ge(0)]
Size: TypeAlias = Annotated[ByteSize, Ge(1)]


def module_name(text: str) -> str:
    """Check the name of a Python module.

    Raises:
        ValueError: it is not a dotted name; the message derives one from a path such as `shop/tasks.py`.
    """
    if all(part.isidentifier() for part in text.split(".")):
        return text
    dotted = text.strip("./").removesuffix(".py").replace("/", ".")
    example = dotted if all(part.isidentifier() for part in dotted.split(".")) else "shop.tasks"
    raise ValueError(f"it must be the name of a Python module, such as {example}, not {text!r}")


Identifier: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$", max_length=63)]
Prefix: TypeAlias = Annotated[str, StringConstraints(pattern=r"^([a-z_][a-z0-9_]*)?$", max_length=MAX_PREFIX)]
Module: TypeAlias = Annotated[str, AfterValidator(module_name)]
Modules: TypeAlias = Annotated[tuple[Module, ...], BeforeValidator(_items)]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Names: TypeAlias = Annotated[tuple[Name, ...], BeforeValidator(_items)]
Durability: TypeAlias = Annotated[Literal["FULL", "NORMAL"], BeforeValidator(_upper)]
