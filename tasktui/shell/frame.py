"""ScreenFrame: the heading of a screen, its messages, and the keys of its footer."""

import time
from collections.abc import Sequence
from datetime import timedelta
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from textual import events
from textual.screen import ModalScreen, Screen

from runner.queries.health import Ping
from tasktui.commands.syntax import SCREENS
from tasktui.messages import Tone
from tasktui.render.render import block, line
from tasktui.render.rows import Part, Row, cap, fit, width_of
from tasktui.shell.heading import DatabaseTab, Heading, Status, databases_height
from tasktui.widgets.canvas import Canvas

if TYPE_CHECKING:
    from tasktui.session.session import Session

NARROW = 100
"""Columns of a screen below which a group has few keys."""

FEW_KEYS = 3
"""Keys of a group on a narrow screen."""

LEAST_CHANGES = 2
"""Keys that change something, which stay before the last keys that look."""

SEPARATOR: Part = ("│", "line")

BRIEF = 6.0
"""Seconds that a message of success stays."""

LONG = 20.0
"""Seconds that another message stays: the operator may be reading another screen."""

MOST_LINES = 6
"""Maximum number of lines of a message."""


class DataFeed(Protocol):
    """The reads of a screen; times are seconds of the monotonic clock."""

    def trouble(self, now: float) -> str:
        """The error of the last read; empty if there is none."""

    def age(self, now: float) -> str:
        """The age of the data; empty while they are current."""

    def hurry(self) -> None:
        """Read as soon as possible."""

    @property
    def answered(self) -> bool:
        """True if a read has succeeded."""


class FramedScreen(Screen[None]):
    """A screen with a frame and actions, which read these attributes."""

    OPENS: ClassVar[str] = ""
    """What enter opens, for the footer; empty if it opens nothing."""

    COMMANDS_SHOWN: ClassVar[tuple[str, ...]] = ()
    """Commands that the footer names, beside its keys."""

    feed: DataFeed
    session: "Session"
    """The session with the screen's database, which never changes: a key cannot act on another database."""

    console: Any
    """The application, whose module imports this one."""


class KeyHint(NamedTuple):
    """A key of the footer.

    Args:
        key: the key as it is written on a cap.
        label: one or two words.
        action: action that a click runs, in the words of a binding.
        locked: True if the key does nothing until changes are allowed.
    """

    key: str
    label: str
    action: str
    locked: bool = False


class KeyGroups(NamedTuple):
    """The keys of a screen: for views, for changes, and for the console.

    Args:
        unlock: the command that unlocks the keys for changes; empty if no command does.
    """

    look: Sequence[KeyHint]
    change: Sequence[KeyHint]
    console: Sequence[KeyHint]
    unlock: str = ""


class Keys(Canvas):
    """The keys of a screen as caps, in one row."""

    def __init__(self) -> None:
        super().__init__()
        self._groups = KeyGroups((), (), ())
        self._message: tuple[str, str] | None = None
        self._places: list[tuple[range, str]] = []

    def show(self, groups: KeyGroups, message: Part | None = None) -> None:
        """Show keys; a message takes the place of the keys that look."""
        self._groups, self._message = groups, message
        self.draw([self._row()])

    def on_resize(self) -> None:
        """Choose the keys that fit."""
        self.draw([self._row()])

    async def on_click(self, event: events.Click) -> None:
        """Run the action of the key under the pointer."""
        for cells, action in self._places:
            if event.x in cells:
                await self.screen.run_action(action)

    def _row(self) -> Row:
        width = self.size.width or self.app.size.width
        narrow = width < NARROW
        look, change, console, unlock = self._groups
        if narrow:
            look, change, console = look[:FEW_KEYS], change[:FEW_KEYS], console[:1]
        right = [part for hint in console for part in _cap(hint, narrow=False)]
        left: list[list[tuple[Part, str]]] = [[((" ", ""), "")]]
        if self._message is not None:
            left.append([((f"{self._message[0]} ", self._message[1]), "")])
        else:
            left += [_cap(hint, narrow=narrow) for hint in look]
        if change:
            left += [[(SEPARATOR, ""), ((" ", ""), "")], *(_cap(hint, narrow=narrow) for hint in change)]
            if unlock and any(hint.locked for hint in change):
                left.append([((f"{unlock} unlocks", "italic faint"), "")])
        look_count = len(look) if self._message is None else 0
        if sum(map(_width, left)) + _width(right) + 1 > width:
            left[1 : 1 + look_count] = [_cap(hint, narrow=True) for hint in look[:look_count]]
        while len(left) > 1 and sum(map(_width, left)) + _width(right) + 1 > width:
            # The note at the end is worth more than the last key; help lists every key.
            noted = left[-1][0][0][0].endswith(" unlocks") and len(left) > 2
            changes = len(left) - look_count - 2 - noted
            if changes <= LEAST_CHANGES and look_count > FEW_KEYS:
                del left[look_count]
                look_count -= 1
            else:
                del left[-2 if noted else -1]
        flat = [part for group in left for part in group]
        gap: list[tuple[Part, str]] = [((" " * (width - _width(flat) - _width(right)), ""), "")]
        parts = [*flat, *gap, *right]
        self._places = []
        place = 0
        for part, action in parts:
            end = place + width_of([part])
            if action:
                self._places.append((range(place, end), action))
            place = end
        return fit([part for part, _ in parts], width)


