"""HelpScreen, the command palette and the command line: the keys, actions and commands that apply to a screen."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider, SearchIcon
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from runner.filter.fields import FIELDS
from runner.model.task import Shown
from runner.settings import Settings
from runner.text.sanitize import SIGNS
from tasktui.actions.actions import ACTIONS
from tasktui.actions.as_command import command_line
from tasktui.commands.syntax import COMMANDS, complete_command
from tasktui.render.render import content, fitted, line
from tasktui.render.rows import BLANK, Row, beside, fit, heading, rule
from tasktui.render.theme import key_sign
from tasktui.screens import MODES
from tasktui.screens.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.heading import Heading
from tasktui.widgets.input import CompletionInput

if TYPE_CHECKING:
    from tasktui.commands.run import CommandTarget

OTHERS = ("scroll", "page_left", "page_right", "app.focus", "screen.")
"""Prefixes of actions that Textual defines for every widget; the help omits them."""

WITH_COLUMNS = 104
"""Cells of a screen that has room for the keys in columns, which is also the width of the dialog."""

DIALOG = 0.96
"""The share of the screen's width that the dialog takes, up to that width."""

AROUND = 8
"""Cells of the border, the padding and the scroll bar of the dialog."""


SIGN_CELLS = 14
"""Cells of a state with its sign."""


class HelpScreen(ModalScreen[None]):
    """The help of a screen. Escape, q or ? closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Close")]

    def __init__(self, screen: LiveScreen) -> None:
        super().__init__()
        self._help = help_of(screen)
        self._title = f"Keys of {screen.title}"

    def compose(self) -> ComposeResult:
        """Build one scrollable text, as rows: Textual would wrap a Static five times before it is drawn."""
        yield Heading()
        text = Canvas()
        text.draw(self._help)
        dialog = VerticalScroll(text, classes="dialog")
        dialog.border_title, dialog.border_subtitle = content(self._title), "escape closes"
        yield dialog


def help_of(screen: LiveScreen) -> list[Row]:
    """Render the purpose of a screen, its keys in columns, the commands and the filter language."""
    room = min(int(screen.size.width * DIALOG), WITH_COLUMNS) - AROUND
    groups = {title: _key_rows(screen, title, keys) for title, keys in _grouped(_keys(screen)).items()}
    columns = [[row for title in titles if title in groups for row in groups[title]] for titles in COLUMNS]
    rows: list[Row] = [[(part, "muted")] for part in wrap(screen.ABOUT, room - 1)]  # a blank before the scroll bar
    rows.append(BLANK)
    if screen.size.width >= WITH_COLUMNS:
        rows += beside(columns[0], beside(columns[1], columns[2], KEY_CELLS), KEY_CELLS)
    else:
        rows += [row for column in columns for row in column]
    rows.append([("SIGNS", "bold strong")])
    states = list(Shown)
    in_row = room // SIGN_CELLS
    for begin in range(0, len(states), in_row):
        rows.append([(f"{SIGNS[s]} {s:<{SIGN_CELLS - 2}}", str(s)) for s in states[begin : begin + in_row]])
    rows += [BLANK, [("COMMANDS", "bold strong")]]
    for command in COMMANDS.values():
        rows += _entry(f":{command.name} {command.arguments}", 32, command.help, room)
    rows += [BLANK, [("FILTER", "bold strong"), ("  a space is AND, a comma is OR, a minus is NOT", "muted")]]
    for field in FIELDS.values():
        rows += _entry(field.name, 16, f"{field.help:48}{field.examples}", room)
    return rows


def _entry(name: str, width: int, text: str, room: int) -> list[Row]:
    """A name with its explanation, whose further lines begin below the first one."""
    label = f"  {name}"
    first, *rest = wrap(text, room - width, replace_whitespace=False) or [""]
    if len(label) >= width:  # A long name has a row of its own.
        first, rest = "", [first, *rest]
    below: list[Row] = [[(" " * width + more, "text")] for more in rest]
    return [[(label.ljust(width) if first else label, "accent"), (first, "text")], *below]


def _key_rows(screen: LiveScreen, title: str, keys: Sequence[tuple[str, str]]) -> list[Row]:
    """The keys of one group below its title."""
    locked = title == CHANGE and not screen.session.writable
    rows: list[Row] = [[(title, "bold strong"), ("  needs :write" if locked else "", "italic faint")]]
    for key, label in keys:
        role = "faint" if locked else "bold accent"
        rows.append([(f" {key:^7} ", f"{role} on cap"), (f"  {fitted(label, KEY_CELLS - 13)}", "text")])
    return [*rows, BLANK]


def _grouped(keys: Sequence[tuple[str, str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Keys and their labels by the title of their group."""
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key, label, action in keys:
        name = action.removeprefix("app.").partition("(")[0]
        changes = len(key) == 1 and key.isupper() and name not in ("copy", "last")
        groups[CHANGE if changes else GROUPS.get(name, "LOOK")].append((key, label))
    return groups


