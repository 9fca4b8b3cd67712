"""HelpScreen and the command palette: the keys, actions and commands that apply to a screen."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from runner.filter.fields import FIELDS
from runner.model.task import Shown
from runner.text.sanitize import SIGNS
from tasktui.actions.actions import ACTIONS
from tasktui.commands.syntax import COMMANDS
from tasktui.render.render import content, line, lines
from tasktui.screens import MODES
from tasktui.screens.live import LiveScreen
from tasktui.widgets.heading import Heading

if TYPE_CHECKING:
    from tasktui.commands.run import CommandTarget

OTHERS = ("scroll", "page_left", "page_right", "app.focus", "screen.")
"""Prefixes of actions that Textual defines for every widget; the help omits them."""

WITH_TWO_COLUMNS = 104
"""Cells of a screen that has room for the keys in two columns."""


class HelpScreen(ModalScreen[None]):
    """The help of a screen. Escape, q or ? closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Close")]

    def __init__(self, screen: LiveScreen) -> None:
        super().__init__()
        self._help_text = help_of(screen, columns=2 if screen.size.width >= WITH_TWO_COLUMNS else 1)
        self._title = f"Keys of {screen.title}"

    def compose(self) -> ComposeResult:
        """Build one scrollable text."""
        yield Heading()
        dialog = VerticalScroll(Static(self._help_text), classes="dialog")
        dialog.border_title, dialog.border_subtitle = content(self._title), "escape closes"
        yield dialog


def help_of(screen: LiveScreen, columns: int = 2) -> Content:
    """Render the purpose of a screen, its keys in columns, the commands and the filter language."""
    parts = [content((screen.ABOUT, "muted")), content("")]
    locked = not screen.session.writable
    keys = list(_keys(screen))
    for title, changing in (("LOOK AND MOVE", False), ("CHANGE", True)):
        note = "  needs :write" if changing and locked else ""
        parts.append(content((title, "bold strong"), (note, "italic faint")))
        chosen = [(key, label) for key, label in keys if _changes(key) is changing]
        half = -(-len(chosen) // columns)
        for index in range(half):
            row: list[tuple[str, str]] = []
            for key, label in chosen[index::half]:
                role = "faint" if changing and locked else "bold accent"
                row += [(f" {key:^11} ", f"{role} on cap"), (f"  {label:<30}"[:34], "text"), ("  ", "")]
            parts.append(content(*row))
        parts.append(content(""))
    parts.append(content(("SIGNS", "bold strong")))
    states = list(Shown)
    for begin in range(0, len(states), 2 * columns + 1):
        parts.append(content(*((f"{SIGNS[s]} {s:<12}", str(s)) for s in states[begin : begin + 2 * columns + 1])))
    parts.append(content(("\nCOMMANDS", "bold strong")))
    for command in COMMANDS.values():
        name = f"  :{command.name} {command.arguments}".ljust(32)
        parts.append(content((name, "accent"), (command.help, "text")))
    parts.append(content(("\nFILTER", "bold strong"), ("  a space is AND, a comma is OR, a minus is NOT", "muted")))
    for field in FIELDS.values():
        parts.append(content((f"  {field.name:14}", "accent"), (f"{field.help:48}", "text"), (field.examples, "muted")))
    return lines(parts)


def _changes(key: str) -> bool:
    """True for an upper-case letter, which changes something; Y only copies and G only moves."""
    return len(key) == 1 and key.isupper() and key not in ("Y", "G")


def _keys(screen: LiveScreen) -> list[tuple[str, str]]:
    labels: dict[str, tuple[str, str]] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.description and not binding.action.startswith(OTHERS):
            keys, _ = labels.get(binding.action, ("", ""))
            key = screen.app.get_key_display(binding)
            labels[binding.action] = (f"{keys} {key}".strip(), binding.description)
    return list(labels.values())


class Choice(NamedTuple):
    """An entry of the palette.

    Args:
        title: the title.
        help: one line; both are shown as plain text.
        run: executes the entry.
    """

    title: str
    help: str
    run: Callable[[], object]

    @property
    def prompt(self) -> Content:
        """Both lines as content; the palette would parse its own help line as markup."""
        return content(self.title, (f"\n{self.help}", "muted"))


class PaletteProvider(Provider):
    """The entries available on the current screen."""

    async def discover(self) -> Hits:
        """List all entries before the operator types."""
        for choice in self._choices():
            yield DiscoveryHit(choice.prompt, choice.run, choice.title)

    async def search(self, query: str) -> Hits:
        """List the entries that match the query."""
        matcher = self.matcher(query)
        for choice in self._choices():
            score = matcher.match(f"{choice.title} {choice.help}")
            if score > 0:
                yield Hit(score, choice.prompt, choice.run, choice.title)

    def _choices(self) -> Iterator[Choice]:
        console = cast("CommandTarget", self.app)
        if isinstance(self.screen, LiveScreen):
            yield from _actions(self.screen)
        for name, mode in MODES.items():
            yield Choice(f"{mode.title}  {mode.key}", "go to this screen", partial(console.action_go, name))
        for view, filter_text in console.views().items():
            yield Choice(f"View {line(view)}", line(filter_text), partial(console.list_tasks, filter_text))
        for command in COMMANDS.values():
            if command.name not in MODES:
                text = f":{command.name} {command.arguments}".strip()
                yield Choice(text, command.help, partial(console.begin_command, command.name))


def _actions(screen: LiveScreen) -> Iterator[Choice]:
    """The screen's actions that are currently enabled."""
    enabled = {active.binding.action for active in screen.active_bindings.values() if active.enabled}
    for action in ACTIONS.values():
        if f"act('{action.name}')" in enabled:
            name = f"{action.label}  {action.key}"
            yield Choice(name, f"for {action.target.word}", partial(screen.action_act, action.name))
