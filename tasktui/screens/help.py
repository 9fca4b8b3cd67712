"""HelpScreen: the keys of the screen below, and the commands."""

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from runner.people.fields import FIELDS
from tasktui.draw.render import content, lines
from tasktui.screens.live import LiveScreen
from tasktui.typed.commands import COMMANDS

OTHERS = ("scroll", "page_left", "page_right", "app.focus", "screen.")
"""Beginnings of actions that come with every widget and tell nothing of ours."""


class HelpScreen(ModalScreen[None]):
    """Help in front of the screen; any of escape, q and ? closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Close")]

    def __init__(self, screen: LiveScreen) -> None:
        super().__init__()
        self._about = help_of(screen)

    def compose(self) -> ComposeResult:
        """One text that can be scrolled."""
        yield VerticalScroll(Static(self._about), classes="dialog")


def help_of(screen: LiveScreen) -> Content:
    """What a screen is for, its keys, the commands and the filter language."""
    parts = [content((screen.title or "", "bold")), content(screen.ABOUT), content(("\nKeys", "bold"))]
    for key, label in _keys(screen):
        parts.append(content((f"  {key:12}", "bold"), label))
    parts.append(content(("\nCommands", "bold")))
    for command in COMMANDS.values():
        parts.append(content((f"  :{command.name} {command.arguments}".ljust(32), "bold"), command.help))
    parts.append(content(("\nFilter: terms with blanks between must all hold; a comma is or, a minus is not", "bold")))
    for field in FIELDS.values():
        parts.append(content((f"  {field.name:14}", "bold"), f"{field.help:48}", (field.examples, "dim")))
    return lines(parts)


def _keys(screen: LiveScreen) -> list[tuple[str, str]]:
    found: dict[str, Any] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.description and not binding.action.startswith(OTHERS):
            keys, _ = found.get(binding.action, ("", ""))
            key = screen.app.get_key_display(binding)
            found[binding.action] = (f"{keys} {key}".strip(), binding.description)
    return list(found.values())
