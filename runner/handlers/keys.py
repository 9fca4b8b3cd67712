"""Keys: the options that deduplicate a handler's tasks, or run tasks of one key one after the other."""

import contextlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

from runner.errors import InvalidDuration, InvalidPayload, InvalidTask
from runner.handlers.functions import derive, require_names
from runner.handlers.signature import Signature
from runner.model.duration import LONGEST_SECONDS, format_duration, parse_duration
from runner.model.task import OnDuplicate, OnFailure, OrderSpec, Scope, UniqueSpec
from runner.model.text_limits import LONGEST_KEY, require_storable, require_text

UniqueKey: TypeAlias = str | Callable[..., str | None]
"""A key, or a function that computes it from the call's arguments.

The function takes the arguments that it needs by name. It returns None for a call that need not be unique."""

Duplicate: TypeAlias = Literal["skip", "replace", "error"]

SCOPES = "use until finished, until started, forever, for 1h, debounce 5s, or debounce 5s up to 1m"


OUT_OF_BOUNDS = f"it must be a number of seconds, more than 0 and below {LONGEST_SECONDS:.0e}"


def _key_of(
    option: str, key: str | Callable[..., str | None] | None, handler: str, arguments: Callable[[], Mapping[str, Any]]
) -> str | None:
    """The key of a call: the value of the option, or of its function of the arguments.

    Raises:
        InvalidPayload: the function failed or did not return a key.
    """
    value: object = derive(option, key, handler, arguments()) if callable(key) else key
    if value is None or isinstance(value, str):
        return value
    why = f"its {option} function returned {type(value).__name__}, not text or None"
    raise InvalidPayload(handler=handler, why=why)


class UniqueFor(NamedTuple):
    """How long a task holds its unique key.

    Args:
        scope: kind of limit.
        seconds: duration for Scope.FOR_A_TIME; None for the other scopes.
        window: seconds by which each duplicate delays the waiting task; None unless duplicates are debounced.
        longest: seconds from the first submit up to which they may delay it; None for no limit.
    """

    scope: Scope
    seconds: float | None = None
    window: float | None = None
    longest: float | None = None


class Unique(NamedTuple):
    """The options that make tasks unique; None leaves an option to more general ones.

    Args:
        key: the key, or the function that computes it.
        unique_for: how long a task holds it; until the task is finished by default.
        on_duplicate: how to treat a duplicate; skip it by default.
    """

    key: UniqueKey | None = None
    unique_for: UniqueFor | None = None
    on_duplicate: OnDuplicate | None = None

    @classmethod
    def read(cls, key: UniqueKey | None, unique: str | None, on_duplicate: str | None) -> Self:
        """Parse the options.

        Raises:
            InvalidTask: the key, the scope or on_duplicate is not valid.
        """
        if key is not None and not callable(key):
            require_text("unique_key", key)
        return cls(
            key,
            None if unique is None else parse_scope(unique),
            None if on_duplicate is None else parse_on_duplicate(on_duplicate),
        )

    def completed_from(self, general: "Unique") -> "Unique":
        """Return these options, completed from more general ones."""
        return Unique(
            general.key if self.key is None else self.key,
            self.unique_for or general.unique_for,
            self.on_duplicate or general.on_duplicate,
        )

    def require(self, signature: Signature) -> None:
        """Reject a key function that does not fit the handler, and options without a key.

        Raises:
            InvalidHandler: the function takes arguments that the handler does not have.
            InvalidTask: unique_key is missing.
        """
        if callable(self.key):
            require_names("unique_key", self.key, signature.name, signature.takes)
        self.require_key()

    def require_key(self) -> None:
        """Reject a scope or on_duplicate without a key.

        Raises:
            InvalidTask: unique_key is missing, or debounce is combined with another on_duplicate than replace.
        """
        if self.key is None:
            raise InvalidTask(field="unique_key", value=None, why="unique and on_duplicate need a unique_key")
        if self.window is not None and self.on_duplicate not in (None, OnDuplicate.REPLACE):
            why = "debounce replaces the waiting task; omit on_duplicate"
            raise InvalidTask(field="on_duplicate", value=str(self.on_duplicate), why=why)

    @property
    def window(self) -> float | None:
        """Seconds by which each duplicate delays the waiting task; None unless duplicates are debounced."""
        return self.unique_for.window if self.unique_for else None

    def of(self, handler: str, arguments: Callable[[], Mapping[str, Any]]) -> UniqueSpec | None:
        """Return the unique key of a call; None without one.

        Args:
            handler: handler name.
            arguments: returns the call's arguments, including defaults.

        Raises:
            InvalidPayload: the function failed or did not return a key.
        """
        key = _key_of("unique_key", self.key, handler, arguments)
        if key is None:
            return None
        unique_for = self.unique_for or UniqueFor(Scope.UNTIL_FINISHED)
        default = OnDuplicate.SKIP if self.window is None else OnDuplicate.REPLACE
        return UniqueSpec(key, unique_for.scope, unique_for.seconds, self.on_duplicate or default, unique_for.longest)


