"""What a command is aimed at: one task, tasks by number, or those that a filter lets through."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from runner.errors import InvalidInput
from runner.people import views
from runner.people.filters import Filter, parse_filter
from runner.people.person import local_zone, now

HIGHEST_ID = 2**63 - 1

TaskId: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=HIGHEST_ID))]
"""The number of a task, as both databases can hold it."""

EntryId: TypeAlias = TaskId
"""The number of an entry of the audit."""

RunnerId: TypeAlias = TaskId
"""The number of a runner."""


def read_targets(words: Sequence[str]) -> list[int] | Filter:
    """Tell numbers of tasks from a filter.

    Args:
        words: as they were typed.

    Returns:
        The numbers, each once and in order; or the filter.

    Raises:
        InvalidInput: there is nothing, everything, or a mixture of both.
        InvalidFilter: the filter is not understood.
    """
    numbers = [word for word in words if word.isdecimal()]
    if numbers and len(numbers) == len(words):
        return [_number(word) for word in dict.fromkeys(numbers)]
    if numbers:
        raise InvalidInput(why=f"{numbers[0]} among the terms of a filter: write id:{numbers[0]}, or numbers alone")
    wanted = read_filter(words)
    if not wanted.terms:
        raise InvalidInput(why="say which tasks: numbers, or a filter such as 'queue:mail state:dead'")
    return wanted


def read_filter(words: Sequence[str]) -> Filter:
    """Read a filter, in which @name stands for one that was saved.

    Args:
        words: as they were typed.

    Raises:
        InvalidInput: there is no such view.
        InvalidFilter: the filter is not understood.
    """
    return parse_filter(views.expanded(words, views.default_path()), now(), local_zone())


def _number(word: str) -> int:
    if not 1 <= int(word[:20]) <= HIGHEST_ID:
        raise InvalidInput(why=f"{word[:30]} is not the number of a task")
    return int(word)
