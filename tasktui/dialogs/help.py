"""HelpScreen: a dialog with the keys of the screen below it, the commands and the filter fields."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from runner.filter.fields import FIELDS
from tasktui.commands.parse import COMMANDS
from tasktui.render.render import content, lines
from tasktui.screens.live import LiveScreen

OTHERS = ("scroll", "page_left", "page_right", "app.focus", "screen.")
"""Prefixes of actions that Textual defines for every widget; the help omits them."""


class HelpScreen(ModalScreen[None]):
    """The help of a screen. Escape, q or ? closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Close")]

    def __init__(self, screen: LiveScreen) -> None:
        super().__init__()
        self._help_text = help_of(screen)

    def compose(self) -> ComposeResult:
        """Build one scrollable text."""
        yield VerticalScroll(Static(self._help_text), classes="dialog")


def help_of(screen: LiveScreen) -> Content:
    """Render the purpose of a screen, its keys, the commands and the filter language."""
    parts = [content((screen.title or "", "bold")), content(screen.ABOUT), content(("\nKeys", "bold"))]
    for key, label in _keys(screen):
        parts.append(content((f"  {key:12}", "bold"), label))
    parts.append(content(("\nCommands", "bold")))
    for command in COMMANDS.values():
        parts.append(content((f"  :{command.name} {command.arguments}".ljust(32), "bold"), command.help))
    parts.append(content(("\nFilter: a space is AND, a comma is OR, a minus is NOT", "bold")))
    for field in FIELDS.values():
        parts.append(content((f"  {field.name:14}", "bold"), f"{field.help:48}", (field.examples, "muted")))
    return lines(parts)


def _keys(screen: LiveScreen) -> list[tuple[str, str]]:
    labels: dict[str, tuple[str, str]] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.description and not binding.action.startswith(OTHERS):
            keys, _ = labels.get(binding.action, ("", ""))
            key = screen.app.get_key_display(binding)
            labels[binding.action] = (f"{keys} {key}".strip(), binding.description)
    return list(labels.values())
