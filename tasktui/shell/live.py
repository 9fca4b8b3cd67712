"""LiveScreen: a screen that reads the database periodically and shows the latest snapshot."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize, ScreenResume
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input

from runner.errors import InvalidInput, RunnerError
from runner.text import formatting
from tasktui.actions.action import ActionTarget, Targets
from tasktui.actions.actions import ACTIONS
from tasktui.actions.as_command import SqlSource, command_line, copy
from tasktui.messages import Notice, ReadFailed, SnapshotRead
from tasktui.session.cache import NO_ANSWER_AFTER
from tasktui.session.write_lock import ReadOnly
from tasktui.shell.actions import Actions
from tasktui.shell.frame import FramedScreen, ScreenFrame
from tasktui.widgets.canvas import Canvas

PERIOD = 1.0
"""Seconds between queries."""

SHARE = 40
"""The pause after a query, in multiples of its duration, so that the console adds little load."""

SLOWEST = 10.0
"""Maximum pause in seconds after a query of up to SLOWEST / SLOW_SHARE seconds."""

SLOW_SHARE = 4
"""The shortest pause in multiples of the quicker one of two queries: beside many dead rows they take a processor."""

UNFOCUSED = 5.0
"""Seconds between queries while the terminal has no focus."""

LONGEST_WAIT = 30.0
"""Maximum seconds between attempts while the database is down."""

OLD = 4.0
"""Seconds after its time by which a query is late, so that the heading shows the age of the data."""


@dataclass(slots=True)
class Poller:
    """The query schedule of one screen; all times are seconds on the same clock.

    Args:
        next: time of the next query.
        looking: a query is running.
        failures: number of consecutive failures.
        started_at: start of the last query.
        read_at: end of the last query that succeeded; None before the first one.
        took: seconds that it took.
        error: error of the last query; empty if it succeeded.
        frozen: the data on the screen does not age.
        again: a change has come during the running query, which may not show it.
    """

    next: float = 0.0
    looking: bool = False
    failures: int = 0
    started_at: float = 0.0
    read_at: float | None = None
    took: float = 0.0
    error: str = ""
    frozen: bool = False
    again: bool = False

    def due(self, now: float) -> bool:
        """True if it is time for a query."""
        return not self.looking and now >= self.next

    def begin(self, now: float) -> None:
        """Record the start of a query."""
        self.looking, self.started_at, self.again = True, now, False

    def succeeded(self, now: float, took: float, *, focused: bool = True) -> None:
        """Record the success of a query.

        Args:
            focused: the terminal has focus.
        """
        self.looking, self.failures, self.read_at, self.error = False, 0, now, ""
        self.took, quicker = took, min(took, self.took)
        pause = max(PERIOD if focused else UNFOCUSED, min(took * SHARE, SLOWEST), quicker * SLOW_SHARE)
        self.next = 0.0 if self.again else now + pause

    def failed(self, now: float, error: str) -> None:
        """Record a failure; the pause doubles each time."""
        self.looking, self.error = False, error
        self.failures += 1
        self.next = now + min(LONGEST_WAIT, PERIOD * 2 ** min(self.failures - 1, 10))

    def rest(self) -> None:
        """Query only on request from now on; the data of a past time does not age."""
        self.next, self.frozen = 0.0 if self.again else inf, True

    def hurry(self) -> None:
        """Query as soon as possible, after a change or on request."""
        self.next, self.again = 0.0, self.looking

    @property
    def answered(self) -> bool:
        """True if a query has succeeded."""
        return self.read_at is not None

    def trouble(self, now: float) -> str:
        """The error or the missing answer, with the age of the data on the screen; empty if there is none."""
        waited = now - self.started_at
        waiting = f"no answer for {formatting.age(waited)}" if self.looking and waited > NO_ANSWER_AFTER else ""
        trouble = waiting or self.error
        prefix = f"data is {formatting.age(now - self.read_at)} old: " if self.read_at is not None else ""
        return f"{prefix}{trouble}" if trouble else ""

    def age(self, now: float) -> str:
        """The age of the data on the screen; empty until the next query is late, or would be after a usual pause."""
        if self.read_at is None or self.frozen:
            return ""
        if now - max(min(self.next, self.read_at + SLOWEST), self.read_at) <= OLD:
            return ""
        return formatting.age(int(now - self.read_at))


MOST_LINES, LONGEST_LINE = 8, 400
"""Lines and characters of a copied text in a notice. `shorten` has already cut a command line below this."""

TICK = 0.25
"""Seconds between checks whether a read is due."""

NO_TARGETS = Targets()

LETTERS = ("act", "filter")
"""Actions whose keys are letters of an input that has the focus."""


class LiveScreen(FramedScreen):
    """A screen with a heading, its own widgets and a footer.

    A subclass defines its widgets, how to read the database (in a worker, which touches no widget), and how to show
    the result.

    Args:
        targets: the selection that the action keys apply to.
    """

    ABOUT: ClassVar[str] = ""
    """Description for the help."""

    LIVE: ClassVar[bool] = True
    """True if the screen reads periodically; False if it reads only on request."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "reload", "Reload", show=False),
        Binding("ctrl+x", "app.stop", "Stop", key_display="^x"),
        Binding("Y", "copy", "Copy command, SQL", show=False),
        Binding("y", "copy('text')", "Copy a text", show=False),
        Binding("escape", "app.go('back')", "Back", show=False),
    ]

    opened: Any = None
    """The arguments with which the screen was opened last; None for a screen without any."""

    sql: SqlSource | None = None
    """Returns the SQL that shows the same; None if there is none."""

    def __init__(self, targets: Targets = NO_TARGETS) -> None:
        super().__init__()
        self.actions = Actions(self, targets)
        self.feed: Poller = Poller()
        self.frame = ScreenFrame(self)
        self._input_error = ""
        self._snapshot: object = None
        self._drawn = Size()
        """The size at the last layout."""

    @on(Notice)
    def _name_database(self, message: Notice) -> None:
        """Note the origin of a notice, which the application shows with any database in front."""
        message.database = message.database or self.session.name

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
        yield self.frame.heading
        yield from self.parts()
        yield self.frame.message_line
        yield self.frame.keys

    def on_mount(self) -> None:
        """Start reading."""
        self.bindings_updated_signal.subscribe(self, lambda _: self.call_after_refresh(self.frame.update_keys))
        self.set_interval(TICK, self._tick)

    def _compositor_refresh(self) -> None:
        """Draw, except within a batch: Textual would draw all lines, and discard them."""
        if not self.app._batch_count:  # noqa: SLF001 - it has no public name
            super()._compositor_refresh()

    def on_resize(self, event: Resize) -> None:
        """Lay out the parts again. A scroll bar, or a part that grows, changes no size of the screen."""
        if self.is_mounted and event.size != self._drawn:
            self._drawn = event.size
            if self._snapshot is None:
                self.redraw()
            else:
                self.call_after_refresh(self.redraw)  # the parts have their new sizes then

    def redraw(self) -> None:
        """Draw everything again, after a change of the size or the theme."""
        if not self.is_mounted:
            return
        for canvas in self.query(Canvas):
            canvas.redraw()
        if self._snapshot is not None:
            self.show(self._snapshot)
        self.frame.redraw()

    def on_screen_suspend(self) -> None:
        """Draw the heading of a dialog that opens in front."""
        self.call_after_refresh(self.frame.update_dialog)

    @on(ScreenResume)
    def action_reload(self) -> None:
        """Read now, and when the screen comes to the front."""
        self.feed.hurry()
        self._tick()

    def command_words(self) -> Sequence[object]:
        """Return the words after `runner` of the command that shows the same."""
        return ["stats"]

    def action_copy(self, part: str = "command") -> None:
        """Copy the command line that shows the same, the second time the SQL; or offer each `text` at the cursor."""
        if part == "text":
            self.actions.offer_texts()
        elif self._input_error:  # The command line would fail as well.
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

    def refusal(self, key: str) -> str:
        """Return the reason why a disabled key, or a letter without a binding, does nothing; empty for another key."""
        active = self.active_bindings.get(key)
        is_change_of_past = self.session.at is not None and any(each.key == key for each in ACTIONS.values())
        if active is None and not is_change_of_past:
            return unbound(key) if len(key) == 1 and key.isalpha() else ""
        return "" if active is not None and active.enabled else str(ReadOnly(why=self.session.why_locked))

    def _tick(self) -> None:
        if not self.is_active and not _is_behind_dialogs(self):
            return
        now = time.monotonic()
        if self.feed.due(now):
            self.feed.begin(now)
            self.run_worker(self._read, group="read")  # type: ignore[arg-type]  # A coroutine might never be awaited.
        self.frame.update()

    async def _read(self) -> None:
        request, start = self.request(), time.monotonic()
        try:
            snapshot = await self.read()
        except RunnerError as error:
            self.post_message(ReadFailed(error))
        else:
            took = max(0.0, time.monotonic() - start - self.session.distance)  # The way is no load on the database.
            self.post_message(SnapshotRead(snapshot, request, took))
            # The first snapshot must not wait for the measurement; a screen that reads once has no second one.
            if self.feed.read_at is not None or not self.LIVE:
                with suppress(RunnerError):  # The next read reports an error that persists.
                    await _measure(self)

    @on(SnapshotRead)
    def _show_snapshot(self, message: SnapshotRead) -> None:
        self.feed.succeeded(time.monotonic(), message.seconds, focused=self.app.app_focus)
        self._input_error = ""
        if not self.LIVE:
            self.feed.rest()
        if message.request == self.request():
            self._snapshot = message.snapshot
            self.show(message.snapshot)
        else:
            self.feed.hurry()
        self.frame.update()

    @on(ReadFailed)
    def _show_error(self, message: ReadFailed) -> None:
        self.feed.failed(time.monotonic(), str(message.error))
        self._input_error = self.feed.error if isinstance(message.error, InvalidInput) else ""
        self.frame.update()


