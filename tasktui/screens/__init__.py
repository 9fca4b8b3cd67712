"""Screens: one file each, and one row in COMMANDS of tasktui.commands.syntax.

The class of a screen is imported when it is first shown.
"""

import gc
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from tasktui.commands.syntax import SCREENS, Screen

if TYPE_CHECKING:
    from tasktui.session.session import Session
    from tasktui.shell.live import LiveScreen


class Mode(Screen):
    """A screen that the operator can switch to."""

    __slots__ = ()

    @property
    def screen(self) -> "type[LiveScreen]":
        """The class of the screen; imports its module on first use."""
        screen: type[LiveScreen] = getattr(import_module(f"tasktui.screens.{self.module}"), self.name)
        return screen

    def create(self, session: "Session", console: Any) -> "LiveScreen":
        """Create the screen. Textual calls this before it shows the screen for the first time.

        Args:
            session: the session with the database to which the screen belongs.
            console: the application.
        """
        return self._prepared(self.screen(), session, console)

    def create_past(self, session: "Session", console: Any) -> "LiveScreen":
        """Create the screen that shows a past time, see `create`."""
        from tasktui.screens.as_of import past_screen

        return self._prepared(past_screen(self.module), session, console)

    def create_for_shards(self, session: "Session", console: Any) -> "LiveScreen":
        """Create the screen that shows all shards of a profile, see `create`."""
        from tasktui.screens.shards import shards_screen

        return self._prepared(shards_screen(self.module), session, console)

    def _prepared(self, screen: "LiveScreen", session: "Session", console: Any) -> "LiveScreen":
        screen.title, screen.session, screen.console = self.title, session, console
        screen.opened = getattr(console.databases.opened_of(session), self.module, None)
        return screen


MODES = {name: Mode(*screen) for name, screen in SCREENS.items()}
"""The screens by name."""


SWITCH = 5e-4
"""Seconds that a thread, such as the one of `preload` or of SQLite, may keep the interpreter from a key."""


def preload() -> None:
    """Import the other screens, actions, dialogs and operations, so that no key waits, and start garbage collection.

    The collector skips everything imported by then: modules stay until the process ends.
    """
    sys.setswitchinterval(SWITCH)
    for mode in MODES.values():
        _ = mode.screen
    for package in ("tasktui.actions", "tasktui.dialogs", "runner.operations"):
        for module in iter_modules(import_module(package).__path__, f"{package}."):
            import_module(module.name)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
