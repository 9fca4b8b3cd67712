"""AskScreen, CommandScreen and ConfirmScreen: dialogs with one input, for a question, a command and a confirmation."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from runner.errors import InvalidInput
from runner.operations.targets import RequiredConfirmation
from tasktui.actions.action import ALL, CANARY, Confirmation, parse_limit
from tasktui.actions.as_command import copy
from tasktui.actions.question import Question
from tasktui.commands.syntax import complete_command
from tasktui.render.render import block, content, line, lines
from tasktui.widgets.heading import Heading
from tasktui.widgets.input import FOCUS_KEYS, CompletionInput, TextLine


class AskScreen(ModalScreen[str | None]):
    """A question. Enter submits the answer, escape cancels.

    Args:
        question: the question, sanitized.
        answer: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, question: str, answer: str) -> None:
        super().__init__()
        self._question = question
        self._answer = answer

    def compose(self) -> ComposeResult:
        """Build the question and its input."""
        with Vertical(classes="dialog"):
            yield Static(content((self._question, "bold")), classes="about")
            field = TextLine(self._answer, compact=True, id="answer")
            field.on_submit = self._submitted
            yield field
            yield Static(content(("\nenter submit, escape cancel", "muted")))

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)

    def _submitted(self, text: str) -> None:
        self.dismiss(text.strip() or None)


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
        line = CompletionInput(complete, ": command (? lists all)", self._text, id="command")
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


LOW = 36
"""Rows of a screen below which a dialog has few samples, so that the number of changes stays in sight."""

CommandSource = Callable[[Confirmation], str | None]


class ConfirmScreen(ModalScreen[Confirmation | None]):
    """A confirmation dialog. Escape cancels.

    Args:
        question: the change to confirm.
        required: the word to type, and whether a reason is required.
        command: returns the equivalent command line for the answers so far; None if there is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *FOCUS_KEYS,
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+y", "copy", "Copy as command line (again: SQL)"),
    ]

    def __init__(self, question: Question, required: RequiredConfirmation, command: CommandSource) -> None:
        super().__init__()
        self._question = question
        self._required = required
        self._command = command

    def compose(self) -> ComposeResult:
        """Build the description and the inputs."""
        yield Heading()
        with VerticalScroll(classes="dialog changes") as dialog:
            dialog.can_focus = False
            dialog.border_title, dialog.border_subtitle = f"{self._question.action.label}?", "escape cancels"
            samples = self._question.samples if self.app.size.height >= LOW else self._question.samples[:1]
            yield Static(lines([*self._question.about, *samples]), classes="about")
            action, word = self._question.action, line(self._required.word)
            if action.prompt:
                yield from _entry("answer", action.prompt, action.default, action.default)
            if self._question.many:
                stages = f", or {CANARY}: 1, 10, 100, then the rest" if self._question.canary else ""
                yield from _entry("limit", "Limit", ALL, f"{ALL}, 1 to try one task first{stages}")
                if self._question.canary:
                    note = f"{CANARY}: 1, 10, 100, then the rest; stops when a task fails"
                    yield Static(content((note, "muted")), classes="note")
            yield from _entry(
                "reason", "Reason", self._question.reason, hint="required" if self._required.reason else "optional"
            )
            yield from _entry("word", f"Type {word}")
            yield Static("", id="objection")
            sql = ", again for SQL" if self._question.sql else ""
            yield Static(content((f"type {word} and press enter; escape cancel, ctrl+y copy{sql}", "muted")))

    def on_mount(self) -> None:
        """Start at the first input, or at the word if no other input needs attention."""
        for field in self.query(TextLine):
            field.on_submit = self._submitted if field.id == "word" else self._next
        more = self._question.action.required or self._required.reason or self._question.many
        (self.query(Input).first() if more else self.query_one("#word")).focus()

    def action_cancel(self) -> None:
        """Cancel."""
        self.dismiss(None)

    def action_copy(self) -> None:
        """Copy the equivalent command line; the second time, copy the SQL."""
        values = self._values()
        try:
            confirmation = self._confirmation(values)
            text = self._command(confirmation)
        except InvalidInput as error:
            self._reject(line(str(error)))
            return
        copy(self, text, partial(self._question.sql, confirmation) if self._question.sql else None)

    def report(self, text: str, *, bad: bool = False) -> None:
        """Show a copied text or an error."""
        self.query_one("#objection", Static).update(content((block(text), "bold dead" if bad else "")))

    def _next(self, _text: str) -> None:
        self.focus_next()

    def _submitted(self, _text: str) -> None:
        values = self._values()
        if values["word"] != self._required.word:
            self._reject(f"Nothing was changed: type {line(self._required.word)} to confirm")
        elif self._required.reason and not values["reason"]:
            self._reject("Nothing was changed: enter a reason")
        else:
            self._confirm(values)

    def _values(self) -> dict[str, str]:
        return {field.id or "": field.value.strip() for field in self.query(Input)}

    def _confirmation(self, values: Mapping[str, str]) -> Confirmation:
        limit, answer = values.get("limit", ""), values.get("answer", "")
        is_canary = self._question.canary and limit.lower() == CANARY
        if is_canary and answer not in ("", "0", "0s"):
            raise InvalidInput(why=f"{CANARY} waits for each stage; leave out the spread, or the {CANARY}")
        return Confirmation(answer, values["reason"] or None, None if is_canary else parse_limit(limit), is_canary)

    def _confirm(self, values: Mapping[str, str]) -> None:
        try:
            self.dismiss(self._confirmation(values))
        except InvalidInput as error:
            self._reject(line(str(error)))

    def _reject(self, why: str) -> None:
        self.query_one("#objection", Static).update(content((why, "bold dead")))


def _entry(name: str, label: str, value: str = "", hint: str = "") -> ComposeResult:
    with Horizontal(classes="entry"):
        yield Label(label, markup=False)
        yield TextLine(value, placeholder=hint, id=name, compact=True, max_length=1000)
