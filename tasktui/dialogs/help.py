"""HelpScreen: the keys, actions and commands that apply to a screen."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from runner.filter.fields import FIELDS
from runner.model.task import Shown
from runner.settings import Settings
from runner.text.formatting import SIGNS
from tasktui.actions.as_command import command_line
from tasktui.commands.syntax import COMMANDS
from tasktui.dialogs.answer import AnswerScreen
from tasktui.dialogs.modal import ModalDialog
from tasktui.render.render import content, fitted
from tasktui.render.rows import BLANK, Row, beside, fit, heading, rule
from tasktui.render.theme import key_sign
from tasktui.shell.heading import Heading
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas

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


class HelpScreen(ModalDialog[None]):
    """The help of a screen or a dialog. Escape, q or ? closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Close")]

    def __init__(self, screen: LiveScreen | AnswerScreen[Any]) -> None:
        super().__init__()
        self._about, session = screen.ABOUT, screen.session
        unlock = session.lock.unlock
        self._locked = "" if session.writable else f"needs {unlock}" if unlock else "read-only"
        self._groups = _grouped(_keys(screen))
        self._title = f"Keys of {screen.title}"

    def compose(self) -> ComposeResult:
        """Build one scrollable text, as rows: Textual would wrap a Static five times before it is drawn."""
        yield Heading()
        dialog = VerticalScroll(Canvas(), classes="dialog")
        dialog.border_title, dialog.border_subtitle = content(self._title), "escape closes"
        yield dialog

    def on_resize(self) -> None:
        """Draw the text for the width of the terminal, once it is known."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = self.app.size.width
        groups = {title: _key_rows(title, keys, locked=self._locked) for title, keys in self._groups.items()}
        for canvas in self.query(Canvas).results(Canvas):
            canvas.draw(help_rows(self._about, groups, width))


def help_rows(about: str, groups: Mapping[str, Sequence[Row]], width: int) -> list[Row]:
    """Render the keys of a screen in columns, the signs, its purpose, the commands and the filter language.

    Args:
        groups: the keys by the title of their group.
        width: cells of the terminal.
    """
    room = max(SIGN_CELLS, min(int(width * DIALOG), WITH_COLUMNS) - AROUND)
    columns = [[row for title in titles if title in groups for row in groups[title]] for titles in COLUMNS]
    if width >= WITH_COLUMNS:
        rows = list(beside(columns[0], beside(columns[1], columns[2], KEY_CELLS), KEY_CELLS))
    else:
        rows = [row for column in columns for row in column]
    rows.append([("SIGNS", "bold strong")])
    states = list(Shown)
    in_row = room // SIGN_CELLS
    for begin in range(0, len(states), in_row):
        rows.append([(f"{SIGNS[s]} {s:<{SIGN_CELLS - 2}}", str(s)) for s in states[begin : begin + in_row]])
    rows += [BLANK, [("THIS SCREEN", "bold strong")]]
    rows += [[(part, "muted")] for part in wrap(about, room - 1)]  # a blank before the scroll bar
    rows += [BLANK, [("COMMANDS", "bold strong")]]
    for command in COMMANDS.values():
        rows += _entry(f":{command.name} {command.arguments}", 32, command.help, room)
    rows += [BLANK, [("FILTER", "bold strong"), ("  a space is AND, a comma is OR, a minus is NOT", "muted")]]
    for field in FIELDS.values():
        rows += _entry(field.name, 16, f"{field.help:48}{field.examples}", room)
    return rows


def _entry(name: str, width: int, text: str, room: int) -> list[Row]:
    """A name with its explanation, whose further lines begin below the first one."""
    width = min(width, room // 2)
    label = f"  {name}"
    first, *rest = wrap(text, max(1, room - width), replace_whitespace=False) or [""]
    if len(label) >= width:  # A long name has a row of its own.
        first, rest = "", [first, *rest]
    below: list[Row] = [[(" " * width + more, "text")] for more in rest]
    return [[(label.ljust(width) if first else label, "accent"), (first, "text")], *below]


def _key_rows(title: str, keys: Sequence[tuple[str, str]], *, locked: str) -> list[Row]:
    """The keys of one group below its title; those that change are locked while nothing may be changed.

    Args:
        locked: the reason why nothing may be changed; empty without one.
    """
    locked = locked if title == CHANGE else ""
    rows: list[Row] = [[(title, "bold strong"), (f"  {locked}" if locked else "", "italic faint")]]
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
    "app.command('sort')": "LOOK",
    "mark": "MARK",
    "go": "GO TO",
}
"""The titles of the keys by their actions; the other ones look."""

COLUMNS = (("LOOK", "MARK"), (CHANGE, "MOVE"), ("GO TO", "CONSOLE"))
"""The groups in the columns of a wide screen."""

KEY_CELLS = 31
"""Cells of a column."""


def _keys(screen: LiveScreen | AnswerScreen[Any]) -> list[tuple[str, str, str]]:
    """Keys, their labels and their actions."""
    labels: dict[str, tuple[str, str, str]] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.description and not binding.action.startswith(OTHERS):
            keys = labels.get(binding.action, ("",))[0]
            key = key_sign("↵") if binding.key == "enter" else screen.app.get_key_display(binding)
            labels[binding.action] = (f"{keys} {key}".strip(), binding.description, binding.action)
    return list(labels.values())


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
