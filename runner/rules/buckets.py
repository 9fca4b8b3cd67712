"""buckets: the number by which the tasks of one handler are spread over runners."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from runner.errors import InvalidPayload
from runner.rules.derived import derive
from runner.task import BUCKETS

Bucket: TypeAlias = int | Callable[..., int]
"""A number from 0 to BUCKETS - 1, or a function that makes any whole number of the call's arguments, of which the
remainder by BUCKETS is taken; arguments reach it as they do a unique_key."""


def bucket_of(bucket: Bucket | None, handler: str, arguments: Callable[[], Mapping[str, Any]]) -> int | None:
    """The bucket of one call; None for one at random.

    Args:
        bucket: as its author said it.
        handler: its name.
        arguments: gives the call's arguments, as the handler would get them.

    Raises:
        InvalidPayload: no number can be made of the arguments.
    """
    if not callable(bucket):
        return bucket
    number = derive("bucket", bucket, handler, arguments())
    if not isinstance(number, int):
        why = f"its bucket function returned {type(number).__name__}, and must return a whole number"
        raise InvalidPayload(handler=handler, why=why)
    return number % BUCKETS
