"""The JSON document of a read model: its fields, and the properties that documents have too."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, Generic, NamedTuple, Self, TypeVar, get_type_hints, overload

from runner.text.redact import decode, decode_audit, mask

T = TypeVar("T")


class Treatment(Enum):
    """Marks a field of which a document has another form."""

    JSON = "JSON text, decoded, with its secrets masked"
    AUDIT = "the values of an audit entry, likewise"
    HIDDEN = "left out"


class Flat(NamedTuple):
    """Marks a field whose own keys take its place, except some of them."""

    without: tuple[str, ...] = ()


class JsonProperty(Generic[T]):
    """A property of a read model that its document has beside the fields."""

    def __init__(self, read: Callable[[Any], T]) -> None:
        self.read = read
        self.__doc__ = read.__doc__

    @overload
    def __get__(self, model: None, owner: type) -> Self: ...
    @overload
    def __get__(self, model: object, owner: type) -> T: ...
    def __get__(self, model: object, owner: type) -> Self | T:
        """The value for a model; the property itself for a class."""
        return self if model is None else self.read(model)


def is_model(kind: type) -> bool:
    """True for the class of a read model: a data class or a named tuple."""
    return is_dataclass(kind) or hasattr(kind, "_asdict")


@cache
def keys_of(kind: type[object]) -> Mapping[str, Treatment | Flat | None]:
    """The fields and properties of a read model that its document has, with their marks."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else list(vars(kind)["_fields"])
    hints = get_type_hints(kind, include_extras=True)
    names += [name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, JsonProperty)]
    return {name: _mark(hints.get(name)) for name in names}


def _mark(hint: Any) -> Treatment | Flat | None:
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, (Treatment, Flat))), None)


def plain(value: Any, *, reveal: bool = False) -> Any:
    """Convert a read model to JSON values with times in UTC, durations in seconds, and likely secrets masked.

    Args:
        value: read models, mappings, sequences, times, enumerations and JSON values.
        reveal: include secrets instead of masking them.
    """
    if is_model(type(value)):
        return dict(_items(value, reveal=reveal))
    match value:
        case str():
            result: Any = mask(value, reveal=reveal)
        case Mapping():
            result = {str(name): plain(item, reveal=reveal) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            result = [plain(item, reveal=reveal) for item in value]
        case datetime():
            result = value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            result = value.total_seconds()
        case float() if not math.isfinite(value):
            result = None
        case _:
            result = value
    return result


def _items(model: Any, *, reveal: bool) -> Iterator[tuple[str, Any]]:
    kind: type = type(model)
    for name, mark in keys_of(kind).items():
        value = getattr(model, name)
        match mark:
            case Flat(without):
                own = plain(value, reveal=reveal)
                yield from ((key, item) for key, item in own.items() if key not in without)
            case Treatment.HIDDEN:
                pass
            case Treatment.JSON:
                yield name, decode(value, reveal=reveal)
            case Treatment.AUDIT:
                yield name, decode_audit(value, reveal=reveal)
            case _:
                yield name, plain(value, reveal=reveal)
