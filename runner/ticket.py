"""Ticket: what a submit returns, the task's id and the way to its result."""

from collections.abc import Collection, Iterable
from typing import ClassVar, Generic, TypeVar

R = TypeVar("R")


class Ticket(int, Generic[R]):
    """The id of a task that was submitted; a plain number to whoever wants no more."""

    __slots__ = ()  # so that the garbage collector has nothing to do with a hundred thousand of them

    duplicate: ClassVar[bool] = False
    """True when the task was there already, and nothing was added."""


class DuplicateTicket(Ticket[R]):
    """The id of a task that stood in the way of another with the same unique key."""

    __slots__ = ()

    duplicate = True


def tickets(ids: Iterable[int], duplicates: Collection[int] = ()) -> list[Ticket[R]]:
    """Make a ticket of each id.

    Args:
        ids: the tasks'.
        duplicates: the places, from 0, of those that were there already.
    """
    made: list[Ticket[R]] = [*map(Ticket, ids)]
    for place in duplicates:
        made[place] = DuplicateTicket(made[place])
    return made
