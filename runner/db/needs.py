"""Needs: the kind of transaction that a store verb declares, from which `read` and `write` choose its connection."""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from runner.db.dialects import Dialect

V = TypeVar("V", bound=Callable[..., Any])


class Needs(Enum):
    """The statements of a verb. A verb without a declaration needs a TRANSACTION.

    Prepared statements run on connections that keep them, with fewer round trips. A verb of them executes no others:
    in a file, the thread of a connection executes them and the commit, while the event loop may be busy.
    """

    TRANSACTION = "any statements, which commit or read a snapshot together"
    PREPARED_TRANSACTION = "prepared statements, which commit together"
    PREPARED = "prepared statements, each of which may commit or read a snapshot by itself"


def needs(declared: Needs | Callable[..., Needs]) -> Callable[[V], V]:
    """Declare beside a verb, or the steps of one, the transaction that it needs.

    Args:
        declared: the needs; or a function that returns them, with the dialect and the arguments of the verb.
    """

    def declare(verb: V) -> V:
        verb.needs = declared  # type: ignore[attr-defined] # functions have attributes
        return verb

    return declare


def needs_of(verb: Callable[..., Any], dialect: Dialect, *args: Any, **kwargs: Any) -> Needs:
    """Return the needs of a verb for these arguments."""
    declared: Needs | Callable[..., Needs] = getattr(verb, "needs", Needs.TRANSACTION)
    return declared if isinstance(declared, Needs) else declared(dialect, *args, **kwargs)
