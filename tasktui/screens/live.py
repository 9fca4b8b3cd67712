"""LiveScreen: a screen that reads the database periodically and shows the latest snapshot."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input

from runner.errors import InvalidInput, RunnerError
from runner.text import formatting
from tasktui.actions.as_command import command_line
from tasktui.actions.clipboard import SqlSource, copy
from tasktui.actions.targets import Targets
from tasktui.data.poller import Poller
from tasktui.messages import Notice, ReadFailed, SnapshotRead
from tasktui.render.render import line
from tasktui.screens import MODES
from tasktui.screens.actions import Actions
from tasktui.session.session import Session
from tasktui.session.write_lock import ReadOnly
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.footer import BRIEF, LONG, NARROW, KeyGroups, KeyHint, Keys, MessageLine
from tasktui.widgets.heading import Heading, Status

MOST_LINES, LONGEST_LINE = 8, 400
"""Lines and characters of a copied text in a notice. `shorten` has already cut a command line below this."""

NO_ANSWER_AFTER = 5.0
"""Seconds of a read after which the heading reports a missing answer."""

OLD = 4.0
"""Seconds after which the heading shows the age of the data: ages on the screen do not advance between reads."""

TICK = 0.25
"""Seconds between checks whether a read is due."""

NO_TARGETS = Targets()

LETTERS = ("act", "filter")
"""Actions whose keys are letters of an input that has the focus."""


class LiveScreen(Screen[None]):
    """A screen with a heading, its own widgets and a footer.

    A subclass defines its widgets, how to read the database (in a worker, which touches no widget), and how to show
    the result.

    Args:
        targets: the selection that the action keys apply to.
    """

    ABOUT: ClassVar[str] = ""
    """Description for the help."""

    OPENS: ClassVar[str] = ""
    """What enter opens, for the footer; empty if it opens nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "reload", "Reload", show=False),
        Binding("ctrl+x", "app.stop", "Stop", key_display="^x"),
        Binding("Y", "copy", "Copy as command line (again: SQL)", show=False),
    ]

    sql: SqlSource | None = None
    """Returns the SQL that shows the same; None if there is none."""

    def __init__(self, targets: Targets = NO_TARGETS) -> None:
        super().__init__()
        self.actions = Actions(self, targets)
        self.feed = Poller()
        self._read_at: float | None = None
        self._started_at = 0.0
        self._trouble = ""
        self._input_error = ""
        self._footer_state: tuple[object, ...] | None = None
        self._message: tuple[str, bool, float] | None = None
        self._snapshot: object = None

    @property
    def session(self) -> Session:
        """The operator's session, which the application owns."""
        return cast("Session", cast("Any", self.app).session)

    def parts(self) -> Iterable[Widget]:
        """Return the widgets between heading and footer."""
        raise NotImplementedError

    async def read(self) -> object:
        """Read a snapshot; runs in a worker."""
        raise NotImplementedError

    def request(self) -> object:
        """Return the parameters of the read; the screen drops a snapshot that was read for other parameters."""
        return None

    def show(self, snapshot: Any) -> None:
        """Show a snapshot."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """Build heading, widgets and footer."""
        yield Heading()
        yield from self.parts()
        yield MessageLine()
        yield Keys()

    def on_mount(self) -> None:
        """Start reading."""
        self.bindings_updated_signal.subscribe(self, lambda _: self.call_after_refresh(self._update_keys))
        self.set_interval(TICK, self._tick)

    def on_resize(self) -> None:
        """Lay out the parts again."""
        self.redraw()

    def redraw(self) -> None:
        """Draw everything again, after a change of the size or the theme."""
        if not self.is_mounted:
            return
        for canvas in self.query(Canvas):
            canvas.redraw()
        if self._snapshot is not None:
            self.show(self._snapshot)
        self._footer_state = None
        self._update_heading()

    def on_screen_suspend(self) -> None:
        """Draw the heading of a dialog that opens in front."""
        self.call_after_refresh(self._update_dialog)

    def _update_dialog(self) -> None:
        if isinstance(self.app.screen, ModalScreen) and self in self.app.screen_stack:
            self._update_heading()

    def on_screen_resume(self) -> None:
        """Read when the screen comes to the front."""
        self.feed.hurry()
        self._tick()

    def action_reload(self) -> None:
        """Read now."""
        self.feed.hurry()
        self._tick()

    def command_words(self) -> Sequence[object]:
        """Return the words after `runner` of the command that shows the same."""
        return ["stats"]

    def action_copy(self) -> None:
        """Copy the command line that shows the same; the second time, copy the SQL."""
        if self._input_error:  # The command line would fail as well.
            self.report(f"Nothing was copied. {self._input_error}", bad=True)
        else:
            copy(self, command_line(self.command_words(), self.session.settings), self.sql)

    def report(self, text: str, *, bad: bool = False) -> None:
        """Show a copied text, as far as a notice has room, or an error."""
        lines = text.splitlines()
        more = [f"and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
        self.post_message(Notice("\n".join([each[:LONGEST_LINE] for each in lines[:MOST_LINES]] + more), bad=bad))

    def action_act(self, name: str) -> None:
        """Ask for confirmation of an action, then apply it."""
        self.actions.start(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out actions while changes are not allowed, and leave letters to inputs that have the focus."""
        if action in LETTERS and isinstance(self.focused, Input):
            return False
        if action == "act" and not self.session.writable:
            return None
        return super().check_action(action, parameters)

    def on_key(self, event: Key) -> None:
        """Explain why a disabled key does nothing."""
        active = self.active_bindings.get(event.key)
        if active is not None and not active.enabled:
            self.post_message(Notice(str(ReadOnly(why=self.session.lock.why)), bad=True))

    def _tick(self) -> None:
        if not self.is_active:
            if self in self.app.screen_stack:  # Behind a dialog, the clock and the progress continue.
                self._update_heading()
            return
        now = time.monotonic()
        if self.feed.due(now):
            self.feed.begin()
            self._started_at = now
            self.run_worker(self._read(), group="read")
        self._update_heading()

    async def _read(self) -> None:
        request, start = self.request(), time.monotonic()
        try:
            snapshot = await self.read()
        except RunnerError as error:
            self.post_message(ReadFailed(error))
        else:
            self.post_message(SnapshotRead(snapshot, request, time.monotonic() - start))
            if self._read_at is not None:  # The first snapshot must not wait for the measurement.
                with suppress(RunnerError):  # The next read reports an error that persists.
                    await _measure(self)

    @on(SnapshotRead)
    def _show_snapshot(self, message: SnapshotRead) -> None:
        now = time.monotonic()
        self.feed.succeeded(now, message.seconds, focused=self.app.app_focus)
        self._read_at, self._trouble, self._input_error = now, "", ""
        if message.request == self.request():
            self._snapshot = message.snapshot
            self.show(message.snapshot)
        else:
            self.feed.hurry()
        self._update_heading()

    @on(ReadFailed)
    def _show_error(self, message: ReadFailed) -> None:
        self.feed.failed(time.monotonic())
        self._trouble = str(message.error)
        self._input_error = self._trouble if isinstance(message.error, InvalidInput) else ""
        self._update_heading()

    def _update_heading(self) -> None:
        session, now = self.session, time.monotonic()
        waited = now - self._started_at
        waiting = f"no answer for {formatting.age(waited)}" if self.feed.looking and waited > NO_ANSWER_AFTER else ""
        trouble = waiting or self._trouble
        age = now - self._read_at if self._read_at is not None else 0.0
        prefix = f"data is {formatting.age(age)} old: " if self._read_at is not None else ""
        status = Status(
            name=session.name,
            production=session.settings.production,
            lock=session.lock_label(now),
            ping=session.ping,
            clock=session.now().astimezone(session.zone).strftime("%H:%M:%S"),
            screens=[(mode.key, mode.title) for mode in MODES.values()],
            title=self.title or "",
            work=session.work.label(now) if session.work is not None else "",
            trouble=f"{prefix}{trouble}" if trouble else "",
            age=formatting.age(int(age)) if age > OLD and not trouble else "",
            host=", ".join(host.name for host in session.settings.url.hosts),
            zone=session.now().astimezone(session.zone).strftime("%Z"),
            counts={MODES[mode].title: part for mode, part in session.counts.items()},
        )
        # A dialog has a heading of its own: the safety state never dims.
        front = self.app.screen if isinstance(self.app.screen, ModalScreen) else self
        for heading in (*self.query(Heading), *(front.query(Heading) if front is not self else ())):
            heading.show(status)
        self._update_keys()

    def show_message(self, text: str, *, bad: bool) -> None:
        """Show a message in the footer, or above it if it is an error or has no room."""
        self._message = (text, bad, time.monotonic() + (LONG if bad else BRIEF))
        self._footer_state = None
        self._update_keys()

    def _update_keys(self) -> None:
        if self._message is not None and time.monotonic() > self._message[2]:
            self._message = None
            self._footer_state = None
        session = self.session
        state = (session.writable, session.work is not None, self._message, self.app.focused)
        groups = self._key_groups()
        if self._footer_state == (state, groups):
            return
        if self._footer_state is not None and self._footer_state[0] != state:
            self.refresh_bindings()
        self._footer_state = (state, groups)
        long = self._message is not None and (
            self._message[1] or "\n" in self._message[0] or len(self._message[0]) > self.size.width // 2
        )
        for line_widget in self.query(MessageLine):
            if self._message is not None and long:
                line_widget.show(self._message[0], bad=self._message[1])
            else:
                line_widget.hide()
        short = self._message is not None and not long
        message = (f"✓ {line(self._message[0])}", "bold strong") if self._message is not None and short else None
        for keys in self.query(Keys):
            keys.show(groups, message)

    def _key_groups(self) -> KeyGroups:
        """The keys of this screen, from its bindings."""
        look = [KeyHint("↵", self.OPENS, "")] if self.OPENS else []
        change: list[KeyHint] = []
        for active in self.active_bindings.values():
            binding = active.binding
            if not binding.show:
                continue
            key = binding.key_display or self.app.get_key_display(binding)
            hint = KeyHint(key, binding.description.lower(), binding.action, not active.enabled)
            (change if binding.action.startswith("act(") else look).append(hint)
        wide = self.size.width >= NARROW
        console = [KeyHint("?", "help", "app.help")]
        console += [KeyHint(":", "command", "app.command"), KeyHint("q", "quit", "app.quit")] if wide else []
        return KeyGroups(look, change, console)

    @on(Keys.Pressed)
    async def _press(self, event: Keys.Pressed) -> None:
        await self.run_action(event.action)

    @on(Heading.Chosen)
    async def _open_screen(self, event: Heading.Chosen) -> None:
        mode = next(name for name, mode in MODES.items() if mode.title == event.title)
        self.app.switch_mode(mode)


async def _measure(screen: LiveScreen) -> None:
    lock = screen.session.lock
    before = lock.barrier
    await screen.session.measure()
    if lock.barrier is not before:
        state = lock.label(time.monotonic()) or "changes are now allowed"
        screen.post_message(Notice(f"The server was promoted from standby to primary: {state}"))
