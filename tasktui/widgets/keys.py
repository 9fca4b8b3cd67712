"""The foot of a screen: which keys do something here."""

from collections.abc import Sequence
from typing import Any

from textual.screen import Screen
from textual.widgets import Footer


class Keys(Footer):
    """A footer that is made anew only when other keys do something, and not whenever they might."""

    _shown: Sequence[tuple[object, ...]] = ()

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Show what does something now."""
        active = screen.active_bindings.values()
        keys = [(each.binding, each.enabled, each.tooltip) for each in active if each.binding.show]
        if keys != self._shown and screen.app.app_focus and self.is_attached:
            self._shown = keys
            super().bindings_changed(screen)
