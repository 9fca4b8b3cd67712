"""Ticket: what a submit returns, the task's id and the way to its result."""

from collections.abc import Collection, Iterable
from typing import Any, Generic, Self, TypeVar

from runner.handlers import Handler

R = TypeVar("R")


class Ticket(int, Generic[R]):
    """The id of a task that was submitted; a plain number to whoever wants no more."""

    handler: Handler
    """Of the task."""

    duplicate: bool = False
    """True when the task was there already, and nothing was added."""

    @classmethod
    def each(cls, handler: Handler, ids: Iterable[int], duplicates: Collection[int] = ()) -> list[Self]:
        """Make a ticket of each id.

        Args:
            handler: of all these tasks.
            ids: theirs.
            duplicates: the places, from 0, of those that were there already.
        """
        tickets = [*map(cls, ids)]  # a constructor of our own would take a microsecond for each
        for ticket in tickets:
            ticket.handler = handler
        for place in duplicates:
            tickets[place].duplicate = True
        return tickets

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to other processes as the number, since a handler does not."""
        return int, (int(self),)