def _cap(hint: KeyHint, *, narrow: bool) -> list[tuple[Part, str]]:
    label = hint.label.split()[0] if narrow and hint.label else hint.label
    parts = cap(hint.key, label, locked=hint.locked)
    return [*((part, hint.action) for part in (parts if label else parts[:1])), ((" ", ""), "")]


def _width(parts: Sequence[tuple[Part, str]]) -> int:
    return width_of([part for part, _ in parts])


class MessageLine(Canvas):
    """A message over the last lines above the keys; it moves nothing."""

    def on_mount(self) -> None:
        """Start without a message."""
        self.display = False

    def show(self, text: str, tone: Tone) -> None:
        """Show a message.

        Args:
            text: any text; it is sanitized here.
        """
        width = max(20, self.app.size.width - 4)
        lines = [part for line in block(text).splitlines() for part in wrap(line, width) or [""]]
        if len(lines) > MOST_LINES:
            lines = [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} more lines"]
        signs = [tone.sign, *" " * (len(lines) - 1)]
        self.draw(
            [[(f" {mark} ", f"bold {tone.role}"), (line, "text")] for mark, line in zip(signs, lines, strict=True)]
        )
        self.display = bool(lines)

    def hide(self) -> None:
        """Remove the message."""
        self.display = False


class FooterMessage(NamedTuple):
    """A message in the footer.

    Args:
        tone: its sign and its colour.
        until: end of its display on the monotonic clock, in seconds.
    """

    text: str
    tone: Tone
    until: float


