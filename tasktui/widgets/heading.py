"""Heading: where we are, whether changes are allowed, how the database does, and where else one can go."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from textwrap import wrap

from rich.cells import cell_len
from textual.content import Content

from runner.store.observe import Ping
from tasktui.draw.render import content, fitted, line, lines
from tasktui.widgets.said import Said


@dataclass(frozen=True, slots=True)
class Status:
    """What the heading says.

    Args:
        name: what the database is called.
        production: it is one where a mistake hurts.
        lock: whether changes are allowed, in words; empty when nothing need be said.
        ping: how fast the database answers one question, and how far its clock is ahead of ours; None when that is not
            known yet.
        load: how often we asked in the last minute.
        clock: the time of day.
        places: keys and titles of the screens.
        here: the title of this one.
        trouble: what is wrong with the database, with the age of what is shown; empty when nothing is.
        work: how far something long has come; empty when nothing is under way.
        old: how long ago was seen what is shown; empty while that is as new as usual.
    """

    name: str
    production: bool
    lock: str
    ping: Ping | None
    load: int
    clock: str
    places: Sequence[tuple[str, str]]
    here: str
    trouble: str = ""
    work: str = ""
    old: str = ""

    @property
    def pressing(self) -> tuple[object, ...]:
        """What cannot wait for the next second."""
        return self.clock, self.name, self.production, self.lock, self.here, self.trouble, self.work, self.old


HELP = "? help "

LONGEST_NAME, SHORTEST_NAME = 40, 8
"""Cells of what the database is called."""

ROOM = 22
"""Cells beside that name, for our own and the clock."""

ROOM_FOR_AGE = 60
"""Cells of a line on which there is room for the age of what is shown beside what must not be overlooked."""

MOST_LINES = 4
"""Lines that trouble takes at most."""


class Heading(Said):
    """The first lines of every screen."""

    DEFAULT_CSS = "Heading { height: auto; text-wrap: nowrap; }"

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[object, ...] | None = None

    def show(self, status: Status) -> None:
        """Show a status; figures that change all the time are shown anew with the clock, once a second."""
        width = self.app.size.width
        if (status.pressing, width) == self._shown:
            return
        self._shown = (status.pressing, width)
        parts = [told_first(status, width), told_second(status, width)]
        if status.work:
            parts.append(content((fitted(f" ▸ {line(status.work)}", width), "bold reverse")))
        parts += [content((fitted(f" {text}", width), "bold reverse red")) for text in _wrapped(status.trouble, width)]
        self.say(lines(parts))


def _wrapped(trouble: str, width: int) -> list[str]:
    """What is wrong, in whole sentences: what to do about it stands at the end."""
    text = f"! {line(trouble, MOST_LINES * width)}" if trouble else ""
    return wrap(text, max(10, width - 2), subsequent_indent="  ", max_lines=MOST_LINES, placeholder=" …")


def milliseconds(skew: timedelta) -> str:
    """A difference of clocks, with its sign: `+3 ms`, `-2.4 s`."""
    seconds = skew.total_seconds()
    return f"{round(seconds * 1000):+d} ms" if abs(seconds) < 1 else f"{seconds:+,.1f} s"


def _cut(name: str, most: int) -> str:
    shown = line(name)
    return fitted(shown, min(cell_len(shown), most))


def told_first(status: Status, width: int) -> Content:
    """Where we are, whether changes are allowed, and how the database does: one line of so many cells."""
    skew = "" if status.ping is None else f"skew {milliseconds(status.ping.skew)}"
    took = "" if status.ping is None else f"db {status.ping.took * 1000:.1f} ms"
    badge = " PRODUCTION " if status.production else ""
    lock = f" {status.lock} " if status.lock else ""
    old = f" seen {status.old} ago " if status.old and width >= ROOM_FOR_AGE else ""
    beside = cell_len(badge) + cell_len(lock) + cell_len(old)
    name = f" tasktui  {_cut(status.name, min(LONGEST_NAME, max(SHORTEST_NAME, width - beside - ROOM)))}  "
    if cell_len(name) + beside > width:  # what must not be overlooked goes first
        name = f" {_cut(status.name, SHORTEST_NAME)} "
        lock = fitted(lock, max(0, min(cell_len(lock), width - cell_len(name) - cell_len(badge) - cell_len(old))))
        beside = cell_len(badge) + cell_len(lock) + cell_len(old)
    room = max(0, width - beside - cell_len(name))
    # What does not fit is left out from the left: the clock shows that the screen is alive.
    told = [part for part in (f"our load {status.load} q/min", skew, took, status.clock) if part]
    while len(told) > 1 and len("  ".join(told)) + 2 > room:
        told.pop(0)
    rest = fitted("  ".join(told) + " ", room, right=True)
    signs = (badge, "bold white on red"), (lock, "bold reverse"), (old, "bold reverse yellow")
    return content((name, "bold"), *signs, (rest, "dim"))


def told_second(status: Status, width: int) -> Content:
    """Where one can go: one line of so many cells, or a little more where not even the keys have room."""
    whole = sum(cell_len(f" {key} {title} ") for key, title in status.places) <= width
    parts = []
    for key, title in status.places:
        here = title == status.here
        # Where there is no room for all names, the keys stand alone.
        text = f" {key} {title} " if whole or here else f" {key} "
        parts.append((text, "bold reverse" if here else ""))
    used = sum(cell_len(text) for text, _ in parts)
    left = max(0, width - used)
    return content(*parts, (fitted(HELP if len(HELP) <= left else "", left, right=True), "dim"))
