"""Order: the options that run tasks of one key one after the other."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, TypeAlias, get_args

from runner.errors import InvalidPayload, InvalidTask
from runner.handlers.derived import derive, require_names
from runner.handlers.signature import Signature
from runner.model.task import OnFailure, OrderSpec
from runner.model.text_limits import LONGEST_KEY, require_storable, require_text

OrderKey: TypeAlias = str | Callable[..., str | None]
"""A key, or a function that computes it from the call's arguments, as a unique_key function does.

It returns None for a call that need not run in order."""

RULES = get_args(OnFailure)


class Order(NamedTuple):
    """The options that order tasks; None leaves an option to more general ones.

    Args:
        key: the key, or the function that computes it.
        on_failure: the effect of a dead or cancelled predecessor; "wait" by default.
    """

    key: OrderKey | None = None
    on_failure: OnFailure | None = None

    @classmethod
    def read(cls, key: OrderKey | None, on_failure: Any) -> Self:
        """Check the options.

        Raises:
            InvalidTask: an option is not valid.
        """
        if key is not None and not callable(key):
            require_text("order_key", key)
        if on_failure is not None and on_failure not in RULES:
            why = f"use {', '.join(RULES[:-1])} or {RULES[-1]}"
            raise InvalidTask(field="order_on_failure", value=on_failure, why=why)
        return cls(key, on_failure)

    def over(self, general: "Order") -> "Order":
        """Return these options, completed from more general ones."""
        return Order(general.key if self.key is None else self.key, self.on_failure or general.on_failure)

    def require(self, signature: Signature) -> None:
        """Reject a key function that does not fit the handler, and a rule without a key.

        Raises:
            InvalidHandler: the function takes arguments that the handler does not have.
            InvalidTask: order_key is missing.
        """
        if callable(self.key):
            require_names("order_key", self.key, signature)
        self.require_key()

    def require_key(self) -> None:
        """Reject a rule without a key.

        Raises:
            InvalidTask: order_key is missing.
        """
        if self.key is None:
            raise InvalidTask(field="order_key", value=None, why="order_on_failure needs an order_key")

    def of(self, handler: str, arguments: Callable[[], Mapping[str, Any]]) -> OrderSpec | None:
        """Return the order key of a call; None without one.

        Args:
            handler: handler name.
            arguments: returns the call's arguments, including defaults.

        Raises:
            InvalidPayload: the function failed or did not return a key.
        """
        key = derive("order_key", self.key, handler, arguments()) if callable(self.key) else self.key
        if key is None:
            return None
        if not isinstance(key, str):
            why = f"its order_key function returned {type(key).__name__}, not text or None"
            raise InvalidPayload(handler=handler, why=why)
        return OrderSpec(key, self.on_failure or "wait")


def check_order(order: OrderSpec) -> None:
    """Reject an order key that a row cannot hold, and an unknown rule.

    Raises:
        InvalidTask: a value is not valid.
    """
    if not order.key:
        raise InvalidTask(field="order_key", value="", why="it must not be empty")
    require_storable("order_key", order.key, LONGEST_KEY)
    Order.read(order.key, order.on_failure)
