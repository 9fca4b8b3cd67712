"""Rules: the options of a handler from which each call derives its unique key, bucket and tenant."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

from runner.errors import InvalidPayload, InvalidTask
from runner.handlers.functions import derive, require_names
from runner.handlers.keys import Order, OrderKey, Unique, UniqueKey
from runner.handlers.signature import Signature
from runner.model.outcome import Outcome
from runner.model.task import BUCKETS, NewTask

Tenant: TypeAlias = str | Callable[..., str | None]
"""The tenant of a task, or a function that returns it, or None for no tenant, from the call's arguments."""


def tenant_of(tenant: Tenant | None, handler: str, arguments: Callable[[], Mapping[str, Any]]) -> str | None:
    """Return the tenant of a call; None for none.

    Args:
        tenant: the task option.
        handler: handler name.
        arguments: returns the call's arguments, including defaults.

    Raises:
        InvalidPayload: the function failed or did not return text.
    """
    if not callable(tenant):
        return tenant
    name = derive("tenant", tenant, handler, arguments())
    if name is not None and not isinstance(name, str):
        why = f"its tenant function returned {type(name).__name__}, not text; use str(...)"
        raise InvalidPayload(handler=handler, why=why)
    return name


Bucket: TypeAlias = int | Callable[..., int]
"""A number from 0 to BUCKETS - 1, or a function that computes a whole number from the call's arguments.

The bucket is that number modulo BUCKETS. The function receives arguments as a unique_key function does."""


def bucket_of(bucket: Bucket | None, handler: str, arguments: Callable[[], Mapping[str, Any]]) -> int | None:
    """Return the bucket of a call; None for a random one.

    Args:
        bucket: the task option.
        handler: handler name.
        arguments: returns the call's arguments, including defaults.

    Raises:
        InvalidPayload: the function failed or did not return a whole number.
    """
    if not callable(bucket):
        return bucket
    number = derive("bucket", bucket, handler, arguments())
    if not isinstance(number, int):
        why = f"its bucket function returned {type(number).__name__}, not a whole number"
        raise InvalidPayload(handler=handler, why=why)
    return number % BUCKETS


class Rules(NamedTuple):
    """Options that derive values from the arguments of a call.

    Args:
        unique: unique key options; None without deduplication.
        bucket: bucket option; None for a random bucket.
        order: order options; None for tasks that run in any order.
        tenant: tenant option; None for no tenant.
    """

    unique: Unique | None = None
    bucket: Bucket | None = None
    order: Order | None = None
    tenant: Tenant | None = None

    @classmethod
    def read(
        cls,
        unique_key: UniqueKey | None = None,
        unique: str | None = None,
        on_duplicate: str | None = None,
        bucket: Bucket | None = None,
        tenant: Tenant | None = None,
        order_key: OrderKey | None = None,
        order_on_failure: str | None = None,
    ) -> Self:
        """Parse the options.

        Raises:
            InvalidTask: an option is not valid.
        """
        no_key = unique_key is None and unique is None and on_duplicate is None
        unique_options = None if no_key else Unique.read(unique_key, unique, on_duplicate)
        unordered = order_key is None and order_on_failure is None
        return cls(unique_options, bucket, None if unordered else Order.read(order_key, order_on_failure), tenant)

    def completed_from(self, general: "Rules") -> "Rules":
        """Return these rules, completed from more general ones."""
        unique = (
            self.unique.completed_from(general.unique)
            if self.unique and general.unique
            else self.unique or general.unique
        )
        order = (
            self.order.completed_from(general.order) if self.order and general.order else self.order or general.order
        )
        bucket = general.bucket if self.bucket is None else self.bucket
        return Rules(unique, bucket, order, general.tenant if self.tenant is None else self.tenant)

    def require_keys(self) -> None:
        """Reject options that need a key, without one.

        Raises:
            InvalidTask: unique_key or order_key is missing.
        """
        for options in (self.unique, self.order):
            if options is not None:
                options.require_key()

    def require(self, signature: Signature) -> None:
        """Reject rules that do not fit a handler.

        Raises:
            InvalidHandler: a function takes arguments that the handler does not have.
            InvalidTask: unique_key is missing.
        """
        for options in (self.unique, self.order):
            if options is not None:
                options.require(signature)
        for option, function in (("bucket", self.bucket), ("tenant", self.tenant)):
            if callable(function):
                require_names(option, function, signature.name, signature.takes)

    def applied(self, task: NewTask, arguments: Callable[[], Mapping[str, Any]]) -> NewTask:
        """Return a task with its derived values.

        Args:
            task: the task, with its payload.
            arguments: returns the call's arguments, including defaults; called at most once.

        Raises:
            InvalidPayload: a function failed or returned an invalid value.
            InvalidTask: the task has a due time, and duplicates are debounced.
        """
        cached_arguments = cache(arguments)
        unique = self.unique.of(task.handler, cached_arguments) if self.unique else None
        order = self.order.of(task.handler, cached_arguments) if self.order else None
        bucket = bucket_of(self.bucket, task.handler, cached_arguments)
        tenant = tenant_of(self.tenant, task.handler, cached_arguments)
        task = task._replace(unique=unique, order=order, bucket=bucket, tenant=tenant)
        if unique is None or self.unique is None or self.unique.window is None:
            return task
        if task.run_at is not None or task.delay is not None:
            why = "debounce sets the due time: omit run_at and delay"
            raise InvalidTask(field="unique", value="debounce", why=why)
        return task._replace(delay=self.unique.window)


NO_RULES = Rules()
"""No derived values."""


class BreakerRule(Protocol):
    """When a handler stops because its tasks fail; runner.policy.breaker.Breaker is one."""

    @property
    def columns(self) -> dict[str, Any]:
        """The definition, as the registry of handlers stores it."""

    def effect(self, outcome: Outcome, error: BaseException | None) -> Literal["", "counts", "opens"]:
        """Decide the effect of the end of an attempt, which an exception may have led to."""
