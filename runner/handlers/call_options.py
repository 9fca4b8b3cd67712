"""Call options: the task options from which each call derives its keys, bucket, tenant and route."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from runner.errors import InvalidDuration, InvalidPayload, InvalidTask
from runner.handlers.dependencies import with_key
from runner.handlers.functions import derive, require_names
from runner.handlers.signature import Signature
from runner.model.duration import LONGEST_SECONDS, format_duration, parse_duration
from runner.model.task import BUCKETS, DependsOn, NewTask, OnDuplicate, OnFailure, OrderKey, Scope, UniqueKey
from runner.model.text_limits import LONGEST_KEY, require_storable, require_text

CallText: TypeAlias = str | Callable[..., str | None]
"""Text, or a function that computes it from the call's arguments, or returns None for a call without it.

The function takes the arguments that it needs by name."""

CallNumber: TypeAlias = int | Callable[..., int]
"""A whole number, or a function that computes it from the call's arguments, which it takes by name."""

Duplicate: TypeAlias = Literal["skip", "replace", "error"]


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


UNTIL_FINISHED = UniqueFor(Scope.UNTIL_FINISHED)


class CallOptions(NamedTuple):
    """Options from which each call derives values; None leaves an option to more general ones.

    Args:
        unique_key: the unique key; None without deduplication.
        unique: how long a task holds the unique key; until it is finished by default.
        on_duplicate: how to treat a duplicate; skip it by default, and replace the waiting task with debounce.
        order_key: the order key; None for tasks that run in any order.
        order_on_failure: the effect of a dead or cancelled predecessor; "wait" by default.
        bucket: the bucket, modulo BUCKETS if it is computed; None for a random one.
        tenant: the tenant; None for none.
        route: the text that chooses the shard; None for the shard of the task that submits.
        key: the business key of a call without its own.
        after: dependencies that the handler declares, on tasks with the same key; None for none.
    """

    unique_key: CallText | None = None
    unique: UniqueFor | None = None
    on_duplicate: OnDuplicate | None = None
    order_key: CallText | None = None
    order_on_failure: OnFailure | None = None
    bucket: CallNumber | None = None
    tenant: CallText | None = None
    route: CallText | None = None
    key: CallText | None = None
    after: tuple[DependsOn, ...] | None = None

    def require_keys(self) -> None:
        """Reject options that need a key, without one.

        Raises:
            InvalidTask: unique_key or order_key is missing, or debounce is combined with another on_duplicate than
                replace.
        """
        if self.unique_key is None and (self.unique or self.on_duplicate):
            raise InvalidTask(field="unique_key", value=None, why="unique and on_duplicate need a unique_key")
        if self.unique is not None and self.unique.window and self.on_duplicate not in (None, OnDuplicate.REPLACE):
            why = "debounce replaces the waiting task; omit on_duplicate"
            raise InvalidTask(field="on_duplicate", value=str(self.on_duplicate), why=why)
        if self.order_key is None and self.order_on_failure:
            raise InvalidTask(field="order_key", value=None, why="order_on_failure needs an order_key")

    def require(self, signature: Signature) -> None:
        """Reject options that do not fit a handler.

        Raises:
            InvalidHandler: a function takes arguments that the handler does not have.
            InvalidTask: see `require_keys`.
        """
        for option, value in zip(self._fields, self, strict=True):
            if callable(value):
                require_names(option, value, signature.name, signature.takes)
        self.require_keys()

    def applied(self, task: NewTask, arguments: Callable[[], Mapping[str, Any]]) -> NewTask:
        """Return a task with its derived values.

        Args:
            arguments: returns the call's arguments, including defaults; called at most once, and only for functions.

        Raises:
            InvalidPayload: a function failed or returned an invalid value.
            InvalidTask: the task has a due time, and duplicates are debounced; or it has no key for its dependencies.
        """
        own = self
        if any(map(callable, self)):
            own = self._of_call(task, cache(arguments))
        key, unique_key, order_key, delay = task.key, None, None, task.delay
        if own.unique_key is not None:
            scope, seconds, window, longest = own.unique or UNTIL_FINISHED
            on_duplicate = own.on_duplicate or (OnDuplicate.SKIP if window is None else OnDuplicate.REPLACE)
            unique_key = UniqueKey(own.unique_key, scope, seconds, on_duplicate, longest)  # type: ignore[arg-type] # text
            if window is not None:
                if task.run_at is not None or delay is not None:
                    why = "debounce sets the due time: omit run_at and delay"
                    raise InvalidTask(field="unique", value="debounce", why=why)
                delay = window
        if own.order_key is not None:
            order_key = OrderKey(own.order_key, own.order_on_failure or "wait")  # type: ignore[arg-type] # text
        derived: Any = {"bucket": own.bucket, "tenant": own.tenant, "route": own.route}
        own_key: Any = own.key if key is None else key
        task = task._replace(key=own_key, unique_key=unique_key, order_key=order_key, delay=delay, **derived)
        return task if own.after is None else with_key(task, own.after)

    def _of_call(self, task: NewTask, arguments: Callable[[], Mapping[str, Any]]) -> "CallOptions":
        """Return these options with the values of their functions for a call."""
        values: dict[str, Any] = {}
        for option, function in zip(self._fields, self, strict=True):
            if callable(function) and not (option == "key" and task.key is not None):
                value = derive(option, function, task.handler, arguments())
                if option == "bucket" and isinstance(value, int):
                    value %= BUCKETS
                elif option == "bucket" or not (value is None or isinstance(value, str)):
                    expected = "a whole number" if option == "bucket" else "text or None; use str(...)"
                    why = f"its {option} function returned {type(value).__name__}, not {expected}"
                    raise InvalidPayload(handler=task.handler, why=why)
                values[option] = value
        return self._replace(**values)