CHANGE = "CHANGE"

GROUPS = {
    **dict.fromkeys(("move", "page", "first", "last"), "MOVE"),
    **dict.fromkeys(("help", "command", "command_palette", "database", "health", "quit", "stop"), "CONSOLE"),
    "mark": "MARK",
    "go": "GO TO",
}
"""The titles of the keys by their actions; the other ones look."""

COLUMNS = (("LOOK", "MARK"), (CHANGE, "MOVE"), ("GO TO", "CONSOLE"))
"""The groups in the columns of a wide screen."""

KEY_CELLS = 31
"""Cells of a column."""


def _keys(screen: LiveScreen) -> list[tuple[str, str, str]]:
    """Keys, their labels and their actions."""
    labels: dict[str, tuple[str, str, str]] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.description and not binding.action.startswith(OTHERS):
            keys = labels.get(binding.action, ("",))[0]
            key = key_sign("↵") if binding.key == "enter" else screen.app.get_key_display(binding)
            labels[binding.action] = (f"{keys} {key}".strip(), binding.description, binding.action)
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
                yield Choice(text, command.help, partial(console.action_command, command.name))


class PaletteScreen(CommandPalette):
    """The palette below the heading, which stays bright, with a sign of one cell before its input."""

    def __init__(self) -> None:
        super().__init__([PaletteProvider], id="--command-palette")

    def compose(self) -> ComposeResult:
        """Build the heading above the palette."""
        yield Heading()
        yield from super().compose()

    def on_mount(self) -> None:
        """Replace the sign of Textual, which some terminals draw as a picture of two cells."""
        self.query_one(SearchIcon).icon = "▸"


def _actions(screen: LiveScreen) -> Iterator[Choice]:
    """The screen's actions that are currently enabled."""
    enabled = {active.binding.action for active in screen.active_bindings.values() if active.enabled}
    for action in ACTIONS.values():
        if f"act('{action.name}')" in enabled:
            name = f"{action.label}  {action.key}"
            yield Choice(name, f"for {action.target.word}", partial(screen.action_act, action.name))


STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Watch sample tasks run, fail and retry", ("demo", "--keep-running")),
    ("Run the handlers of your module", ("work", "-H", "package.module")),
    ("Submit a task; :submit HANDLER does it from here", ("submit", "mail.send", '{"to": "ana"}')),
)
"""The first steps with an empty database, each with its command line."""


def start_here(settings: Settings, width: int) -> list[Row]:
    """The first steps with an empty database; production gets no sample tasks."""
    rows: list[Row] = [BLANK, rule([heading("START HERE")], width, [("this screen fills by itself", "muted")])]
    for number, (text, words) in enumerate(STEPS[settings.production :], 1):
        command = command_line(words, settings) or command_line(words[:1], settings) or "runner --help"
        rows += [
            [(f"  {number}  ", "bold accent"), (text, "text")],
            fit([("     ", ""), (command, "strong")], width),
            BLANK,
        ]
    return rows


class CommandScreen(ModalScreen[None]):
    """An input for a command. Enter closes it and runs the command before the next key; escape closes it.

    Args:
        names: names of queues, handlers and views for completion.
        run: runs a command.
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
