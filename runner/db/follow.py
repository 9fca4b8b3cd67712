"""follow: the driver of a generator that yields steps, blocking or on an event loop. It imports no SQLAlchemy."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

S = TypeVar("S")
A = TypeVar("A")
T = TypeVar("T")


def follow(steps: Generator[S, A, T], execute: Callable[[S], A]) -> T:
    """Execute the steps of a generator, such as those of a store verb, and return its result.

    Args:
        execute: executes one step and returns its answer, such as rows; its exceptions end the generator.
    """
    answer: Any = None
    try:
        while True:
            answer = execute(steps.send(answer))
    except StopIteration as end:
        result: T = end.value
        return result


async def follow_async(steps: Generator[S, A, T], execute: Callable[[S], Awaitable[A]]) -> T:
    """Execute the steps of a generator on an event loop; see `follow`."""
    answer: Any = None
    try:
        while True:
            answer = await execute(steps.send(answer))
    except StopIteration as end:
        result: T = end.value
        return result
