"""Lines to type into, with what may be meant shown ahead: tab and the right arrow take it."""

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.suggester import Suggester

from tasktui.widgets.text_line import TextLine

IN_TURN: list[BindingType] = [
    Binding("tab", "app.focus_next", "Next", show=False, priority=True),
    Binding("shift+tab", "app.focus_previous", "Previous", show=False, priority=True),
]
"""For forms: the line is changed before the next key is handed on, so that what is typed fast goes where it belongs."""


class Typed(TextLine):
    """One line to type into.

    Args:
        complete: what may be meant by what was typed so far; None when nothing is known.
        placeholder: shown while it is empty.
        value: to begin with.
        id: of the widget.
    """

    DEFAULT_CSS = "Typed { height: 1; border: none; padding: 0 1; } Typed:focus { border: none; }"

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "take", "Take what is shown ahead", show=False)]

    def __init__(
        self, complete: Callable[[str], str | None], placeholder: str = "", value: str = "", *, id: str | None = None
    ) -> None:
        super().__init__(value, placeholder=placeholder, suggester=_Completion(complete), id=id, compact=True)
        self._complete = complete

    def action_take(self) -> None:
        """Take what may be meant; where nothing may, stay here: the keys behind are not meant for the list."""
        if meant := self._complete(self.value):
            self.value, self.cursor_position = meant, len(meant)

    async def action_submit(self) -> None:
        """Send the line, and let go of the keyboard at once: the keys behind are meant for what comes then."""
        await super().action_submit()
        if not self.screen.is_modal:
            self.screen.set_focus(None)

    async def _on_key(self, event: events.Key) -> None:
        if self.screen.focused is self:
            await super()._on_key(event)
        else:
            event.stop()
            event.prevent_default()
            self.app.post_message(events.Key(event.key, event.character))


class _Completion(Suggester):
    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return self._complete(value)
