"""CompletionInput: a one-line input with inline completion; tab or the right arrow accepts it."""

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.suggester import Suggester
from textual.widgets import Input


class TextLine(Input):
    """A one-line input that joins the lines of a pasted text.

    Textual keeps only the first line and silently drops the others, which changes a filter or a payload.
    """

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()  # Textual also calls the handler of the base class.
        joined = " ".join(event.text.splitlines())
        super()._on_paste(events.Paste(joined))
        event.stop()


FOCUS_KEYS: list[BindingType] = [
    Binding("tab", "app.focus_next", "Next", show=False, priority=True),
    Binding("shift+tab", "app.focus_previous", "Previous", show=False, priority=True),
]
"""Bindings for forms. With priority, the focus moves before Textual dispatches the next key, however fast one types."""


class CompletionInput(TextLine):
    """A one-line input with inline completion.

    Args:
        complete: returns the completion of a text; None if there is none.
        placeholder: shown while the input is empty.
        value: initial text.
        id: id of the widget.
    """

    DEFAULT_CSS = "CompletionInput { height: 1; border: none; padding: 0 1; } CompletionInput:focus { border: none; }"

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", "Accept the completion", show=False)]

    def __init__(
        self, complete: Callable[[str], str | None], placeholder: str = "", value: str = "", *, id: str | None = None
    ) -> None:
        super().__init__(value, placeholder=placeholder, suggester=_Completion(complete), id=id, compact=True)
        self._complete = complete

    def action_complete(self) -> None:
        """Accept the completion. Keep the focus without one: the following keys are not meant for the list."""
        if completion := self._complete(self.value):
            self.value, self.cursor_position = completion, len(completion)

    async def action_submit(self) -> None:
        """Submit the text and drop the focus immediately: the following keys are meant for the next screen."""
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
