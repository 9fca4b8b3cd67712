"""A cache with expiry, for expensive queries whose results change slowly."""

import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


SHARE = 100
"""An entry is valid for at least this multiple of its query's duration."""


class TtlCache(Generic[T]):
    """The last result of one kind of query.

    Args:
        seconds: minimum validity.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._entry: tuple[Hashable, float, T] | None = None

    async def get(self, key: Hashable, load: Callable[[], Awaitable[T]]) -> T:
        """Return the cached value, or load it.

        Args:
            key: identifies the query; another key discards the entry.
            load: runs the query.
        """
        now = self._clock()
        if self._entry is not None and self._entry[0] == key and now < self._entry[1]:
            return self._entry[2]
        value = await load()
        end = self._clock()
        self._entry = (key, end + max(self._seconds, (end - now) * SHARE), value)
        return value
