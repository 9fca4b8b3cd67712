"""Kinds of values: how people write what a setting may be, and its bounds.

They are what pydantic reads, which takes a tenth of a second to load: only checking needs them, see `values`.
"""

from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt
from pydantic import BeforeValidator, ByteSize, PlainValidator, StringConstraints, TypeAdapter, ValidationError

from runner.errors import InvalidDuration
from runner.people.times import parse_duration
from runner.settings.size import Bytes
from runner.urls import DatabaseUrl, parse_url

LONGEST_PREFIX = 20
"""Characters of a table prefix; with it the longest name of an index still fits into PostgreSQL's 63 bytes."""


def _duration(value: Any) -> timedelta:
    try:
        return parse_duration(value)
    except InvalidDuration:
        raise ValueError("it must be a duration such as 250ms, 30s, 5m, 1h30m or 2d") from None


def _or_none(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in {"none", "never", "forever"} else value


def _items(value: Any) -> Any:
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _size(value: Any) -> Bytes:
    try:
        return Bytes(_SIZE.validate_python(value))
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None


_SIZE = TypeAdapter(ByteSize)
_ZERO = timedelta(0)
Delay: TypeAlias = Annotated[timedelta, Ge(_ZERO), BeforeValidator(_duration)]
Period: TypeAlias = Annotated[timedelta, Gt(_ZERO), BeforeValidator(_duration)]
Limit: TypeAlias = Annotated[Period | None, BeforeValidator(_or_none)]
Count: TypeAlias = Annotated[int, Ge(1)]
Number: TypeAlias = Annotated[int, Ge(0)]
Size: TypeAlias = Annotated[Bytes, PlainValidator(_size), Ge(1)]
Identifier: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$", max_length=63)]
Prefix: TypeAlias = Annotated[str, StringConstraints(pattern=r"^([a-z_][a-z0-9_]*)?$", max_length=LONGEST_PREFIX)]
Module: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")]
Modules: TypeAlias = Annotated[tuple[Module, ...], BeforeValidator(_items)]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Names: TypeAlias = Annotated[tuple[Name, ...], BeforeValidator(_items)]
Url: TypeAlias = Annotated[DatabaseUrl, PlainValidator(parse_url)]
Durability: TypeAlias = Annotated[Literal["FULL", "NORMAL"], BeforeValidator(_upper)]
