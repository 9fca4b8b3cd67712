"""Result: what a handler returned, as JSON that both databases can hold."""

import json
from typing import Any

from pydantic_core import to_json


def as_json(result: Any, limit: int) -> str | None:
    """A result as JSON text that both databases can hold, of at most `limit` bytes; None when there is no such text."""
    try:
        text = to_json(result, inf_nan_mode="constants").decode()
        if "NaN" in text or "Infinity" in text:
            json.loads(text, parse_constant=_refuse)
    except Exception:  # a result may be any object, whose methods may do anything
        return None
    return None if "\\u0000" in text or len(text.encode()) > limit else text


def _refuse(constant: str) -> None:
    raise ValueError(constant)
