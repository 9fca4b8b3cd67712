"""Heading: the database, the write lock, the health of the connection, and the screens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len
from textual import events
from textual.message import Message

from runner.queries.health import Ping
from runner.text import formatting
from tasktui.render.render import fitted, line
from tasktui.render.rows import BLANK, Part, Row, badge, cap, fit, width_of
from tasktui.render.theme import current
from tasktui.widgets.canvas import Canvas


class DatabaseTab(NamedTuple):
    """One of several databases.

    Args:
        production: True for a production database.
        lock: state of its write lock in words.
        alarm: text and role of its problems, while another database is in front.
        front: True for the database in front.
    """

    name: str
    production: bool
    lock: str
    alarm: Part
    front: bool


class Status(NamedTuple):
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
        lost: True while the database does not answer, also if the screen has not asked yet.
        age: age of the data on the screen; empty while it is current.
        host: host or folder of the database; empty to leave it out.
        zone: name of the time zone of the clock.
        counts: text and role beside the title of a screen where something needs attention, by title.
        databases: the databases of the console; empty if there is only one.
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
    host: str = ""
    zone: str = ""
    counts: Mapping[str, Part] = {}
    databases: Sequence[DatabaseTab] = ()
    lost: bool = False


LARGE_SKEW = 2.0
"""Clock skew in seconds that the heading shows; from here on, ages and times mislead."""

ALARMING_SKEW = 30.0
"""Clock skew in seconds that is an alarm."""

LONGEST_NAME, SHORTEST_NAME = 40, 8
"""Cells of the database name."""

ROOM = 22
"""Cells beside the database name, for `tasktui` and the clock."""

ROOM_FOR_AGE = 60
"""Cells of a line that has room for the age of the data."""

RULED = 100
"""Cells of a screen that has room for counts beside the titles and for a rule below them."""

HIGH = 30
"""Rows of a screen that has room for a blank row below the databases."""

SHORTEST_TITLE = 5
"""Cells of a title that is cut."""

LEAST_LINES, SHARE_OF_ROWS = 4, 4
"""Lines of an error that every screen has room for, and the share of a high screen: one quarter."""


class Heading(Canvas):
    """The first lines of every screen."""

    @dataclass(eq=False, repr=False)
    class Chosen(Message):
        """A click on the title of a screen."""

        title: str

    def __init__(self) -> None:
        super().__init__()
        self._titles: Sequence[tuple[range, str]] = ()

    def show(self, status: Status) -> None:
        """Show a status."""
        width, height = self.app.size
        tabs = tab_parts(status, width)
        self._titles = _places(tabs, status, width)
        rows = [first_line(status, width), second_line(status, width)]
        if width >= RULED:
            rows.append(third_line(status, width))
        if status.databases:
            rows += [databases_line(status.databases, width), *[BLANK] * (databases_height(height) - 1)]
        if status.work:
            rows.append(fit([("▌", "accent"), (fitted(f" {line(status.work)}", width - 1), "strong on raised")], width))
        for text in wrapped(status.trouble, width, height):
            rows.append([("▌", "dead"), (fitted(f" {text}", width - 1), "bold dead on tint_dead")])
        self.draw(rows)

    def on_click(self, event: events.Click) -> None:
        """Open the screen whose title was clicked."""
        for cells, title in self._titles:
            if event.y == 1 and event.x in cells:
                self.post_message(self.Chosen(title))


def wrapped(trouble: str, width: int, height: int) -> list[str]:
    """The lines of an error. A high screen has room for its end, which has the advice."""
    most = max(LEAST_LINES, height // SHARE_OF_ROWS)
    text = f"! {line(trouble, most * width)}" if trouble else ""
    return wrap(text, max(10, width - 3), subsequent_indent="  ", max_lines=most, placeholder=" …")


def milliseconds(skew: timedelta) -> str:
    """Format a clock skew with its sign: `+3 ms`, `-2.4 s`."""
    seconds = skew.total_seconds()
    return f"{round(seconds * 1000):+d} ms" if abs(seconds) < 1 else f"{seconds:+,.1f} s"


def _cut(name: str, most: int) -> str:
    text = line(name)
    return fitted(text, min(cell_len(text), most))


def lock_badge(label: str) -> Part:
    """The badge of a write lock: WRITE with its time, READ-ONLY with the reason, or the past time on the screen."""
    return badge(label, "write" if label.startswith(("WRITE", "AT ")) else "locked")


def first_line(status: Status, width: int) -> Row:
    """Render the database, the write lock and the health of the connection in exactly `width` cells."""
    badges: list[Part] = [badge("PRODUCTION", "production")] if status.production else []
    lock = lock_badge(status.lock) if status.lock else ("", "")
    age: list[Part] = [(f" data {status.age} old ", "bold retrying")] if status.age and width >= ROOM_FOR_AGE else []
    reserved = width_of([*badges, lock, *age]) + 2 * len(badges) + 2 * bool(status.lock)
    name = _cut(status.name, min(LONGEST_NAME, max(SHORTEST_NAME, width - reserved - ROOM)))
    row: list[Part] = [(" tasktui  ", "bold accent"), (name, "bold strong")]
    gap: Part = ("  " if width >= ROOM_FOR_AGE else " ", "")
    if width_of(row) + 2 + reserved > width:  # The badges take precedence over the name.
        gap = (" ", "")
        row = [(f" {_cut(status.name, SHORTEST_NAME)}", "bold strong")]
        badges = [(text.strip(), spec) for text, spec in badges]
        lock = (lock[0].strip(), lock[1])
    elif width >= RULED and status.host:
        row.append((f"@{_cut(status.host, 30)}", "muted"))
    for part in (*badges, lock):
        if part[0]:
            row += [gap, part]
    row += [gap, (age[0][0].strip() if len(gap[0]) == 1 else age[0][0], age[0][1])] if age else []
    row = fit(row, min(width_of(row), width))
    return [*row, *_connection_and_clock(status, width - width_of(row))]


def _connection_and_clock(status: Status, room: int) -> list[Part]:
    """Render the right end of the line. The sign and the clock stay longest: they prove that the screen is alive."""
    sign, text, role = connection(status)
    clock: list[Part] = [(status.clock, "bold strong")]
    zone: list[Part] = [(f" {status.zone}", "muted")] if status.zone else []
    label: list[Part] = [(f"{sign} ", role), (text, "muted" if role in ("succeeded", "muted") else f"bold {role}")]
    short: list[Part] = label[:1]
    for parts in (
        [*label, ("   ", ""), *clock, *zone, (" ", "")],
        [*label, ("  ", ""), *clock, (" ", "")],
        [*short, *clock, (" ", "")],
        [*clock, (" ", "")],
    ):
        if width_of(parts) + 1 <= room:
            return [(" " * (room - width_of(parts)), ""), *parts]
    return fit(clock, room) if room >= len(status.clock) else [(" " * room, "")]


def connection(status: Status) -> tuple[str, str, str]:
    """Describe the connection. It has a figure only if the figure needs attention.

    Returns:
        A sign, a text, and a role.
    """
    if status.lost:
        return "◌", "lost", "lost"
    if status.trouble:  # The database answers, but not for this screen: a missing task, a lock of another program.
        return "!", "not read", "retrying"
    if status.ping is None:
        return "◌", "connecting", "muted"
    skew = abs(status.ping.skew.total_seconds())
    if skew >= LARGE_SKEW:
        side = "ahead" if status.ping.skew > timedelta(0) else "behind"
        return "!", f"clock {formatting.age(skew)} {side}", "dead" if skew >= ALARMING_SKEW else "retrying"
    if status.ping.slow:
        return "!", f"slow {status.ping.took * 1000:,.0f} ms", "retrying"
    return "●", "connected", "succeeded"


def front_spec() -> str:
    """The style of the title in front; sixteen colours reverse it, as bold black is grey on many terminals."""
    return "bold strong on sel" if current().flat else "bold on_accent on accent"


def tab_parts(status: Status, width: int) -> list[list[Part]]:
    """The parts of each title; the last titles, but for the one in front, are cut if the room is short."""
    for least in (SHORTEST_TITLE, 0):  # A key alone is the last resort.
        tabs = [_tab(status, each, cell_len(each[1]), roomy=width >= RULED) for each in status.screens]
        for place, (key, title) in reversed([*enumerate(status.screens)]):
            over = sum(map(width_of, tabs)) + len(tabs) - width
            if over <= 0:
                return tabs
            if cell_len(title) > least and title != status.title:
                cells = max(least, cell_len(title) - over) if least else 0
                tabs[place] = _tab(status, (key, title), cells, roomy=width >= RULED)
    return tabs


def _tab(status: Status, screen: tuple[str, str], cells: int, *, roomy: bool) -> list[Part]:
    key, title = screen
    here = title == status.title
    text = f" {fitted(title, cells)}" if cells else ""
    if not roomy or current().flat:
        tab = [(f"{key}{text}", front_spec() if here else "muted")]
    else:
        tab = [(key, "bold accent" if here else "faint"), (text, "bold strong" if here else "muted")]
    if roomy and title in status.counts:
        count, role = status.counts[title]
        tab.append((f" {count}", f"bold {role}"))
    return tab


def databases_height(height: int) -> int:
    """The rows of the line of databases: on a high screen a blank row separates it from the screen."""
    return 2 if height >= HIGH else 1


def databases_line(databases: Sequence[DatabaseTab], width: int) -> Row:
    """Render the databases: the one in front on accent, the others with their badges and problems."""
    row: list[Part] = [(" ", ""), *cap("d", "next")]
    for tab in databases:
        name = _cut(tab.name, SHORTEST_NAME * 2)
        if tab.front:
            row += [("  ", ""), (f"[{name}]" if current().flat else f" {name} ", front_spec())]
            continue
        row += [("  ", ""), (name, "text"), (" ", "")]
        row += [badge("PRODUCTION" if width >= RULED else "PROD", "production"), (" ", "")] if tab.production else []
        row += [lock_badge(tab.lock), (" ", "")] if tab.lock and width >= RULED else []
        row.append((tab.alarm[0], f"bold {tab.alarm[1]}"))
    return fit(row, width)


def _gap(tabs: Sequence[Sequence[Part]], width: int) -> int:
    """The cells between two titles: fewer where the last title would be cut."""
    room = width - 1 - sum(map(width_of, tabs))
    return max(1, min(3 if width >= RULED else 1, room // len(tabs)))


def second_line(status: Status, width: int) -> Row:
    """Render the screens in `width` cells."""
    row: list[Part] = [(" ", "")]
    tabs = tab_parts(status, width)
    for tab in tabs:
        row += [*tab, (" " * _gap(tabs, width), "")]
    return fit(row, width)


def third_line(status: Status, width: int) -> Row:
    """Render the rule below the screens; it is heavy below the current one."""
    for cells, title in _places(tab_parts(status, width), status, width):
        if title == status.title:
            begin, end = cells.start, cells.stop
            return [("─" * begin, "line"), ("━" * (end - begin), "accent"), ("─" * (width - end), "line")]
    return [("─" * width, "line")]


def _places(tabs: Sequence[Sequence[Part]], status: Status, width: int) -> list[tuple[range, str]]:
    """The cells of each title."""
    place, places = 1, []
    for tab, (_, title) in zip(tabs, status.screens, strict=True):
        end = place + width_of(tab)
        places.append((range(place, end), title))
        place = end + _gap(tabs, width)
    return places
