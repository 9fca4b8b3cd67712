"""FormScreen: a dialog with several inputs, whose texts lead to the next dialog."""

from collections.abc import Mapping
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from runner.errors import RunnerError
from tasktui.actions.form import Form
from tasktui.actions.question import Dialog
from tasktui.messages import Notice
from tasktui.render.render import block, content, lines
from tasktui.widgets.heading import Heading
from tasktui.widgets.input import FOCUS_KEYS, TextLine


class FormScreen(ModalScreen[Dialog | None]):
    """A form. Escape cancels; an error leaves all texts as they are.

    Args:
        form: the entries, and what follows.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *FOCUS_KEYS,
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+s", "submit", "Continue"),
        Binding("ctrl+e", "editor", "Edit this entry in $EDITOR", priority=True),
    ]

    class Answered(Message):
        """The form has led to the next dialog."""

        def __init__(self, dialog: Dialog) -> None:
            self.dialog = dialog
            super().__init__()

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._form = form
        self._entries = {entry.name: entry for entry in form.fields}

    def compose(self) -> ComposeResult:
        """Build the entries."""
        yield Heading()
        with VerticalScroll(classes="dialog") as dialog:
            dialog.can_focus = False
            dialog.border_title, dialog.border_subtitle = self._form.title, "escape cancels"
            yield Static(lines(self._form.about), classes="about")
            for entry in self._form.fields:
                with Horizontal(classes="entry"):
                    yield Label(entry.label, markup=False)
                    field = TextLine(entry.value, entry.hint, id=entry.name, compact=True)
                    field.select_on_focus = not entry.is_json  # Usually one edits only a part of it.
                    field.disabled = bool(entry.lock_reason)
                    yield field
                if entry.lock_reason:
                    yield Static(content((f"{entry.label} is read-only: {entry.lock_reason}", "muted")))
                yield Static("", id=f"error-{entry.name}", classes="refused")
            yield Static("", id="preview")
            editor = ", ctrl+e $EDITOR" if any(entry.is_json for entry in self._form.fields) else ""
            yield Static(content((f"ctrl+s continue to the confirmation{editor}, escape cancel", "muted")))

    def on_mount(self) -> None:
        """Show the preview."""
        fields = list(self.query(TextLine))
        for field in fields:
            field.on_submit = self._next
        fields[-1].on_submit = lambda _text: self.action_submit()
        self._preview()

    def action_cancel(self) -> None:
        """Cancel."""
        self.dismiss(None)

    def action_submit(self) -> None:
        """Continue with the next dialog."""
        self.run_worker(self._submit(self._typed()), group="submit", exclusive=True)

    def action_editor(self) -> None:
        """Edit the text of the entry in the operator's editor."""
        from tasktui.actions.edit_form import indented, on_one_line
        from tasktui.terminal.editor import edit_text

        field = self.focused
        if not isinstance(field, TextLine) or not self._entries[field.id or ""].is_json:
            return
        try:
            field.value = on_one_line(edit_text(self.app, indented(field.value), ".json"))
        except RunnerError as error:
            self._show(str(error), "bold dead")
        field.focus()

    async def _submit(self, typed: Mapping[str, str]) -> None:
        try:
            dialog = await self._form.submit(typed)
        except RunnerError as error:
            dialog = Notice(str(error), bad=True)
        self.post_message(self.Answered(dialog))

    @on(Answered)
    def _continue(self, message: Answered) -> None:
        message.stop()
        if isinstance(message.dialog, Notice) and message.dialog.bad:
            self._show(message.dialog.text, "bold dead")
        else:
            self.dismiss(message.dialog)

    @on(Input.Changed)
    def _preview(self) -> None:
        typed = self._typed()
        errors = self._form.errors(typed)
        for name in self._entries:
            refused, why = self.query_one(f"#error-{name}", Static), errors.get(name, "")
            refused.display = bool(why)
            # An entry that is still empty is no mistake.
            refused.update(content((block(f"{'':20}{why}"), "retrying" if typed[name] else "muted")))
        try:
            self._show("\n".join(self._form.preview(typed)))
        except RunnerError as error:
            self._show(str(error), "retrying")

    def _next(self, _text: str) -> None:
        self.focus_next()

    def _show(self, text: str, style: str = "") -> None:
        self.query_one("#preview", Static).update(content((block(text), style)))

    def _typed(self) -> dict[str, str]:
        return {field.id or "": field.value.strip() for field in self.query(Input)}
