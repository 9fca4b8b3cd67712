"""Keys in their order: buffers them while a dialog loads its data, and hands them to inputs one after the other."""

from typing import Any, Protocol, runtime_checkable

from textual.app import App
from textual.events import Event, Key
from textual.screen import ModalScreen

LEAVING = ("escape", "ctrl+c", "ctrl+q")
"""Keys that bypass the buffer, because the query may be slow."""

MAX_KEYS = 1_000
"""Capacity of the buffer."""


@runtime_checkable
class OrderedField(Protocol):
    """An input that handles a key completely before the application takes the next one."""

    async def press(self, event: Key) -> None:
        """Handle a key: insert its character, or run its action."""
        ...


class KeyBuffer(App[None]):
    """An application that handles keys in the order in which they were typed.

    Keys after the one that opens a dialog are meant for the dialog and must not act on the screen below. Textual
    inserts characters in the queue of the input, but runs the actions of other keys in the queue of the application,
    so that characters overtake backspace, arrows and enter. This application waits for each key of an input.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Key] | None = None

    async def on_event(self, event: Event) -> None:
        """Buffer keys while buffering is on, and hand the keys of an input to it one by one."""
        if not isinstance(event, Key):
            await super().on_event(event)
            return
        if not self.screen_stack:  # The console has closed.
            return
        if event.key in LEAVING:
            self._keys = None  # the operator gave up on the dialog
        elif self._keys is not None:
            self._keys = [*self._keys, event][:MAX_KEYS]
            return
        field: object = self.focused
        if isinstance(field, OrderedField):
            await field.press(event)
        else:
            await super().on_event(event)

    def hold(self) -> None:
        """Start buffering."""
        self._keys = self._keys or []

    def let_go(self) -> None:
        """Replay the keys to the dialog, or drop them if no dialog opened."""
        if isinstance(self.screen, ModalScreen):
            self.screen.call_after_refresh(self._replay)
        else:
            self._keys = None

    def release(self) -> None:
        """Replay the keys to the screen in front, whatever it is, once it is drawn."""
        self.screen.call_after_refresh(self._replay)

    def _replay(self) -> None:
        keys, self._keys = self._keys or [], None
        for key in keys:
            self.post_message(Key(key.key, key.character))


def holding(app: App[Any]) -> KeyBuffer:
    """The application of a screen, with its type."""
    assert isinstance(app, KeyBuffer)  # noqa: S101 - all our screens belong to this application
    return app
