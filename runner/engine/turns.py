"""in_turns: iterates in a thread beside the event loop without keeping the interpreter lock from it."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

ITEMS = 10
"""Items between two pauses; those of an exporter take 30 us each."""

PAUSE = 2e-5
"""Seconds; a shorter one ends before the other thread has taken the lock. Without it, the lock is held for 5 ms."""


def in_turns(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and pause after each ITEMS of them."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % ITEMS:
            time.sleep(PAUSE)
