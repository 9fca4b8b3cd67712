"""The command line of the console, and its palette."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from textual import work
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider, SearchIcon
from textual.content import Content
from textual.css.query import NoMatches
from textual.events import Mount
from textual.widgets import Input

from runner.errors import InvalidInput
from runner.filter import saved
from tasktui.actions.actions import ACTIONS
from tasktui.commands.syntax import COMMANDS, complete_command
from tasktui.dialogs.modal import ModalDialog
from tasktui.render.render import content, line
from tasktui.screens import MODES
from tasktui.session.session import Session
from tasktui.shell.heading import Heading
from tasktui.shell.live import LiveScreen
from tasktui.widgets.input import CompletionInput

if TYPE_CHECKING:
    from tasktui.commands.run import CommandTarget


def saved_views(session: Session) -> dict[str, str]:
    """Return the saved filters by name; empty if the file is unreadable, which `:views` reports."""
    try:
        return saved.load(session.views)
    except InvalidInput:
        return {}


class Choice(NamedTuple):
    """An entry of the palette.

    Args:
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
        for view, filter_text in saved_views(console.session).items():
            yield Choice(f"View {line(view)}", line(filter_text), partial(console.open_tasks, filter_text))
        for command in COMMANDS.values():
            if command.name not in MODES:
                text = f":{command.name} {command.arguments}".strip()
                yield Choice(text, command.help, partial(console.action_command, command.name))


class PaletteScreen(CommandPalette):
    """The palette below the heading, which stays bright, with a sign of one cell before its input."""

    def __init__(self) -> None:
        super().__init__([PaletteProvider])  # without an id, which a palette that still closes would have too

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close the palette once, as `ModalDialog` does."""
        return super().dismiss(result) if self in self.app.screen_stack else AwaitComplete()

    def _action_command_list(self, action: str) -> None:
        """Move in the list; keys of a burst may precede its first layout, before which it has no pages."""
        with suppress(KeyError):
            super()._action_command_list(action)

    @work(exclusive=True, group=CommandPalette._GATHER_COMMANDS_GROUP)  # noqa: SLF001 - it is cancelled by that name
    async def _gather_commands(self, search_value: str) -> None:
        """List the commands; a palette that opens or closes in a burst of keys has no list."""
        with suppress(NoMatches):
            await super()._gather_commands.__wrapped__(self, search_value)  # type: ignore[attr-defined] # of `work`

    def compose(self) -> ComposeResult:
        """Build the heading above the palette."""
        yield Heading()
        yield from super().compose()

    def on_mount(self, event: Mount) -> None:
        """Replace the sign of Textual, which some terminals draw as a picture of two cells.

        A palette that closes as it opens has no screen below it, whose entries it would list.
        """
        if self not in self.app.screen_stack[1:]:
            event.prevent_default()
        for each in self.query(SearchIcon):  # A palette of a console that closes has none.
            each.icon = "▸"


def _actions(screen: LiveScreen) -> Iterator[Choice]:
    """The screen's actions that are currently enabled."""
    enabled = {active.binding.action for active in screen.active_bindings.values() if active.enabled}
    for action in ACTIONS.values():
        if f"act('{action.name}')" in enabled:
            name = f"{action.label}  {action.key}"
            yield Choice(name, f"for {action.target.word}", partial(screen.action_act, action.name))


class CommandScreen(ModalDialog[None]):
    """An input for a command. Enter closes it and runs the command before the next key; escape closes it.

    Args:
        names: names of queues, handlers and views for completion.
        text: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, names: Mapping[str, Sequence[str]], run: Callable[[str], object] = str, text: str = "") -> None:
        super().__init__()
        self._names = names
        self._run = run
        self._text = text

    def compose(self) -> ComposeResult:
        """Build the input."""
        complete = partial(complete_command, names=self._names)
        line = CompletionInput(complete, ":", "command (? lists all)", self._text, id="command")
        line.select_on_focus = False  # Typing continues the initial text.
        line.on_submit = self._submit
        yield line

    @property
    def line(self) -> Input:
        """The input."""
        return self.query_one("#command", Input)

    def action_cancel(self) -> None:
        """Close without a command."""
        self.dismiss(None)

    def _submit(self, text: str) -> None:
        self.dismiss(None)
        if text.strip():
            self._run(text.strip())
