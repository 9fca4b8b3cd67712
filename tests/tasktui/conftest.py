"""A console on a database of its own, driven by keys and read as text."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from math import inf
from pathlib import Path
from typing import Any

import pytest
from textual._compositor import Compositor
from textual._context import active_app, visible_screen_stack
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.widgets import Input

from runner.db.database import Database
from runner.settings import Settings
from runner.urls import parse_url
from tasktui.app import Console
from tasktui.dialogs import ask
from tasktui.render import theme
from tasktui.session.session import Session
from tasktui.session.write_lock import ReadOnlyReason, WriteLock
from tasktui.shell import live
from tasktui.terminal import typed_ahead
from tests.conftest import on_sqlite

WAIT_SECONDS = 90.0
"""Seconds to wait for an event before the test fails."""

WIDE = (120, 40)
NARROW = (80, 24)
SMALLEST = (40, 10)

PARSED: dict[object, Any] = {}

PAINTS = [0]
"""The number of paints of all screens so far."""

ON_ONE_DATABASE = on_sqlite
"""For behaviour between keys and screen; the tests of the store run on every database."""


class Operator:
    """An operator at a console.

    Args:
        console: the console.
        pilot: presses the keys.
    """

    def __init__(self, console: Console, pilot: Pilot[None]) -> None:
        self.console = console
        self.pilot = pilot
        self._painted: tuple[object, int] = (None, 0)
        self._text = ""

    @property
    def screen(self) -> Any:
        return self.console.screen

    @property
    def text(self) -> str:
        """The text on the screen."""
        return "\n".join(strip.text.rstrip() for strip in self.console.screen._compositor.render_strips())

    @property
    def painted_text(self) -> str:
        """The text on the screen at its last paint: drawn once per paint, however often it is read."""
        last = (self.screen, PAINTS[0])
        if self._painted != last:
            self._painted, self._text = last, self.text
        return self._text

    @property
    def notices(self) -> str:
        """The texts of all notices."""
        return "\n".join(self.console.notices)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Set the text of the input that has the focus."""
        field = self.console.screen.focused
        assert isinstance(field, Input)
        field.value = text
        await self.pilot.pause()

    async def command(self, text: str) -> None:
        await self.press("colon")
        await self.until(lambda: type(self.screen).__name__ == "CommandScreen")
        await self.type(text)
        await self.press("enter")

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition that still holds after the layout and the paint of what the same read changed."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                held = 0
                while held < 3:
                    held = held + 1 if condition() else 0
                    if held < 3:
                        await self.pilot.pause(0 if held else 0.03)
        except TimeoutError:
            raise AssertionError(f"timeout; the screen:\n{self.text}\nnotices:\n{self.notices}") from None

    async def back(self, title: str) -> None:
        """Press escape, and wait for the screen with a title."""
        await self.press("escape")
        await self.until(lambda: self.screen.title == title)

    async def sees(self, *texts: str) -> None:
        def shown() -> bool:
            screen = self.painted_text
            return all(text in screen for text in texts)

        await self.until(shown)

    async def sees_notice(self, text: str) -> None:
        await self.until(lambda: text in self.notices)


Watch = Callable[..., Any]


@pytest.fixture(autouse=True)
def _parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse each style sheet once: the rules never change, and hundreds of consoles follow."""
    parse = Stylesheet._parse_rules

    def parsed(sheet: Stylesheet, css: str, **source: Any) -> Any:
        key = (css, *source.values(), *sheet._variables.items())
        if key not in PARSED:
            PARSED[key] = parse(sheet, css, **source)
        return PARSED[key]

    monkeypatch.setattr(Stylesheet, "_parse_rules", parsed)


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no update without a terminal: Textual would discard it, and a test reads the whole screen itself."""
    update = Compositor.render_update

    def updated(compositor: Compositor, full: bool = False, screen_stack: Any = None, simplify: bool = False) -> Any:
        PAINTS[0] += 1
        if full or not active_app.get().is_headless:
            return update(compositor, full, screen_stack, simplify)
        visible_screen_stack.set(screen_stack or [])
        compositor._dirty_regions.clear()
        return None

    monkeypatch.setattr(Compositor, "render_update", updated)


@pytest.fixture(autouse=True)
def _dark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw with all colours, whatever the terminal of the tests is."""
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    theme.use("dark")


@pytest.fixture
def watch(database: Database, migrated_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watch:
    """Open a console on the database of the test, with short polling intervals."""
    monkeypatch.setattr(live, "PERIOD", 0.3)
    monkeypatch.setattr(live, "SHARE", 5)
    monkeypatch.setattr(live, "TICK", 0.1)
    monkeypatch.setattr(typed_ahead, "BURST", 0.0)  # `press` types like an operator who reads the screen first
    monkeypatch.setattr(ask, "FRESH", inf)  # on a slow machine too, the rows of a dialog are those it showed

    @asynccontextmanager
    async def watching(
        mode: str = "overview",
        size: tuple[int, int] = WIDE,
        *,
        writable: bool = True,
        filter_text: str = "",
        task_id: int | None = None,
        url: str = migrated_url,
        barrier: ReadOnlyReason | None = None,
        beside: Sequence[Session] = (),
        **settings: Any,
    ) -> AsyncIterator[Operator]:
        lock = WriteLock(inf if writable else -inf, barrier)
        values = Settings(url=parse_url(url), **settings)
        reading = Database.of(values, read_only=True)
        session = Session(reading, values, lock, UTC, views=tmp_path / "views.json")
        console: Console = type("Begun", (Console,), {"DEFAULT_MODE": mode})(session, others=beside)
        console.databases.opened.tasks.filter_text, console.databases.opened.task.id = filter_text, task_id
        try:
            async with console.run_test(size=size, notifications=True) as pilot:
                operator = Operator(console, pilot)
                await operator.until(lambda: operator.screen.feed.read_at is not None)
                yield operator
            await session.finish()
        finally:
            await reading.dispose()

    return watching
