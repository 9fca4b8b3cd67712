"""Heading: the database, the write lock, the health of the connection, and the screens."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from textwrap import wrap

from rich.cells import cell_len
from textual.content import Content

from runner.queries.health import Ping
from runner.text import formatting
from tasktui.render.render import content, fitted, line, lines
from tasktui.widgets.text_block import TextBlock


@dataclass(frozen=True, slots=True)
class Status:
    """The contents of the heading.

    Args:
        name: display name of the database.
        production: True for a production database.
        lock: state of the write lock in words; empty if changes are allowed without a time limit.
        ping: latency of one query and clock skew; None if not yet measured.
        clock: time of day.
        screens: keys and titles of the screens.
        title: title of the current screen.
        trouble: error of the database, with the age of the data on the screen; empty if there is none.
        work: progress of the long operation in progress; empty if there is none.
        age: age of the data on the screen; empty while it is current.
    """

    name: str
    production: bool
    lock: str
    ping: Ping | None
    clock: str
    screens: Sequence[tuple[str, str]]
    title: str
    trouble: str = ""
    work: str = ""
    age: str = ""

    @property
    def urgent(self) -> tuple[object, ...]:
        """The parts to show before the next second."""
        return self.clock, self.name, self.production, self.lock, self.title, self.trouble, self.work, self.age


HELP = "? help "

SLOW = 0.25
"""Latency in seconds that the heading shows; a key that needs two queries then feels slow."""

LARGE_SKEW = 2.0
"""Clock skew in seconds that the heading shows; from here on, ages and times mislead."""

LONGEST_NAME, SHORTEST_NAME = 40, 8
"""Cells of the database name."""

ROOM = 22
"""Cells beside the database name, for `tasktui` and the clock."""

ROOM_FOR_AGE = 60
"""Cells of a line that has room for the age of the data."""

MOST_LINES = 4
"""Maximum number of lines of an error."""


class Heading(TextBlock):
    """The first lines of every screen."""

    DEFAULT_CSS = "Heading { height: auto; text-wrap: nowrap; }"

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[object, ...] | None = None

    def show(self, status: Status) -> None:
        """Show a status. The connection updates once a second, with the clock."""
        width = self.app.size.width
        if (status.urgent, width) == self._last:
            return
        self._last = (status.urgent, width)
        parts = [first_line(status, width), second_line(status, width)]
        if status.work:
            parts.append(content((fitted(f" ▸ {line(status.work)}", width), "bold reverse")))
        parts += [content((fitted(f" {text}", width), "bold reverse red")) for text in _wrapped(status.trouble, width)]
        self.set_text(lines(parts))


def _wrapped(trouble: str, width: int) -> list[str]:
    """Wrap an error and keep its end, which has the advice."""
    text = f"! {line(trouble, MOST_LINES * width)}" if trouble else ""
    return wrap(text, max(10, width - 2), subsequent_indent="  ", max_lines=MOST_LINES, placeholder=" …")


def milliseconds(skew: timedelta) -> str:
    """Format a clock skew with its sign: `+3 ms`, `-2.4 s`."""
    seconds = skew.total_seconds()
    return f"{round(seconds * 1000):+d} ms" if abs(seconds) < 1 else f"{seconds:+,.1f} s"


def _cut(name: str, most: int) -> str:
    text = line(name)
    return fitted(text, min(cell_len(text), most))


def first_line(status: Status, width: int) -> Content:
    """Render the database, the write lock and the health of the connection in exactly `width` cells."""
    badge = " PRODUCTION " if status.production else ""
    lock = f" {status.lock} " if status.lock else ""
    age = f" data {status.age} old " if status.age and width >= ROOM_FOR_AGE else ""
    reserved = cell_len(badge) + cell_len(lock) + cell_len(age)
    name = f" tasktui  {_cut(status.name, min(LONGEST_NAME, max(SHORTEST_NAME, width - reserved - ROOM)))}  "
    if cell_len(name) + reserved > width:  # Badge and lock take precedence over the name.
        name = f" {_cut(status.name, SHORTEST_NAME)} "
        lock = fitted(lock, max(0, min(cell_len(lock), width - cell_len(name) - cell_len(badge) - cell_len(age))))
        reserved = cell_len(badge) + cell_len(lock) + cell_len(age)
    room = max(0, width - reserved - cell_len(name))
    signs = (badge, "bold white on red"), (lock, "bold reverse"), (age, "bold reverse yellow")
    return content((name, "bold"), *signs, *_connection_and_clock(status, room))


def _connection_and_clock(status: Status, room: int) -> Sequence[tuple[str, str]]:
    """Render the right end of the line. The sign and the clock stay longest: they prove that the screen is alive."""
    sign, text, style = connection(status)
    clock = f"{status.clock} "
    label = f"{text}  " if len(text) + len(clock) + 5 <= room else ""
    if len(clock) + 3 > room:
        return ((fitted(clock, room, right=True), "bold"),)
    space = " " * (room - len(label) - len(clock) - 2)
    return ((space, ""), (f"{sign} ", style or "green"), (label, style or "dim"), (clock, "bold"))


def connection(status: Status) -> tuple[str, str, str]:
    """Describe the connection. It has a figure only if the figure needs attention.

    Returns:
        A sign, a text, and a style; the style is empty for a good connection.
    """
    if status.trouble:
        return "◌", "lost", "bold red"
    if status.ping is None:
        return "◌", "connecting", "dim"
    if abs(status.ping.skew.total_seconds()) >= LARGE_SKEW:
        ahead = status.ping.skew > timedelta(0)
        side = "ahead" if ahead else "behind"
        return "!", f"clock {formatting.age(abs(status.ping.skew))} {side}", "bold yellow"
    if status.ping.took >= SLOW:
        return "!", f"slow {status.ping.took * 1000:,.0f} ms", "bold yellow"
    return "●", "connected", ""


def second_line(status: Status, width: int) -> Content:
    """Render the screens in `width` cells, or slightly more if not even their keys fit."""
    titles_fit = sum(cell_len(f" {key} {title} ") for key, title in status.screens) <= width
    parts = []
    for key, title in status.screens:
        current = title == status.title
        text = f" {key} {title} " if titles_fit or current else f" {key} "
        parts.append((text, "bold reverse" if current else ""))
    room = max(0, width - sum(cell_len(text) for text, _ in parts))
    return content(*parts, (fitted(HELP if len(HELP) <= room else "", room, right=True), "dim"))
