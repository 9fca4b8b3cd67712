"""The comparison of `runner stats --beside`: the queues of two databases, or of one at two times."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runner.cli.options import Connection, open_database
from runner.cli.output import print_json, print_line, print_table
from runner.db.database import Database
from runner.errors import InvalidInput, UnknownProfile
from runner.queries.comparison import HEADS, QueueFigures, Side, facts, in_order, read_side, text_of
from runner.queries.past.as_of import read_moment
from runner.text.columns import Column, figure
from runner.text.formatting import clock
from runner.text.operator import local_zone, now


class ComparedQueue(NamedTuple):
    """A queue on both sides.

    Args:
        differs: the figures that differ; all of them for a queue on one side only.
        sides: its figures by name of the side; None where it does not exist.
    """

    queue: str
    differs: Sequence[str]
    sides: Mapping[str, QueueFigures | None]


class ComparedFact(NamedTuple):
    """Another fact of both sides, such as the versions of their runners."""

    name: str
    differs: bool
    sides: Mapping[str, str]


class ComparisonDocument(NamedTuple):
    """Two databases, or one at two times.

    Args:
        queues: the queues, those that differ first.
        facts: runners, slots and versions; none at a past time.
    """

    queues: Sequence[ComparedQueue]
    facts: Sequence[ComparedFact]


async def print_comparison(database: Database, name: str, beside: str, connection: Connection, *, json: bool) -> None:
    """Compare a database with another one, or with itself at a past time.

    Args:
        name: its profile; empty without one.
        beside: a profile, or a past time.

    Raises:
        InvalidInput: it is neither.
    """
    try:
        settings = Connection(profile=beside, config=connection.config).settings()
    except UnknownProfile as unknown:
        sides = await _at_two_times(database, beside, unknown)
    else:
        async with open_database(settings) as other:
            reads = database.read(read_side, name or "here"), other.read(read_side, beside)
            sides = tuple(await asyncio.gather(*reads))
    one, other_side = sides
    if one.name == other_side.name:
        raise InvalidInput(why=f"{beside} is the database itself; name another profile, or a past time")
    document = _document(one, other_side)
    print_json(document) if json else _print(document)


async def _at_two_times(database: Database, beside: str, unknown: UnknownProfile) -> tuple[Side, ...]:
    zone = local_zone()
    try:
        at = await database.read(read_moment, beside, zone)
    except InvalidInput as error:
        raise InvalidInput(why=f"{error.fields['why']}; {unknown}") from error
    past = await database.read(read_side, clock(at, now(), zone), at)
    return past, await database.read(read_side, "now")


def _document(one: Side, other: Side) -> ComparisonDocument:
    queues = [
        ComparedQueue(name, fields, {side.name: side.queues.get(name) for side in (one, other)})
        for name, fields in in_order(one, other).items()
    ]
    others = [
        ComparedFact(name, is_unlike, {one.name: first, other.name: second})
        for name, first, second, is_unlike in facts(one, other)
    ]
    return ComparisonDocument(queues, others)


class _Line(NamedTuple):
    """A queue on one side."""

    queue: ComparedQueue
    side: str

    @property
    def figures(self) -> QueueFigures | None:
        """Its figures; None where it does not exist."""
        return self.queue.sides[self.side]


def _figure(title: str, field: str) -> Column[_Line]:
    return figure(title, lambda each: text_of(each.figures, field))


def _differences(each: _Line) -> str:
    missing = [side for side, figures in each.queue.sides.items() if figures is None]
    return f"not in {missing[0]}" if missing else ", ".join(each.queue.differs)


COLUMNS: Sequence[Column[_Line]] = (
    Column("QUEUE", lambda each: each.queue.queue),
    Column("SIDE", lambda each: each.side),
    *(_figure(title, field) for title, field in HEADS),
    Column("DIFFERS", _differences),
    Column("LIMITS", lambda each: each.figures.settings if each.figures else ""),
)


def _print(document: ComparisonDocument) -> None:
    lines = [_Line(queue, side) for queue in document.queues for side in queue.sides if queue.sides[side] is not None]
    print_table(COLUMNS, lines)
    for fact in document.facts:
        mark = " (differs)" * fact.differs
        print_line(f"{fact.name}: {', '.join(f'{side} {value}' for side, value in fact.sides.items())}{mark}")
