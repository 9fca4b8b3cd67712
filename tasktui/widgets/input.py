"""CompletionInput, a one-line input with inline completion, and the operator's own editor for longer texts.

Tab or the right arrow accepts a completion. The editor gets a temporary file, which only the operator can read.
"""

import asyncio
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.app import App, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.suggester import Suggester
from textual.widgets import Input

from runner.errors import InvalidInput
from tasktui.render.theme import style

MOST_TURNS = 1_000
"""Turns of the event loop that an input gets to handle its focus."""


class TextLine(Input):
    """A one-line input that handles its keys in order and joins the lines of a pasted text.

    Textual keeps only the first line and silently drops the others, which changes a filter or a payload.
    """

    on_submit: Callable[[str], object] | None = None
    """Called with the text on enter, before the next key; None posts `Submitted`, which is handled later."""

    async def press(self, event: events.Key) -> None:
        """Insert the character of a key, or run its action, before the application takes the next key."""
        await self.focus_event()
        if not self.is_attached:  # The screen has closed.
            return
        if event.is_printable:
            await self._on_key(event)
            return
        active = self.screen.active_bindings.get(event.key)
        if active is not None and active.enabled:
            await self.app.run_action(active.binding.action, active.node)
            focused = self.app.focused
            if isinstance(focused, TextLine):
                await focused.focus_event()

    async def focus_event(self) -> None:
        """Wait until the input has handled its focus, which selects its text: the next key replaces it."""
        for _ in range(MOST_TURNS):
            if self.has_focus:
                return
            await asyncio.sleep(0)

    async def action_submit(self) -> None:
        """Submit the text."""
        if self.on_submit is None:
            await super().action_submit()
        else:
            self.on_submit(self.value)

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()  # Textual also calls the handler of the base class.
        joined = " ".join(event.text.splitlines())
        super()._on_paste(events.Paste(joined))
        event.stop()


FOCUS_KEYS: list[BindingType] = [
    Binding("tab", "app.focus_next", "Next", show=False),
    Binding("shift+tab", "app.focus_previous", "Previous", show=False),
]
"""Bindings for dialogs with inputs."""

FORM_KEYS: list[BindingType] = [
    *FOCUS_KEYS,
    # With priority over the dialog, which still scrolls by page and to the input in use.
    Binding("down", "app.focus_next", "Next", show=False, priority=True),
    Binding("up", "app.focus_previous", "Previous", show=False, priority=True),
]
"""Bindings for dialogs with one input below the other."""


class CompletionInput(TextLine):
    """A one-line input with inline completion, after a sign that stays.

    Args:
        complete: returns the completion of a text; None if there is none.
        sign: the key that opened the input.
        placeholder: shown while the input is empty.
        value: initial text.
    """

    DEFAULT_CSS = "CompletionInput { height: 1; border: none; } CompletionInput:focus { border: none; }"

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", "Accept the completion", show=False)]

    def __init__(
        self, complete: Callable[[str], str | None], sign: str, placeholder: str = "", value: str = "", *, id: str
    ) -> None:
        super().__init__(value, placeholder=placeholder, suggester=_Completion(complete), id=id, compact=True)
        self._complete = complete
        self._sign = f" {sign} "

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the input, and the sign in its padding."""
        strips = super().render_lines(crop)
        if not strips or crop.x:
            return strips
        sign = Segment(self._sign, self.rich_style + style("bold accent"))
        return [Strip.join([Strip([sign]), strips[0].crop(len(self._sign))]), *strips[1:]]

    def action_complete(self) -> None:
        """Accept the completion. Keep the focus without one: the following keys are not meant for the list."""
        if completion := self._complete(self.value):
            self.value, self.cursor_position = completion, len(completion)


class _Completion(Suggester):
    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return self._complete(value)


DEFAULT_EDITOR = "vi"
"""The editor if the environment names none."""


def editor_command(environment: Mapping[str, str]) -> list[str]:
    """The words of the editor's command line, from VISUAL or EDITOR.

    Raises:
        InvalidInput: the variable is not a command line.
    """
    text = environment.get("VISUAL") or environment.get("EDITOR") or DEFAULT_EDITOR
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidInput(why=f"EDITOR is not a command line: {error}") from error


def edit_text(app: App[object], text: str) -> str:
    """Edit a text while the console is suspended.

    Args:
        app: the console; its terminal belongs to the editor until the editor ends.

    Returns:
        The edited text; the file is deleted.

    Raises:
        InvalidInput: the editor cannot start, or reports a failure; nothing was edited.
    """
    import tempfile  # The first screen does not need it.

    command = editor_command(os.environ)
    with tempfile.TemporaryDirectory(prefix="tasktui-") as folder:  # mode 0700
        path = Path(folder) / "payload.json"  # editors choose colours by the end of the name
        path.write_text(text, encoding="utf-8")
        try:
            with app.suspend():
                code = subprocess.run([*command, str(path)], check=False).returncode  # noqa: S603 - the operator's own
        except SuspendNotSupported as error:
            raise InvalidInput(why="this terminal cannot be given to an editor") from error
        except OSError as error:
            raise InvalidInput(why=f"cannot start {command[0]!r}: {error.strerror}; set EDITOR") from error
        if code:
            raise InvalidInput(why=f"{command[0]} ended with code {code}; the text is as before")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(why=f"the edited file is unreadable: {error}") from error
