"""The parts of the bench: their names, in the order of execution, and their functions."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from runner.cli.bench.context import BenchContext
from runner.cli.bench.drain import drain, latency, sustained
from runner.cli.bench.plan import Measurement
from runner.cli.bench.submit import bulk, coalesced, one
from runner.errors import InvalidInput
from runner.filter.fields import suggestion


class BenchPart(NamedTuple):
    """A part of the bench.

    Args:
        words: description for people.
    """

    words: str
    measure: Callable[[BenchContext], Awaitable[Measurement]]


PARTS = {
    "one": BenchPart("submit one by one, each committed", one),
    "bulk": BenchPart("submit many in one call", bulk),
    "coalesced": BenchPart("submit single tasks from many coroutines, then threads", coalesced),
    "drain": BenchPart("run a backlog of empty tasks", drain),
    "latency": BenchPart("from submit to start, on an idle runner", latency),
    "load": BenchPart("submit as fast as tasks run", sustained),
}
"""Every part of `runner bench`."""

GROUPS = {"submit": ("one", "bulk", "coalesced")}
"""Names of several parts."""


def read_parts(text: str, parts: Mapping[str, BenchPart], groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Parse names of parts and groups, separated by commas.

    Returns:
        The names in the order of `parts`; all of them if the text names none.

    Raises:
        InvalidInput: a name is unknown.
    """
    names = {name for name in (piece.strip() for piece in text.split(",")) if name}
    for group in names & groups.keys():
        names = names - {group} | {*groups[group]}
    for name in sorted(names - parts.keys()):
        hint = suggestion(name, (*parts, *groups))
        raise InvalidInput(why=f"unknown part {name!r}{hint}; parts: {', '.join([*parts, *groups])}")
    return tuple(name for name in parts if name in names or not names)