def parse_scope(text: str) -> UniqueFor:
    """Parse a scope: `until finished`, `until started`, `forever`, `for 1h`, `debounce 5s`, `debounce 5s up to 1m`.

    Raises:
        InvalidTask: the text is not a scope.
    """
    match text.split() if isinstance(text, str) else text:
        case ["forever"]:
            return UniqueFor(Scope.FOREVER)
        case ["until", "finished"]:
            return UniqueFor(Scope.UNTIL_FINISHED)
        case ["until", "started"]:
            return UniqueFor(Scope.UNTIL_STARTED)
        case ["for", *length] if length:
            with contextlib.suppress(InvalidDuration):
                return UniqueFor(Scope.FOR_A_TIME, parse_duration(" ".join(length)).total_seconds())
        case ["debounce", *length] if length:
            window, up_to, longest = " ".join(length).partition(" up to ")
            with contextlib.suppress(InvalidDuration):
                return _debounced(parse_duration(window), parse_duration(longest) if up_to else None)
    raise InvalidTask(field="unique", value=text, why=SCOPES)


def _debounced(window: timedelta, longest: timedelta | None) -> UniqueFor:
    if not window:
        raise InvalidTask(field="unique", value="debounce 0s", why="the window must be more than 0")
    if longest is not None and longest < window:
        why = f"it must not be below the window, {format_duration(window)}"
        raise InvalidTask(field="unique", value=format_duration(longest), why=why)
    limit = None if longest is None else longest.total_seconds()
    return UniqueFor(Scope.UNTIL_STARTED, None, window.total_seconds(), limit)


def parse_on_duplicate(text: str) -> OnDuplicate:
    """Parse on_duplicate.

    Raises:
        InvalidTask: the text is not `skip`, `replace` or `error`.
    """
    try:
        return OnDuplicate(text)
    except ValueError:
        raise InvalidTask(field="on_duplicate", value=text, why="use skip, replace or error") from None


def check_unique(unique: UniqueSpec) -> None:
    """Reject a unique key that a row cannot hold, and a duration out of bounds.

    Raises:
        InvalidTask: a value is not valid.
    """
    if not unique.key:
        raise InvalidTask(field="unique_key", value="", why="it must not be empty")
    require_storable("unique_key", unique.key, LONGEST_KEY)
    if unique.scope is Scope.FOR_A_TIME and not 0 < (unique.seconds or 0) < LONGEST_SECONDS:
        raise InvalidTask(field="unique", value=unique.seconds, why=OUT_OF_BOUNDS)
    if unique.longest is not None and not 0 < unique.longest < LONGEST_SECONDS:
        raise InvalidTask(field="unique", value=unique.longest, why=OUT_OF_BOUNDS)


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

    def completed_from(self, general: "Order") -> "Order":
        """Return these options, completed from more general ones."""
        return Order(general.key if self.key is None else self.key, self.on_failure or general.on_failure)

    def require(self, signature: Signature) -> None:
        """Reject a key function that does not fit the handler, and a rule without a key.

        Raises:
            InvalidHandler: the function takes arguments that the handler does not have.
            InvalidTask: order_key is missing.
        """
        if callable(self.key):
            require_names("order_key", self.key, signature.name, signature.takes)
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
        key = _key_of("order_key", self.key, handler, arguments)
        return None if key is None else OrderSpec(key, self.on_failure or "wait")


def check_order(order: OrderSpec) -> None:
    """Reject an order key that a row cannot hold, and an unknown rule.

    Raises:
        InvalidTask: a value is not valid.
    """
    if not order.key:
        raise InvalidTask(field="order_key", value="", why="it must not be empty")
    require_storable("order_key", order.key, LONGEST_KEY)
    Order.read(order.key, order.on_failure)
