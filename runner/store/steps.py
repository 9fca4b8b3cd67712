"""Steps: a verb as the statements it needs, one after the other; whoever has the connection executes them.

A verb that applications use inside transactions of their own is written once, as a generator that yields statements
and is sent their rows. It does no I/O, so that any connection can follow it: ours, or the application's, awaited or
not.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa

from runner.schema import Tables
from runner.store.dialects import Dialect
from runner.store.statement import Prepared

T = TypeVar("T")


class Step(NamedTuple):
    """One statement to execute.

    Args:
        prepared: the statement.
        parameters: by name.
    """

    prepared: Prepared
    parameters: dict[str, Any]


Steps: TypeAlias = Generator[Step, list[Any], T]
"""Yields statements, is sent the rows of each as tuples, and returns what the verb returns."""


class Frame(Protocol):
    """What writing statements takes: a Transaction has it, and so has any connection that is followed."""

    @property
    def tables(self) -> Tables:
        """The tables of the installation."""
        ...

    @property
    def dialect(self) -> Dialect:
        """The differences of the database."""
        ...

    @property
    def driver(self) -> sa.Dialect:
        """What statements are compiled for."""
        ...


def follow(steps: Steps[T], execute: Callable[[Step], list[Any]]) -> T:
    """Execute the statements of a verb, one after the other, and return what it returns.

    Args:
        steps: of the verb.
        execute: executes one statement and returns its rows; what it raises ends the verb.
    """
    rows: list[Any] | None = None
    while True:
        try:
            step = steps.send(rows) if rows is not None else next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        rows = execute(step)


async def follow_async(steps: Steps[T], execute: Callable[[Step], Awaitable[list[Any]]]) -> T:
    """Do what `follow` does on a connection whose statements are awaited."""
    rows: list[Any] | None = None
    while True:
        try:
            step = steps.send(rows) if rows is not None else next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        rows = await execute(step)
