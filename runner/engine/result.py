"""Result: what a handler returned, as JSON that both databases can hold."""

import json
from typing import Any

from pydantic_core import to_json

from runner.outcome import RESULT_NOT_KEPT, Done


def done(result: Any, limit: int) -> Done:
    """What a task results in.

    Args:
        result: what its handler returned.
        limit: bytes of JSON that are kept at most.

    Returns:
        An outcome with the result as JSON text, or with the reason why there is no such text that could be kept.
    """
    if result is None:
        return Done()
    try:
        text = to_json(result, inf_nan_mode="constants").decode()
        if "NaN" in text or "Infinity" in text:
            json.loads(text, parse_constant=_refuse)
    except Exception:  # a result may be any object, whose methods may do anything
        return _not_kept("it cannot be written as JSON")
    if "\\u0000" in text:
        return _not_kept("it holds the character NUL, which PostgreSQL cannot store")
    if len(text) * 4 > limit and (size := len(text.encode())) > limit:
        return _not_kept(f"it has {size:,} bytes, more than the {limit:,} of result_limit")
    return Done(text)


def _not_kept(why: str) -> Done:
    return Done(why=f"{RESULT_NOT_KEPT}: {why}")


def _refuse(constant: str) -> None:
    raise ValueError(constant)
