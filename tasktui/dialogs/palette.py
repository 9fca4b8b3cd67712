"""PaletteScreen: a list of the actions of a screen, all screens, saved views and commands, which typing narrows."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Mount
from textual.widgets import Input

from tasktui.actions.actions import ACTIONS
from tasktui.commands.syntax import COMMANDS
from tasktui.dialogs.command_line import saved_views
from tasktui.dialogs.modal import ModalDialog
from tasktui.render.render import Cell, ListColumn, RenderedRow, line
from tasktui.screens import MODES
from tasktui.shell.heading import Heading
from tasktui.shell.live import LiveScreen
from tasktui.widgets.input import CompletionInput
from tasktui.widgets.table import Table

if TYPE_CHECKING:
    from tasktui.commands.run import CommandTarget

COLUMNS = (ListColumn("ENTRY", 32), ListColumn("KEY", 4), ListColumn("", 20, grow=1))


class Choice(NamedTuple):
    """An entry of the palette.

    Args:
        key: the key that does the same; empty for none.
        help: one line.
        run: executes the entry.
    """

    title: str
    key: str
    help: str
    run: Callable[[], Awaitable[object] | object]


class PaletteScreen(ModalDialog[None]):
    """The entries that match the typed letters, the best one first. Enter closes the palette and runs one.

    Args:
        console: the console.
        screen: the screen whose actions are listed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("enter", "run", "Run", priority=True),
        Binding("up", "move(-1)", "Up", priority=True),
        Binding("down", "move(1)", "Down", priority=True),
        Binding("pageup", "page(-1)", "Page up", priority=True),
        Binding("pagedown", "page(1)", "Page down", priority=True),
    ]

    def __init__(self, console: "CommandTarget", screen: LiveScreen) -> None:
        super().__init__()
        self._choices = list(_choices(console, screen))
        self._table = Table[int](COLUMNS, id="choices")
        self._table.can_focus = False  # Letters are for the input, also after a click.
        self._input = CompletionInput(lambda _: None, "▸", "an action, a screen, a view or a command", id="search")
        self._shown: str | None = None

    def compose(self) -> ComposeResult:
        """Build the input above the entries."""
        yield Heading()
        with Vertical(classes="dialog") as dialog:
            dialog.border_subtitle = "enter runs it, escape closes"
            yield self._input
            yield self._table

    @on(Mount)
    @on(Input.Changed)
    def _follow(self) -> None:
        """List the entries that match the input; keys in a burst come before its message."""
        if self._input.value != self._shown:
            self._shown = self._input.value
            self._show(self._shown)

    def _show(self, text: str) -> None:
        """List the entries with all words of a text: first those whose title begins with it, then those with a word."""
        text, places = text.strip().lower(), range(len(self._choices))
        words, titles = text.split(), [choice.title.lower() for choice in self._choices]
        whole = [f"{choice.title} {choice.help}".lower() for choice in self._choices]
        matching = [place for place in places if all(word in whole[place] for word in words)]
        if text:
            in_title = [any(word in title for word in words) for title in titles]
            matching.sort(key=lambda place: (not titles[place].startswith(text), not in_title[place]))
        self._table.show(matching, self._row)
        self._table.action_first()

    def _row(self, place: int) -> RenderedRow:
        choice = self._choices[place]
        return RenderedRow((Cell(choice.title, "text"), Cell(choice.key, "accent"), Cell(choice.help, "muted")))

    def action_move(self, by: int) -> None:
        """Move in the list."""
        self._follow()
        self._table.action_move(by)

    def action_page(self, direction: int) -> None:
        """Move in the list by a screenful."""
        self._follow()
        self._table.action_page(direction)

    async def action_run(self) -> None:
        """Close the palette, and run the entry under the cursor before the next key."""
        self._follow()
        if self._table.cursor is not None:
            await self._run(self._table.cursor)

    @on(Table.Selected)
    async def _run_clicked(self, event: Table.Selected) -> None:
        await self._run(event.key)

    async def _run(self, place: int) -> None:
        if self in self.app.screen_stack:
            self.dismiss(None)
            result = self._choices[place].run()
            if isawaitable(result):
                await result


def _choices(console: "CommandTarget", screen: LiveScreen) -> Iterator[Choice]:
    """The entries of a screen: its enabled actions, all screens, saved views and commands."""
    enabled = {active.binding.action for active in screen.active_bindings.values() if active.enabled}
    for action in ACTIONS.values():
        if f"act('{action.name}')" in enabled:
            yield Choice(action.label, action.key, f"for {action.target.word}", partial(screen.action_act, action.name))
    for name, mode in MODES.items():
        yield Choice(mode.title, mode.key, "go to this screen", partial(console.action_go, name))
    for view, filter_text in saved_views(console.session).items():
        yield Choice(f"View {line(view)}", "", line(filter_text), partial(console.open_tasks, filter_text))
    for command in COMMANDS.values():
        if command.name not in MODES:
            text = f":{command.name} {command.arguments}".strip()
            yield Choice(text, "", command.help, partial(console.action_command, command.name))
