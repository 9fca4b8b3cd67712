"""ScreenFrame: the heading of a screen, the messages and the keys of its footer."""

import time
from typing import TYPE_CHECKING, NamedTuple

from textual.screen import ModalScreen

from tasktui.render.render import line
from tasktui.screens import MODES
from tasktui.widgets.footer import BRIEF, LONG, NARROW, KeyGroups, KeyHint, Keys, MessageLine
from tasktui.widgets.heading import Heading, Status

if TYPE_CHECKING:
    from tasktui.render.rows import Part
    from tasktui.screens.live import LiveScreen


class FooterMessage(NamedTuple):
    """A message in the footer.

    Args:
        text: any text.
        bad: True for an error.
        until: end of its display on the monotonic clock, in seconds.
    """

    text: str
    bad: bool
    until: float


class ScreenFrame:
    """The lines around the parts of a screen. They are drawn again only if they have changed.

    Args:
        screen: the screen.
    """

    def __init__(self, screen: "LiveScreen") -> None:
        self._screen = screen
        self.heading = Heading()
        self.message_line = MessageLine()
        self.keys = Keys()
        self._message: FooterMessage | None = None
        self._drawn: tuple[object, ...] | None = None

    def update(self) -> None:
        """Show the present state of the session and of the last read."""
        status = self._status()
        self.heading.show(status)
        front = self._screen.app.screen
        if isinstance(front, ModalScreen):  # A dialog has a heading of its own: the safety state never dims.
            for heading in front.query(Heading):
                heading.show(status)
        self.update_keys()

    def update_dialog(self) -> None:
        """Draw the heading of a dialog in front of the screen."""
        app = self._screen.app
        if isinstance(app.screen, ModalScreen) and self._screen in app.screen_stack:
            self.update()

    def redraw(self) -> None:
        """Draw everything again, after a change of the size or the theme."""
        self._drawn = None
        self.update()

    def show_message(self, text: str, *, bad: bool) -> None:
        """Show a message in the footer, or above it if it is an error or has no room."""
        self._message = FooterMessage(text, bad, time.monotonic() + (LONG if bad else BRIEF))
        self._drawn = None
        self.update_keys()

    def clear_error(self) -> None:
        """Hide an error, because the operator has done the same thing right since."""
        if self._message is not None and self._message.bad:
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
        elif message.bad or "\n" in message.text or len(message.text) > self._screen.size.width // 2:
            self.message_line.show(message.text, bad=message.bad)
        else:
            self.message_line.hide()
            short = (f"✓ {line(message.text)}", "bold strong")
        self.keys.show(groups, short)

    def _status(self) -> Status:
        screen, session, now = self._screen, self._screen.session, time.monotonic()
        at, trouble = session.now().astimezone(session.zone), screen.feed.trouble(now)
        return Status(
            name=session.name,
            production=session.settings.production,
            lock=session.lock_label(now),
            ping=session.ping,
            clock=at.strftime("%H:%M:%S"),
            screens=[(mode.key, mode.title) for mode in MODES.values()],
            title=screen.title or "",
            work=session.work.label(now) if session.work is not None else "",
            trouble=trouble,
            age=screen.feed.age(now) if not trouble else "",
            host=", ".join(host.name for host in session.settings.url.hosts),
            zone=at.strftime("%Z"),
            counts={MODES[mode].title: part for mode, part in session.counts.items()},
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
        wide = screen.size.width >= NARROW
        console = [KeyHint("?", "help", "app.help")]
        console += [KeyHint(":", "command", "app.command"), KeyHint("q", "quit", "app.quit")] if wide else []
        return KeyGroups(look, change, console)
