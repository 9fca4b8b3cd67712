"""Plain values: arguments without a type, which come back from JSON as they were."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

CONTAINERS = {dict, list, tuple, Mapping, Sequence}

BYTES_ADVICE = "bytes are no text: decode them, or annotate the parameter as pydantic.Base64Bytes, and pass base64"

UNTYPED = (Any, object, *CONTAINERS)
"""Annotations that leave the type of a value open."""

TYPED = (str, int, float, bool, type(None))
"""Annotations whose values JSON holds as they are."""


def is_untyped(annotation: Any) -> bool:
    """True if an annotation leaves the type of some value open, and all its other values are plain.

    The values of other annotations, such as `dict[UUID, Any]`, are those of pydantic.
    """
    leaves = [*_leaves(annotation)]
    return any(leaf in UNTYPED for leaf in leaves) and all(leaf in UNTYPED or leaf in TYPED for leaf in leaves)


def _leaves(annotation: Any) -> Sequence[Any]:
    origin = get_origin(annotation)
    if origin in CONTAINERS or origin in (Union, types.UnionType):
        return [leaf for part in get_args(annotation) if part is not Ellipsis for leaf in _leaves(part)]
    return [annotation]


def require_plain(name: str, value: Any) -> None:
    """Reject a value that JSON would change or use up.

    Args:
        name: name of the argument.

    Raises:
        ValueError: it contains something else than text, numbers, booleans, None, lists and dictionaries with text
            keys. A tuple counts as a list, and a model or a data class as the dictionary that its author chose.
    """
    match value:
        case None | str() | int() | float():
            return
        case list() | tuple():
            for item in value:
                require_plain(name, item)
        case dict() if all(isinstance(key, str) for key in value):
            for item in value.values():
                require_plain(name, item)
        case _ if not (isinstance(value, BaseModel) or is_dataclass(value)):
            raise ValueError(f"{name}: {_advice(value)}")


def _advice(value: Any) -> str:
    kind = type(value).__name__
    match value:
        case dict():
            return "a key of a dictionary is not text: annotate the parameter, such as dict[int, str]"
        case bytes():
            return BYTES_ADVICE
        case set() | frozenset():
            return f"a {kind} would come back as a list: annotate the parameter, such as set[int]"
    if hasattr(value, "__next__") or hasattr(value, "read"):
        return f"a value of type {kind} can be read once, and a task cannot keep it: pass a list, or the path of a file"
    return f"JSON does not keep the type {kind}: annotate the parameter with it, or pass text"
