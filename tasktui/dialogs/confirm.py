"""ConfirmScreen: a dialog that previews a change; the operator types a word to confirm it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from runner.errors import InvalidInput
from runner.policy.confirmation import RequiredConfirmation
from tasktui.actions.action import ALL, CANARY, Confirmation, parse_limit
from tasktui.actions.clipboard import copy
from tasktui.actions.question import Question
from tasktui.render.render import block, content, line, lines
from tasktui.widgets.heading import Heading
from tasktui.widgets.input import FOCUS_KEYS, TextLine

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
                    yield Static(content((note, "muted")))
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