NO_CALL_OPTIONS = CallOptions()


def require_call_text(option: str, value: Any) -> Any:
    """Reject a value that is neither text nor a function.

    Raises:
        InvalidTask: it has another type.
    """
    if not callable(value):
        require_text(option, value)
    return value


SCOPES = "use until finished, until started, forever, for 1h, debounce 5s, or debounce 5s up to 1m"


def parse_scope(text: Any) -> UniqueFor:
    """Parse a scope: `until finished`, `until started`, `forever`, `for 1h`, `debounce 5s`, `debounce 5s up to 1m`.

    Raises:
        InvalidTask: the text is not a scope.
    """
    match text.split() if isinstance(text, str) else text:
        case ["forever"]:
            return UniqueFor(Scope.FOREVER)
        case ["until", "finished"]:
            return UNTIL_FINISHED
        case ["until", "started"]:
            return UniqueFor(Scope.UNTIL_STARTED)
        case ["for", *length] if length:
            with suppress(InvalidDuration):
                return UniqueFor(Scope.FOR_A_TIME, parse_duration(" ".join(length)).total_seconds())
        case ["debounce", *length] if length:
            window, up_to, longest = " ".join(length).partition(" up to ")
            with suppress(InvalidDuration):
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


def parse_on_duplicate(text: Any) -> OnDuplicate:
    """Parse on_duplicate.

    Raises:
        InvalidTask: the text is not `skip`, `replace` or `error`.
    """
    try:
        return OnDuplicate(text)
    except ValueError:
        raise InvalidTask(field="on_duplicate", value=text, why="use skip, replace or error") from None


ON_FAILURE = get_args(OnFailure)


def parse_order_on_failure(text: Any) -> Any:
    """Parse order_on_failure.

    Raises:
        InvalidTask: the text is not `wait`, `cancel` or `run`.
    """
    if text not in ON_FAILURE:
        why = f"use {', '.join(ON_FAILURE[:-1])} or {ON_FAILURE[-1]}"
        raise InvalidTask(field="order_on_failure", value=text, why=why)
    return text


OUT_OF_BOUNDS = f"it must be a number of seconds, more than 0 and below {LONGEST_SECONDS:.0e}"


def check_unique_key(option: str, unique_key: UniqueKey) -> None:
    """Reject a unique key that a row cannot hold, and a duration out of bounds.

    Raises:
        InvalidTask: a value is not valid.
    """
    if not unique_key.text:
        raise InvalidTask(field=option, value="", why="it must not be empty")
    require_storable(option, unique_key.text, LONGEST_KEY)
    if unique_key.scope is Scope.FOR_A_TIME and not 0 < (unique_key.seconds or 0) < LONGEST_SECONDS:
        raise InvalidTask(field="unique", value=unique_key.seconds, why=OUT_OF_BOUNDS)
    if unique_key.longest is not None and not 0 < unique_key.longest < LONGEST_SECONDS:
        raise InvalidTask(field="unique", value=unique_key.longest, why=OUT_OF_BOUNDS)


def check_route(option: str, route: str) -> None:
    """Reject an empty route, and one that a header cannot hold.

    Raises:
        InvalidTask: the route is not valid.
    """
    if not route or not route.isprintable():
        raise InvalidTask(field=option, value=route[:80], why="it must have printable characters only, at least one")
    require_storable(option, route, LONGEST_KEY)


def check_order_key(option: str, order_key: OrderKey) -> None:
    """Reject an order key that a row cannot hold, and an unknown effect of a failure.

    Raises:
        InvalidTask: a value is not valid.
    """
    if not order_key.text:
        raise InvalidTask(field=option, value="", why="it must not be empty")
    require_storable(option, order_key.text, LONGEST_KEY)
    parse_order_on_failure(order_key.on_failure)
