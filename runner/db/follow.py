"""follow: the driver of a generator that yields steps, blocking or on an event loop. It imports no SQLAlchemy."""

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

S = TypeVar("S")
A = TypeVar("A")
T = TypeVar("T")


def follow(steps: Generator[S, A, T], execute: Callable[[S], A]) -> T:
    """Execute the steps of a generator, such as those of a store verb, and return its result.

    Args:
        execute: executes one step and returns its answer, such as rows; the generator receives its exceptions.
    """
    try:
        step = next(steps)
        while True:
            try:
                answer = execute(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def follow_async(steps: Generator[S, A, T], execute: Callable[[S], Awaitable[A]]) -> T:
    """Execute the steps of a generator on an event loop; see `follow`."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await execute(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
