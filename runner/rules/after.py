"""What a task waits for, as applications say it, made into what the store takes."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

from runner.errors import InvalidTask
from runner.task import After


class Named(Protocol):
    """A handler, in place of its name."""

    name: str


Parent: TypeAlias = int | tuple[str | Named, str] | After
"""A task to wait for: its id, its handler and its business key, or either with a rule for its failure."""


def edges(after: Parent | Iterable[Parent] | None) -> tuple[After, ...]:
    """Read what a task is to wait for.

    Args:
        after: the parents; a single one needs no list, and None is none.

    Returns:
        Each parent once: of two that say the same the first counts.

    Raises:
        InvalidTask: when something is not a parent.
    """
    if after is None:
        return ()
    alone = isinstance(after, (int, After)) or _is_name(after)
    found = [_edge(parent) for parent in ([after] if alone else after)]  # type: ignore[union-attr] # told apart above
    return tuple({edge.parent: edge for edge in reversed(found)}.values())[::-1]


def _edge(parent: Any) -> After:
    match parent:
        case After(inner, on_failure):
            return _edge(inner)._replace(on_failure=on_failure)
        case bool():
            pass
        case int():
            return After(int(parent))  # a ticket is more than a number, and not to be kept
        case (handler, str() as key) if _is_name(parent):
            return After((getattr(handler, "name", handler), key))
    why = 'it must be the id of a task, or the handler and the key of one, such as ("orders.pay", "order-17")'
    raise InvalidTask(field="after", value=parent, why=why)


def _is_name(parent: Any) -> bool:
    """Tell a handler with a key from a pair of tasks."""
    return (
        isinstance(parent, tuple)
        and not isinstance(parent, After)
        and len(parent) == 2  # noqa: PLR2004 - a handler and a key
        and isinstance(getattr(parent[0], "name", parent[0]), str)
        and isinstance(parent[1], str)
    )
