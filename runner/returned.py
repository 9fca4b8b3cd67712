"""Returned: a handler's result, read back as the type that its annotation promises."""

import json
import types
from collections.abc import Callable
from functools import cached_property
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from runner.outcome import Dead, Retry, Snooze

OUTCOMES = (Retry, Dead, Snooze)
"""What a handler may return that is no result."""


class Returned:
    """What a handler returns.

    Args:
        function: whose annotation counts; without one, or with one that pydantic knows nothing of, a result is what
            its JSON says.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def read(self, result: str | None) -> Any:
        """Read a result.

        Args:
            result: JSON text; None when nothing was returned.

        Raises:
            ValueError: it does not fit the annotation; it says why, without the value.
        """
        text = "null" if result is None else result
        if self._adapter is None:
            return json.loads(text)
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            if result is None:
                raise ValueError("there is none; in ctx.transaction() it is given with own.result") from None
            found = error.errors(include_input=False, include_url=False, include_context=False)
            why = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'result'}: {item['msg']}" for item in found)
            raise ValueError(why) from None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        """Built at first use: annotations may name what is defined after the handler."""
        try:
            promised = get_type_hints(self._function, include_extras=True)["return"]
            return TypeAdapter(_result_of(promised))
        except (KeyError, NameError, TypeError, PydanticUserError):
            return None


def _result_of(promised: Any) -> Any:
    """The annotation without the outcomes that may be returned in place of a result."""
    if promised in OUTCOMES:
        return None
    if get_origin(promised) not in (Union, types.UnionType):
        return promised
    return Union[tuple(kind for kind in get_args(promised) if kind not in OUTCOMES) or (None,)]  # noqa: UP007 - made here
