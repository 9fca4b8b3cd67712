"""The console as an application: where one can go, what can be commanded, and how it starts and ends."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.segment import Segments
from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Input

from runner.errors import InvalidInput, RunnerError
from runner.people import views
from tasktui import screens
from tasktui.messages import Failed, Looked
from tasktui.obey.obeying import obey
from tasktui.operator.session import Session
from tasktui.rest import load_rest
from tasktui.screens.live import LiveScreen
from tasktui.terminal.colourless import Colourless
from tasktui.terminal.crash import crash_text
from tasktui.terminal.holding import Holding
from tasktui.terminal.keyboard import Keyboard, forgive_bad_bytes
from tasktui.typed.commands import parse_command
from tasktui.widgets import notice

SOON = 0.2
"""Seconds after which the rest is loaded: what is there to look at is drawn before."""


def _palette() -> type[Provider]:
    from tasktui.obey.palette import Palette  # everything that can be done, which the first screen does without

    return Palette


class Console(Holding):
    """The console of one operator at one database."""

    CSS_PATH = Path(__file__).with_name("console.tcss")
    TITLE = "tasktui"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        name: mode.made for name, mode in screens.MODES.items()
    }
    DEFAULT_MODE = "overview"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_palette}
    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority the application itself handles the key, and passes the next ones on only when that is done: they
        # are meant for the screen or the line that it leads to, and not for whatever had the focus before.
        *(
            Binding(mode.key, f"go('{name}')", mode.title, show=False, priority=True)
            for name, mode in screens.MODES.items()
        ),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("colon", "command", "Command", key_display=":", show=False, priority=True),
        Binding("ctrl+p", "command_palette", "Palette", show=False, priority=True),
        Binding("h", "health", "Health of the database", show=False),
        Binding("q", "quit", "Quit", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._complete = False

    async def action_go(self, mode: str) -> None:
        """Go to a screen; the keys behind wait until it is there."""
        await self.switch_mode(mode)

    def action_help(self) -> None:
        """Show the keys of this screen."""
        if isinstance(self.screen, LiveScreen):
            self.push_screen(screens.HelpScreen(self.screen))

    def get_driver_class(self) -> type[Driver]:
        """Read from the terminal in a way that ends with it."""
        forgive_bad_bytes()
        return Keyboard

    @on(Looked)
    @on(Failed)
    def _begun(self) -> None:
        """Load the rest, now that there is something to look at."""
        if not self._complete:
            self._complete = True
            self.set_timer(SOON, lambda: self.run_worker(load_rest, thread=True))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Draw without any colour where that is asked for."""
        return [Colourless()] if self.no_color else super().get_line_filters()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let a colon or a digit that is typed into a line be one."""
        if action in ("command", "go"):
            return isinstance(self.screen, LiveScreen) and not isinstance(self.focused, Input)
        return super().check_action(action, parameters)

    def action_health(self) -> None:
        """Show how the database is."""
        if isinstance(self.screen, LiveScreen):
            self.push_screen(screens.HealthScreen(self.session))

    async def action_command(self) -> None:
        """Ask for a command; the keys behind the colon wait until there is a line to type them into."""
        await self.begin_command()

    async def begin_command(self, name: str = "") -> None:
        """Ask for a command that begins with a name."""
        if isinstance(self.screen, LiveScreen):
            known = self.session.names | {"view": list(self.views())}
            screen = screens.CommandScreen(known, f"{name} " if name else "")
            await self.push_screen(screen, self._command)
            screen.set_focus(screen.line)

    def action_command_palette(self) -> None:
        """Offer everything that can be done here and now."""
        if isinstance(self.screen, LiveScreen):
            super().action_command_palette()

    def views(self) -> dict[str, str]:
        """The filters that were saved; whoever asks for one is told when they cannot be read."""
        try:
            return views.load(self.session.views)
        except InvalidInput:
            return {}

    def _command(self, typed: str | None) -> None:
        if typed is None:
            return
        try:
            obey(self, parse_command(typed))
        except RunnerError as error:
            self.tell(str(error), bad=True)

    def list_tasks(self, wanted: str) -> None:
        """Go to the list of the tasks that a filter lets through."""
        self.session.wanted = wanted
        self.switch_mode("tasks")

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Say a sentence to the operator."""
        notice.show(self, text, bad=bad)

    def _fatal_error(self) -> None:
        """End with our own words: the usual ones print local variables, and so passwords and payloads."""
        shown = Text(crash_text(sys.exc_info()[1] or self._exception))
        self._exit_renderables.append(Segments(self.console.render(shown, self.console.options)))
        self._close_messages_no_wait()
