"""Parses the targets of a command: ids, or a filter."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from runner.errors import InvalidInput
from runner.filter import saved
from runner.filter.parse import Filter, parse_filter
from runner.text.operator import local_zone, now

MAX_ID = 2**63 - 1

TaskId: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=MAX_ID))]
"""A task id that both databases can store."""

EntryId: TypeAlias = TaskId
"""The id of an audit entry."""

RunnerId: TypeAlias = TaskId
"""The id of a runner."""


def read_targets(words: Sequence[str]) -> list[int] | Filter:
    """Parse task ids or a filter.

    Args:
        words: the words on the command line.

    Returns:
        The ids, in order and without repetition; or the filter.

    Raises:
        InvalidInput: nothing was typed, or ids and filter terms are mixed.
        InvalidFilter: the filter has a syntax error.
    """
    ids = [word for word in words if word.isdecimal()]
    if ids and len(ids) == len(words):
        return [_id(word) for word in dict.fromkeys(ids)]
    if ids:
        raise InvalidInput(why=f"{ids[0]} is mixed with filter terms: write id:{ids[0]}, or give ids only")
    task_filter = read_filter(words)
    if not task_filter.terms:
        raise InvalidInput(why="name the tasks: ids, or a filter such as 'queue:mail state:dead'")
    return task_filter


def read_filter(words: Sequence[str]) -> Filter:
    """Parse a filter; @name inserts a saved filter.

    Args:
        words: the words on the command line.

    Raises:
        InvalidInput: a saved filter of this name does not exist.
        InvalidFilter: the filter has a syntax error.
    """
    return parse_filter(saved.expand(words, saved.default_path()), now(), local_zone())


def _id(word: str) -> int:
    if not 1 <= int(word[:20]) <= MAX_ID:
        raise InvalidInput(why=f"{word[:30]} is not a task id")
    return int(word)