async def _measure(screen: LiveScreen) -> None:
    lock = screen.session.lock
    before = lock.barrier
    await screen.session.measure()
    if before is not None and lock.barrier is not before:
        state = lock.label(time.monotonic()) or "changes are now allowed"
        screen.post_message(Notice(f"{before.end}: {state}"))


def _is_behind_dialogs(screen: LiveScreen) -> bool:
    """True if only dialogs are in front of a screen, which leave a part of it visible."""
    stack = screen.app.screen_stack
    return screen in stack and all(isinstance(each, ModalScreen) for each in stack[stack.index(screen) + 1 :])


SCREENS_WITH = {
    ActionTarget.TASKS: "2 Tasks",
    ActionTarget.TASK: "3 Task",
    ActionTarget.QUEUE: "1 Overview",
    ActionTarget.HANDLER: "4 Failures",
    ActionTarget.RUNNER: "5 Runners",
    ActionTarget.SCHEDULE: "6 Schedules",
    ActionTarget.ALERT: "1 Overview",
    ActionTarget.ENTRY: "8 Audit",
}
"""A screen with the actions on each kind of thing."""


def unbound(key: str) -> str:
    """The reason why a letter without a binding does nothing, with a screen that has it."""
    action = next((each for each in ACTIONS.values() if each.key == key), None)
    if action is None:
        return f"{key} is not a key of this screen; ? lists its keys"
    return f"{key} ({action.label.lower()}) is a key of {SCREENS_WITH[action.target]}, not of this screen"
