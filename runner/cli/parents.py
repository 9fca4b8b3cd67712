"""Parents of a task as people write them: after an option, or in a line of JSON."""

from collections.abc import Mapping
from typing import Any, get_args

from runner.errors import InvalidInput
from runner.task import After, OnFailure

RULES = get_args(OnFailure)
MOST_DIGITS = 20


def typed(word: str, on_failure: OnFailure) -> After:
    """Read what stands behind --after: 17, or orders.pay=order-17.

    A handler's name has no equals sign, so the first one ends it, whatever the key holds.
    """
    if word.isdecimal() and len(word) < MOST_DIGITS:
        return After(int(word), on_failure)
    handler, _, key = word.partition("=")
    if not (handler and key):
        raise InvalidInput(why=f"--after takes the number of a task, or handler=key, not {word[:80]!r}")
    return After((handler, key), on_failure)


def parents(value: Any) -> tuple[After, ...] | None:
    """Read what a task waits for from JSON.

    Args:
        value: a list, or a single parent: a number, [handler, key], or an object with id or handler and key, and
            on_failure.

    Raises:
        InvalidInput: it is none of these.
    """
    alone = not isinstance(value, (list, tuple)) or _is_name(value)
    return tuple(dict.fromkeys(_parent(item) for item in ([value] if alone else value))) or None


def _parent(item: Any) -> After:
    if isinstance(item, After):
        return item
    if isinstance(item, Mapping):
        said = dict(item)
        on_failure = said.pop("on_failure", "wait")
        if on_failure not in RULES:
            raise InvalidInput(why=f"on_failure is {', '.join(RULES[:-1])} or {RULES[-1]}, not {on_failure!r}")
        if said.keys() == {"id"}:
            return _parent(said["id"])._replace(on_failure=on_failure)
        if said.keys() == {"handler", "key"}:
            return _parent([said["handler"], said["key"]])._replace(on_failure=on_failure)
    elif isinstance(item, int) and not isinstance(item, bool):
        return After(item)
    elif _is_name(item):
        return After((item[0], item[1]))
    raise InvalidInput(
        why=f'after holds numbers of tasks, ["handler", "key"], or {{"id": 17, "on_failure": "run"}}, not {item!r}'
    )


def _is_name(item: Any) -> bool:
    """Tell a handler with a key from a list of parents."""
    return (
        isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item)  # noqa: PLR2004 - a handler and a key
    )
