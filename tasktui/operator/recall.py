"""Recall: keep an answer of the database for a while, for questions whose answers cost much and change slowly."""

import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


SHARE = 100
"""An answer is kept at least so many times as long as it took."""


class Recall(Generic[T]):
    """The last answer to one kind of question.

    Args:
        seconds: for which it is good, at least.
        clock: seconds that never go backwards.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: tuple[Hashable, float, T] | None = None

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Answer from memory, or ask.

        Args:
            question: what is asked for; an answer to another one is not used.
            ask: asks the database.
        """
        now = self._clock()
        if self._kept is not None and self._kept[0] == question and now < self._kept[1]:
            return self._kept[2]
        answer = await ask()
        ended = self._clock()
        self._kept = (question, ended + max(self._seconds, (ended - now) * SHARE), answer)
        return answer
