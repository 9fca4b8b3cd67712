"""Holding: keys that are typed while the database is asked what a question needs wait for that question."""

from typing import Any

from textual.app import App
from textual.events import Event, Key
from textual.screen import ModalScreen

LEAVING = ("escape", "ctrl+c", "ctrl+q")
"""Keys that do not wait: the database may take long."""

MOST = 1_000
"""Keys that wait at most."""


class Holding(App[None]):
    """An application that can let keys wait.

    What is typed behind the key that asks is meant for the question: it must not do something to the screen below.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: list[Key] | None = None

    async def on_event(self, event: Event) -> None:
        """Put keys aside while they have to wait."""
        if isinstance(event, Key) and self._held is not None and event.key not in LEAVING:
            self._held = [*self._held, event][:MOST]
        else:
            if isinstance(event, Key) and event.key in LEAVING:
                self._held = None  # who leaves a question that does not come wants the keys to do something again
            await super().on_event(event)

    def hold(self) -> None:
        """Let the next keys wait."""
        self._held = self._held or []

    def let_go(self) -> None:
        """Hand the keys on to the question; where none came, they were meant for nothing that is there."""
        if isinstance(self.screen, ModalScreen):
            self.screen.call_after_refresh(self._hand_on)
        else:
            self._held = None

    def _hand_on(self) -> None:
        held, self._held = self._held or [], None
        for key in held:
            self.post_message(Key(key.key, key.character))


def holding(app: App[Any]) -> Holding:
    """The application of a screen."""
    assert isinstance(app, Holding)  # noqa: S101 - every screen of ours has this one
    return app