class ScreenFrame:
    """The lines around the parts of a screen. They are drawn again only if they have changed."""

    def __init__(self, screen: FramedScreen) -> None:
        self._screen = screen
        self.heading = Heading()
        self.message_line = MessageLine()
        self.keys = Keys()
        self._message: FooterMessage | None = None
        self._drawn: tuple[object, ...] | None = None
        self._shown: tuple[object, ...] | None = None

    @property
    def databases_height(self) -> int:
        """The rows of the heading for the databases; none for a single one."""
        sessions = self._screen.console.databases.sessions
        return databases_height(self._screen.size.height) if len(sessions) > 1 else 0

    def update(self) -> None:
        """Show the present state of the session and of the last read; its clock makes it new each second."""
        status, front = self._status(), self._screen.app.screen
        shown = (status, self._screen.size, front)
        if shown == self._shown:
            return
        self._shown = shown
        self.heading.show(status)
        if isinstance(front, ModalScreen):  # A dialog has a heading of its own: the safety state never dims.
            for heading in front.query(Heading):
                heading.show(status)
        self.update_keys()

    def update_dialog(self) -> None:
        """Draw the heading of a dialog in front of the screen."""
        app = self._screen.app
        if isinstance(app.screen, ModalScreen) and self._screen in app.screen_stack:
            self._shown = None
            self.update()

    def redraw(self) -> None:
        """Draw everything again, after a change of the size or the theme."""
        self._drawn = self._shown = None
        self.update()

    def show_message(self, text: str, tone: Tone) -> None:
        """Show a message in the footer, or above it if not all was done or it has no room."""
        self._message = FooterMessage(text, tone, time.monotonic() + (BRIEF if tone is Tone.DONE else LONG))
        self._drawn = None
        self.update_keys()

    def clear_error(self) -> None:
        """Hide an error, because the operator has done the same thing right since."""
        if self._message is not None and self._message.tone is Tone.ERROR:
            self.hide_message(self._message.text)

    def hide_message(self, text: str) -> None:
        """Hide a message; another one stays."""
        if self._message is not None and self._message.text == text:
            self._message = self._drawn = None
            self.update_keys()

    def update_keys(self) -> None:
        """Show the keys that do something now, and the message until its time is over."""
        if self._message is not None and time.monotonic() > self._message.until:
            self._message = self._drawn = None
        session, message = self._screen.session, self._message
        state = (session.writable, session.work is not None, message, self._screen.app.focused)
        groups = self._groups()
        if self._drawn == (state, groups):
            return
        if self._drawn is not None and self._drawn[0] != state:
            self._screen.refresh_bindings()
        self._drawn = (state, groups)
        short: Part | None = None
        if message is None:
            self.message_line.hide()
        elif message.tone is not Tone.DONE or "\n" in message.text or len(message.text) > self._screen.size.width // 2:
            self.message_line.show(message.text, message.tone)
        else:
            self.message_line.hide()
            short = (f"{message.tone.sign} {line(message.text)}", "bold strong")
        self.keys.show(groups, short)

    def _status(self) -> Status:
        screen, session, now = self._screen, self._screen.session, time.monotonic()
        at, trouble = session.now().astimezone(session.zone), screen.feed.trouble(now)
        return Status(
            name=session.heading,
            production=session.settings.production,
            lock=session.lock_label(now),
            ping=session.ping or (Ping(session.round_trip, timedelta(0)) if screen.feed.answered else None),
            clock=at.strftime("%H:%M:%S"),
            screens=[(each.key, each.title) for each in SCREENS.values()],
            title=screen.title or "",
            work=session.work.label(now) if session.work is not None else "",
            trouble=trouble,
            lost=session.is_lost,
            age=screen.feed.age(now) if not trouble else "",
            host=", ".join(host.name for host in session.settings.url.hosts),
            zone=at.strftime("%Z"),
            databases=_databases(screen, now),
            counts={SCREENS[name].title: part for name, part in session.counts.items() if session.at is None},
        )

    def _groups(self) -> KeyGroups:
        """The keys of the screen, from its bindings."""
        screen = self._screen
        look = [KeyHint("↵", screen.OPENS, "")] if screen.OPENS else []
        change: list[KeyHint] = []
        for active in screen.active_bindings.values():
            binding = active.binding
            if not binding.show:
                continue
            key = binding.key_display or screen.app.get_key_display(binding)
            hint = KeyHint(key, binding.description.lower(), binding.action, not active.enabled)
            (change if binding.action.startswith("act(") else look).append(hint)
        look += [KeyHint(f":{name}", "", f"app.command('{name}')") for name in screen.COMMANDS_SHOWN]
        wide = screen.size.width >= NARROW
        console = [KeyHint("?", "help", "app.help")]
        console += [KeyHint(":", "command", "app.command"), KeyHint("q", "quit", "app.quit")] if wide else []
        return KeyGroups(look, change, console, screen.session.lock.unlock)


def _databases(screen: FramedScreen, now: float) -> list[DatabaseTab]:
    """The databases of the console; none if there is only one."""
    sessions: Sequence[Session] = screen.console.databases.sessions
    return [
        DatabaseTab(each.name, each.settings.production, each.lock_label(now), each.alarm[:2], each is screen.session)
        for each in sessions
        if len(sessions) > 1
    ]
