"""Screens: one file each, and one row in COMMANDS of tasktui.commands.syntax.

The class of a screen is imported when it is first shown.
"""

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from threading import Event
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


async def preload() -> None:
    """Import the other screens, actions, dialogs and operations in a thread, so that no key waits for them.

    A cancel stops the thread after the module that it imports.
    """
    stops = Event()
    try:
        await asyncio.to_thread(_import, stops)
    finally:
        stops.set()


def _import(stops: Event) -> None:
    sys.setswitchinterval(SWITCH)
    with suppress(Exception):  # The key that needs the module reports why it cannot be imported.
        for name in _modules():
            if stops.is_set():
                return
            import_module(name)
    if not gc.isenabled():
        gc.freeze()  # The collector skips everything imported by now: modules stay until the process ends.
        gc.enable()


def _modules() -> Iterator[str]:
    yield from (f"tasktui.screens.{mode.module}" for mode in MODES.values())
    for package in ("tasktui.actions", "tasktui.dialogs", "runner.operations"):
        yield from (module.name for module in iter_modules(import_module(package).__path__, f"{package}."))
