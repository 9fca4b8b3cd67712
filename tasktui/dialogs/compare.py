"""CompareScreen: two databases, or two times of one, side by side, with the differences marked."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rich.cells import cell_len
from textual.content import Content

from runner.errors import InvalidInput, RunnerError
from runner.queries.comparison import HEADS, QueueFigures, Side, differs, facts, in_order, notable, read_side, text_of
from runner.queries.past.as_of import read_moment
from runner.text import formatting
from tasktui.commands.run import CommandTarget
from tasktui.dialogs.answer import AnswerScreen
from tasktui.messages import Tone
from tasktui.render.render import content, fitted, line
from tasktui.session.session import Session

if TYPE_CHECKING:
    from tasktui.render.rows import Part

NAME = 12
"""Cells of a name at least."""

LONGEST_NAME = 12
"""Cells of the name of a side above its figures."""

DIFFERENT = "≠"


class Place(NamedTuple):
    """A side to read.

    Args:
        at: the past time; None for the present.
    """

    session: Session
    name: str
    at: datetime | None = None

    async def read(self) -> Side:
        """Read its figures."""
        return await self.session.read(read_side, self.name, self.at)


class CompareScreen(AnswerScreen[None]):
    """The comparison of two sides; it is read again and again.

    Args:
        one: the side on the left.
        other: the side on the right.
    """

    FAILING = "One side cannot be read"
    TITLE = "Comparison"

    def __init__(self, one: Place, other: Place) -> None:
        super().__init__(one.session, f"{line(one.name, 30)} beside {line(other.name, 30)}")
        self._places = (one, other)

    async def read(self) -> object:
        """Read both sides at the same time."""
        return await asyncio.gather(*(place.read() for place in self._places))

    def answer_lines(self, answer: tuple[Side, Side], width: int) -> Iterable[Content]:
        """A row for each queue: its name, and each figure of both sides; queues that differ first."""
        one, other = answer
        fields = in_order(one, other)
        longest = max([NAME, *(cell_len(line(name)) for name in fields)])
        heads = chosen_heads(answer, width - 2 - min(longest, width // 3))
        room = width - 2 - sum(2 * head.cells + 1 for head in heads)
        unlike = sum(bool(each) for each in fields.values())
        yield content(
            (f"{unlike} of {len(fields)} queues differ: {DIFFERENT} is twice as much, or on one side only", "muted")
        )
        yield content("")
        titles: list[Part] = [(" " * (room + 2), "")]
        places: list[Part] = [(fitted("  NAME", room + 2), "muted")]
        for head in heads:
            titles.append((f"{head.title:>{2 * head.cells}} ", "muted"))
            for side in answer:
                places.append((fitted(line(side.name), head.cells - 1, right=True) + " ", "faint"))
            places.append((" ", ""))
        yield content(*titles)
        yield content(*places)
        for name, unlike_fields in fields.items():
            sides = one.queues.get(name), other.queues.get(name)
            yield from _queue(name, sides, heads, room, is_unlike=bool(unlike_fields))
        others = facts(one, other)
        if others:
            yield content("")
        for fact, first, second, is_unlike in others:
            sign = DIFFERENT if is_unlike else " "
            yield content(
                (f"{sign} ", "bold retrying"), (f"{fact:10}", "muted"), (f"{line(first)}  |  {line(second)}", "text")
            )

    def hint(self) -> str:
        """The key that closes it."""
        return "escape closes"


class ShownHead(NamedTuple):
    """A figure with room for the values of all queues.

    Args:
        cells: of one side, with the blank or the mark after it.
    """

    title: str
    field: str
    cells: int


def chosen_heads(sides: tuple[Side, Side], room: int) -> Sequence[ShownHead]:
    """The figures with room: those that differ come first, in their usual order; at least one."""
    unlike = notable(*sides)
    names = [min(cell_len(line(side.name)), LONGEST_NAME) for side in sides]
    heads = []
    for title, field in HEADS:
        texts = [text_of(queue, field) for side in sides for queue in side.queues.values()]
        heads.append(ShownHead(title, field, 1 + max([(len(title) + 1) // 2, *names, *map(len, texts)])))
    chosen: list[ShownHead] = []
    for head in sorted(heads, key=lambda head: head.field not in unlike):
        room -= 2 * head.cells + 1
        if room < 0 and chosen:
            break
        chosen.append(head)
    return [head for head in heads if head in chosen]


def _queue(
    name: str,
    sides: tuple[QueueFigures | None, QueueFigures | None],
    heads: Sequence[ShownHead],
    room: int,
    *,
    is_unlike: bool,
) -> Iterable[Content]:
    sign = DIFFERENT if is_unlike else " "
    parts: list[Part] = [
        (f"{sign} ", "bold retrying"),
        (fitted(line(name), room), "strong" if sign.strip() else "muted"),
    ]
    for _, field, cells in heads:
        marked = None not in sides and differs(*sides, field)
        for index, figures in enumerate(sides):
            text = text_of(figures, field)
            mark = DIFFERENT if marked and index else " "
            parts.append(
                (f"{text:>{cells - 1}}", "bold retrying" if marked else "muted" if text in ("", "0") else "text")
            )
            parts.append((mark, "retrying"))
        parts.append((" ", ""))
    yield content(*parts)
    first, second = (each.settings if each is not None else "" for each in sides)
    if first != second:
        yield content((f"    {line(first or 'no limit')}  |  {line(second or 'no limit')}", "retrying"))


class ComparisonTarget(CommandTarget, Protocol):
    """The console, as the command sees it."""

    def push_screen(self, screen: Any) -> Any:
        """Open a dialog."""
        ...


def open_comparison(console: ComparisonTarget, words: Sequence[str]) -> None:
    """Open the comparison of databases or past times; one of them is compared with the database in front, now.

    Args:
        words: names of databases, or past times, as typed.

    Raises:
        InvalidInput: these are not one or two words.
    """
    words = [word for word in words if word != "ago"]  # of "20m ago"
    if not 1 <= len(words) <= 2:
        raise InvalidInput(why="name databases or past times: :compare eu us, :compare 03:12, :compare 03:12 04:00")
    console.run_worker(_open(console, words), group="compare")


async def _open(console: ComparisonTarget, words: Sequence[str]) -> None:
    try:
        places = [await _place(console, word) for word in words]
    except RunnerError as error:
        console.show_notice(str(error), tone=Tone.ERROR)
        return
    front = console.session
    if len(places) == 1:
        (place,) = places
        places = [place, Place(front, "now")] if place.at is not None else [Place(front, front.name), place]
    console.push_screen(CompareScreen(*places))


async def _place(console: ComparisonTarget, word: str) -> Place:
    session = next((each for each in console.databases.sessions if each.name == word), None)
    if session is not None:
        return Place(session, word)
    front = console.session
    at = await front.read(read_moment, word, front.zone)
    return Place(front, formatting.clock(at, front.now(), front.zone), at)
