"""LiveScreen: a screen that looks at the database again and again, and shows what it saw last."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from runner.errors import InvalidInput, RunnerError
from runner.people import cells
from tasktui.act.copying import Sql, copy
from tasktui.act.spoken import written
from tasktui.look.feed import Feed
from tasktui.messages import Failed, Looked, Told
from tasktui.operator.session import Session
from tasktui.screens import MODES
from tasktui.widgets import notice
from tasktui.widgets.heading import Heading, Status
from tasktui.widgets.keys import Keys

MOST_LINES, LONGEST_LINE = 8, 400
"""What is shown of something that was copied; a command line is shortened before, and says so at its end."""

UNEASY = 5.0
"""Seconds after which it is said that there is no answer yet."""

OLD = 4.0
"""Seconds after which it is said how old what is shown is: ages on the screen stand still meanwhile."""

TICK = 0.25
"""Seconds between questions whether it is time to look."""


class LiveScreen(Screen[None]):
    """A screen with a heading, parts of its own and a footer.

    A screen says what its parts are, how to look at the database (in a worker, which touches no widget), and how to
    show what was seen.
    """

    ABOUT: ClassVar[str] = ""
    """What it is for, in a few lines of help."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "reload", "Load"),
        Binding("ctrl+x", "stop", "Stop", key_display="^x"),
        Binding("Y", "copy", "Copy as a command line; again: as SQL", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.feed = Feed()
        self._seen: float | None = None
        self._began = 0.0
        self._trouble = ""
        self._refused = ""
        self._keys: tuple[bool, bool] | None = None

    @property
    def session(self) -> Session:
        """The operator's session, which the application holds."""
        return cast("Session", cast("Any", self.app).session)

    def parts(self) -> Iterable[Widget]:
        """The widgets between heading and footer."""
        raise NotImplementedError

    async def look(self) -> object:
        """Read what is to be shown; runs in a worker."""
        raise NotImplementedError

    def question(self) -> object:
        """What is asked for at the moment; an answer to another question is not shown."""
        return None

    def show(self, snapshot: Any) -> None:
        """Show what was seen."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """Put the parts below each other."""
        yield Heading()
        yield from self.parts()
        yield Keys(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Begin to look."""
        self.set_interval(TICK, self._tick)

    def on_screen_resume(self) -> None:
        """Look at once when the screen comes to the front."""
        self.feed.hurry()
        self._tick()

    def action_reload(self) -> None:
        """Look now."""
        self.feed.hurry()
        self._tick()

    def spoken(self) -> Sequence[object]:
        """What shows the same on the command line: words behind `runner`."""
        return ["stats"]

    def action_copy(self) -> None:
        """Copy the command line that shows the same, and show it; again: the SQL."""
        if self._refused:  # a command line would be refused as well
            self.say(f"Nothing was copied. {self._refused}", bad=True)
        else:
            copy(self, written(self.spoken(), self.session.settings), self.sql())

    def sql(self) -> Sql | None:
        """What writes the SQL that shows the same; None for nothing."""
        return None

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show what was copied, as much as a corner holds, or why nothing was."""
        lines = text.splitlines()
        more = [f"and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
        self.tell("\n".join([line[:LONGEST_LINE] for line in lines[:MOST_LINES]] + more), bad=bad)

    def action_stop(self) -> None:
        """Let what is under way end after its present chunk."""
        if self.session.work is not None:
            self.session.work.stop()
            self._head()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show the key that stops only while there is something to stop."""
        return self.session.work is not None if action == "stop" else super().check_action(action, parameters)

    def _tick(self) -> None:
        if not self.is_active:
            if self in self.app.screen_stack:  # behind a dialog, where the clock and what is under way go on
                self._head()
            return
        now = time.monotonic()
        if self.feed.due(now):
            self.feed.begin()
            self._began = now
            self.run_worker(self._look(), group="look")
        self._head()

    async def _look(self) -> None:
        asked, began = self.question(), time.monotonic()
        try:
            snapshot = await self.look()
        except RunnerError as error:
            self.post_message(Failed(error))
        else:
            self.post_message(Looked(snapshot, asked, time.monotonic() - began))
            if self._seen is not None:  # somebody waits for the first look to be drawn
                with suppress(RunnerError):  # the next look says so, if it lasts
                    await self._measure()

    async def _measure(self) -> None:
        before = self.session.lock.barrier
        await self.session.measure()
        if self.session.lock.barrier is not before:
            may = self.session.lock.told(time.monotonic()) or "changes are allowed from now on"
            self.post_message(Told(f"This server has been promoted, and is no standby any more: {may}"))

    @on(Looked)
    def _looked(self, message: Looked) -> None:
        now = time.monotonic()
        self.feed.succeeded(now, message.took, focused=self.app.app_focus)
        self._seen, self._trouble, self._refused = now, "", ""
        if message.asked == self.question():
            self.show(message.snapshot)
        else:
            self.feed.hurry()
        self._head()

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        self.feed.failed(time.monotonic())
        self._trouble = str(message.error)
        self._refused = self._trouble if isinstance(message.error, InvalidInput) else ""
        self._head()

    @on(Told)
    def _told(self, message: Told) -> None:
        self.tell(message.text, bad=message.bad)

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Say a sentence to the operator."""
        notice.show(self, text, bad=bad)

    def _head(self) -> None:
        session, now = self.session, time.monotonic()
        waited = now - self._began
        waiting = f"no answer for {cells.age(waited)}" if self.feed.looking and waited > UNEASY else ""
        trouble = waiting or self._trouble
        old = now - self._seen if self._seen is not None else 0.0
        shown = f"shown is what was seen {cells.age(old)} ago: " if self._seen is not None else ""
        self.query_one(Heading).show(
            Status(
                name=session.name,
                production=session.settings.production,
                lock=session.held(now),
                ping=session.ping,
                load=session.load,
                clock=session.now().astimezone(session.zone).strftime("%H:%M:%S"),
                places=[(mode.key, mode.title) for mode in MODES.values()],
                here=self.title or "",
                work=session.work.told(now) if session.work is not None else "",
                trouble=f"{shown}{trouble}" if trouble else "",
                old=cells.age(int(old)) if old > OLD and not trouble else "",
            )
        )
        keys = (session.writable, session.work is not None)
        if self._keys not in (None, keys):  # the footer has just been made, when it is shown first
            self.refresh_bindings()
        self._keys = keys
