"""Buffers keys that the operator types while a dialog loads its data."""

from typing import Any

from textual.app import App
from textual.events import Event, Key
from textual.screen import ModalScreen

LEAVING = ("escape", "ctrl+c", "ctrl+q")
"""Keys that bypass the buffer, because the query may be slow."""

MAX_KEYS = 1_000
"""Capacity of the buffer."""


class KeyBuffer(App[None]):
    """An application that can buffer keys.

    Keys after the one that opens a dialog are meant for the dialog and must not act on the screen below.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Key] | None = None

    async def on_event(self, event: Event) -> None:
        """Buffer keys while buffering is on."""
        if isinstance(event, Key) and self._keys is not None and event.key not in LEAVING:
            self._keys = [*self._keys, event][:MAX_KEYS]
        else:
            if isinstance(event, Key) and event.key in LEAVING:
                self._keys = None  # the operator gave up on the dialog
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

    def _replay(self) -> None:
        keys, self._keys = self._keys or [], None
        for key in keys:
            self.post_message(Key(key.key, key.character))


def holding(app: App[Any]) -> KeyBuffer:
    """The application of a screen, with its type."""
    assert isinstance(app, KeyBuffer)  # noqa: S101 - all our screens belong to this application
    return app
