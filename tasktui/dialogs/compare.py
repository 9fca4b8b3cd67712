"""CompareScreen: two databases, or two times of one, side by side, with the differences marked."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from textual.content import Content

from runner.errors import InvalidInput, RunnerError
from runner.queries.comparison import HEADS, QueueFigures, Side, differs, facts, in_order, read_side, text_of
from runner.queries.past.as_of import read_moment
from runner.text import formatting
from tasktui.dialogs.answer import AnswerScreen
from tasktui.messages import Tone
from tasktui.render.render import content, fitted, line
from tasktui.session.databases import Databases
from tasktui.session.session import Session

if TYPE_CHECKING:
    from tasktui.render.rows import Part

CELL, NAME = 8, 12
"""Cells of a figure, and of a name at least."""

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
        count = max(1, min(len(HEADS), (width - NAME - 2) // (2 * CELL + 1)))
        both = [name for name in fields if name in one.queues and name in other.queues]
        heads = chosen_heads({field for name in both for field in fields[name]}, count)
        room = width - 2 - count * (2 * CELL + 1)
        unlike = sum(bool(each) for each in fields.values())
        yield content(
            (f"{unlike} of {len(fields)} queues differ: {DIFFERENT} is twice as much, or on one side only", "muted")
        )
        yield content("")
        titles: list[Part] = [(" " * (room + 2), "")]
        places: list[Part] = [(fitted("  NAME", room + 2), "muted")]
        for head, _ in heads:
            titles.append((f"{head:>{2 * CELL + 1}}", "muted"))
            places += [(fitted(line(side.name), CELL - 1, right=True) + " ", "faint") for side in answer] + [(" ", "")]
        yield content(*titles)
        yield content(*places)
        for name, unlike_fields in fields.items():
            sides = one.queues.get(name), other.queues.get(name)
            yield from _queue(name, sides, [each for _, each in heads], room, is_unlike=bool(unlike_fields))
        yield content("")
        for fact, first, second, is_unlike in facts(one, other):
            sign = DIFFERENT if is_unlike else " "
            yield content(
                (f"{sign} ", "bold retrying"), (f"{fact:10}", "muted"), (f"{line(first)}  |  {line(second)}", "text")
            )

    def hint(self) -> str:
        """The key that closes it."""
        return "escape closes"


def chosen_heads(unlike: Collection[str], count: int) -> Sequence[tuple[str, str]]:
    """The heads with room: those of figures that differ come first, in their usual order."""
    chosen = sorted(HEADS, key=lambda head: head[1] not in unlike)[:count]
    return [head for head in HEADS if head in chosen]


def _queue(
    name: str,
    sides: tuple[QueueFigures | None, QueueFigures | None],
    fields: list[str],
    room: int,
    *,
    is_unlike: bool,
) -> Iterable[Content]:
    sign = DIFFERENT if is_unlike else " "
    parts: list[Part] = [
        (f"{sign} ", "bold retrying"),
        (fitted(line(name), room), "strong" if sign.strip() else "muted"),
    ]
    for field in fields:
        marked = None not in sides and differs(*sides, field)
        for index, figures in enumerate(sides):
            text = text_of(figures, field)
            mark = DIFFERENT if marked and index else " "
            parts.append(
                (f"{text:>{CELL - 1}}", "bold retrying" if marked else "muted" if text in ("", "0") else "text")
            )
            parts.append((mark, "retrying"))
        parts.append((" ", ""))
    yield content(*parts)
    first, second = (each.settings if each is not None else "" for each in sides)
    if first != second:
        yield content((f"    {line(first or 'no limit')}  |  {line(second or 'no limit')}", "retrying"))


class ComparisonTarget(Protocol):
    """The console, as the command sees it."""

    @property
    def session(self) -> Session:
        """The session with the database in front."""
        ...

    @property
    def databases(self) -> Databases:
        """The databases of the console."""
        ...

    def run_worker(self, work: Any, *, group: str = "default") -> Any:
        """Run a coroutine beside the screens."""
        ...

    def push_screen(self, screen: Any) -> Any:
        """Open a dialog."""
        ...

    def show_notice(self, text: str, *, tone: Tone = Tone.DONE) -> None:
        """Show a notice."""
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
