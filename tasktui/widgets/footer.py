"""Keys: the footer with the keys of a screen."""

from collections.abc import Sequence
from typing import Any

from textual.app import App
from textual.screen import Screen
from textual.widgets import Footer

from tasktui.render.render import block


class Keys(Footer):
    """A footer that Textual rebuilds only when its keys change, not on every possible change."""

    _keys: Sequence[tuple[object, ...]] = ()

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Rebuild the footer if its keys have changed."""
        active = screen.active_bindings.values()
        keys = [(each.binding, each.enabled, each.tooltip) for each in active if each.binding.show]
        if keys != self._keys and screen.app.app_focus and self.is_attached:
            self._keys = keys
            super().bindings_changed(screen)


BRIEF = 5.0
"""Seconds that a notice of success stays."""

LONG = 20.0
"""Seconds that an error stays: the operator may be reading another screen."""


def show(target: App[Any] | Screen[Any], text: str, *, bad: bool = False) -> None:
    """Show a notice.

    Args:
        target: application or screen to show it on.
        text: any text; it is sanitized here.
        bad: True for an error.
    """
    if bad:
        target.notify(block(text), severity="error", timeout=LONG, markup=False)
    else:
        target.notify(block(text), timeout=BRIEF, markup=False)
