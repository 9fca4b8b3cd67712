"""FormScreen and EditScreen: dialogs with several inputs, the second for the values of a task, with a preview."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Label, Static

from runner.errors import InvalidPayload, RunnerError
from runner.operations.results import Result
from runner.operations.targets import required_confirmation
from runner.queries.task.detail import TaskDetail, task_detail
from tasktui.actions.as_command import copy
from tasktui.actions.edit import TaskEdit
from tasktui.actions.edit_form import edit_conflict, entries, indented, on_one_line, requeues
from tasktui.actions.edit_preview import RIGHT, EntryMeaning, Outlook, meanings, outlook, preview, ruler, title_row
from tasktui.actions.question import Dialog, Form
from tasktui.dialogs.ask import BREAKPOINTS, LOW, entry
from tasktui.dialogs.modal import ModalDialog, typed_texts
from tasktui.messages import Notice, OperationDone, PayloadRefused, TaskChanged, Tone
from tasktui.render.render import block, content, line, lines
from tasktui.render.rows import BLANK, Row, heading, rule
from tasktui.session.session import Session
from tasktui.shell.heading import Heading
from tasktui.widgets.canvas import FittedCanvas
from tasktui.widgets.caps import Cap, Caps
from tasktui.widgets.input import FORM_KEYS, TextLine, edit_text


class FormScreen(ModalDialog[Dialog | None]):
    """A form. Escape cancels; an error leaves all texts as they are.

    Args:
        form: the entries, and the next dialog.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *FORM_KEYS,
        Binding("escape", "dismiss", "Cancel"),
        Binding("ctrl+s", "submit", "Continue"),
        Binding("ctrl+e", "editor", "Edit this entry in $EDITOR", priority=True),
    ]

    @dataclass(eq=False, repr=False)
    class Answered(Message):
        """The form has led to the next dialog."""

        dialog: Dialog

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._form = form
        self._entries = {entry.name: entry for entry in form.fields}

    def compose(self) -> ComposeResult:
        """Build the entries."""
        yield Heading()
        with VerticalScroll(classes="dialog") as dialog:
            dialog.can_focus = False
            dialog.border_title = content(self._form.title)
            if any(entry.is_json for entry in self._form.fields):
                dialog.border_subtitle = "ctrl+e opens $EDITOR"
            yield Static(lines(self._form.about), classes="about")
            for entry in self._form.fields:
                with Horizontal(classes="entry"):
                    yield Label(entry.label, markup=False)
                    field = TextLine(entry.value, entry.hint, id=entry.name, compact=True)
                    field.select_on_focus = not entry.is_json  # Usually one edits only a part of it.
                    field.disabled, field.password = bool(entry.lock_reason), entry.is_secret
                    yield field
                if entry.lock_reason:
                    yield Static(content((f"{entry.label} is read-only: {entry.lock_reason}", "muted")))
                yield Static("", id=f"error-{entry.name}", classes="refused")
            yield Static("", id="preview")
            yield Caps(id="caps")

    def on_mount(self) -> None:
        """Show the preview. A form that opens while the console ends has no fields."""
        fields = list(self.query(TextLine))
        if not fields:
            return
        for field in fields:
            field.on_submit = lambda _text: self.focus_next()
        fields[-1].on_submit = lambda _text: self.action_submit()
        self._preview()

    def action_submit(self) -> None:
        """Continue with the next dialog."""
        self.run_worker(self._submit(typed_texts(self)), group="submit", exclusive=True)

    def action_editor(self) -> None:
        """Edit the text of the entry in the operator's editor."""
        field = self.focused
        if not isinstance(field, TextLine) or not self._entries[field.id or ""].is_json:
            return
        try:
            field.value = on_one_line(edit_text(self.app, indented(field.value)))
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
        if isinstance(message.dialog, Notice) and message.dialog.tone is Tone.ERROR:
            self._show(message.dialog.text, "bold dead")
        else:
            self.dismiss(message.dialog)

    @on(Input.Changed)
    def _preview(self) -> None:
        typed = typed_texts(self)
        errors = self._form.errors(typed)
        for name in self._entries:
            refused, why = self.query_one(f"#error-{name}", Static), errors.get(name, "")
            # An entry that is still empty is not a mistake, and its hint may have the same text.
            refused.display = bool(why) and (bool(typed[name]) or not self._entries[name].hint.startswith(why))
            refused.update(content((block(why), "retrying" if typed[name] else "muted")))
        caps = [Cap("esc", "cancel", "screen.dismiss"), Cap("ctrl+s", "continue", "screen.submit", locked=bool(errors))]
        self.query_one("#caps", Caps).show((), caps)
        try:
            self._show("\n".join(self._form.preview(typed)))
        except RunnerError as error:
            self._show(str(error), "retrying")

    def _show(self, text: str, style: str = "") -> None:
        self.query_one("#preview", Static).update(content((block(text), style)))


HINT = "ctrl+y copies the command, again the SQL; ctrl+e opens $EDITOR"


class EditScreen(ModalDialog[Result | None]):
    """An edit form. Escape cancels. A payload that the stored signature refuses is saved only with a reason.

    Args:
        detail: the task when the operator opened the form.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *FORM_KEYS,
        Binding("escape", "dismiss", "Cancel"),
        Binding("ctrl+s", "save", "Save"),
        Binding("ctrl+y", "copy", "Copy command or SQL"),
        Binding("ctrl+e", "editor", "Edit the payload in $EDITOR", priority=True),
    ]
    VERTICAL_BREAKPOINTS = BREAKPOINTS

    def __init__(self, detail: TaskDetail, session: Session) -> None:
        super().__init__()
        self._detail = detail
        self._session = session
        self._requeue = requeues(detail)
        self._misfit: str | None = None
        self._required = required_confirmation(1, production=session.settings.production, name=session.name)

    def compose(self) -> ComposeResult:
        """Build the form."""
        yield Heading()
        with VerticalScroll(classes="dialog") as dialog:
            dialog.can_focus = False
            verb = "Edit and requeue" if self._requeue else "Edit"
            dialog.border_title = content((f"{verb} task {self._detail.task.id}", "bold strong"))
            dialog.border_subtitle = content(HINT)
            yield FittedCanvas(id="title")
            for item in entries(self._detail):
                field = TextLine(item.value, item.hint, id=item.name, compact=True)
                field.select_on_focus = item.name != "payload"  # Usually one edits only a part of the payload.
                field.disabled = bool(item.lock_reason)
                yield from entry(item.label, field)
            yield from entry("Reason", TextLine(id="reason", compact=True, max_length=1000))
            if self._required.reason:
                word = TextLine(id="word", compact=True, max_length=1000)
                yield from entry(f"Type {line(self._required.word)}", word)
            yield Static("", id="conflict")
            yield FittedCanvas(id="outlook", classes="section")
            yield Static("", id="preview")
            yield Caps(id="caps")

    def on_mount(self) -> None:
        """Let enter lead to the next input."""
        for field in self.query(TextLine):
            field.on_submit = lambda _text: self.focus_next()
        self._preview()

    def action_save(self) -> None:
        """Save if the task is still at the version of the form."""
        typed = typed_texts(self)
        if wrong := self._wrong():
            self._show(f"Nothing was saved. {wrong}")
        elif self._required.reason and (typed["word"] != self._required.word or not typed["reason"]):
            self._show(f"Nothing was saved: enter a reason and type {line(self._required.word)}")
        else:
            self.run_worker(self._save(self._edit()), group="save", exclusive=True)

    def action_copy(self) -> None:
        """Copy the equivalent command line; the second time, copy the SQL."""
        edit = self._edit()
        try:
            command = edit.command()
        except RunnerError as error:
            self.report(f"Nothing was copied. {error}", bad=True)
        else:
            copy(self, command, edit.sql)

    def action_editor(self) -> None:
        """Edit the payload in the operator's editor; secrets stay masked, and no text is ever lost."""
        field = self.query_one("#payload", TextLine)
        if field.disabled:
            self.report("The payload is read-only", bad=True)
            return
        try:
            field.value = on_one_line(edit_text(self.app, indented(field.value)))
        except RunnerError as error:
            self.report(str(error), bad=True)
        field.focus()

    def report(self, text: str, *, bad: bool = False) -> None:
        """Show a copied text or an error."""
        self._show(text, "bold dead" if bad else "")

    @on(Input.Changed)
    def _preview(self) -> None:
        """Show the meaning of each text, the runs before and after, and the effect in words."""
        typed, detail, zone, low = typed_texts(self), self._detail, self._session.zone, self.app.size.height < LOW
        self.query_one("#title", FittedCanvas).show(lambda width: [title_row(detail, width), *([] if low else [BLANK])])
        for name, meaning in self._meanings().items():
            text = f"{meaning.sign or ' '} {meaning.text}"
            self.query_one(f"#{name}-meaning", Static).update(content((text, meaning.role)))
            self.query_one(f"#{name}", Input).set_class(meaning.wrong, "wrong")
        with suppress(RunnerError):  # The ruler keeps the last values that could be read.
            runs = outlook(typed, detail, zone)
            self.query_one("#outlook", FittedCanvas).show(lambda width: self._outlook(runs, width, low=low))
        wrong = self._wrong()
        if wrong:
            self._show(f"✗ {wrong}")
        else:
            self._show("\n".join(preview(typed, detail, zone)), "")
        caps = [Cap("esc", "cancel", "screen.dismiss"), Cap("ctrl+s", "save", "screen.save", locked=bool(wrong))]
        self.query_one("#caps", Caps).show((), caps)

    def _outlook(self, runs: Outlook, width: int, *, low: bool) -> list[Row]:
        gap = [] if low else [BLANK]
        rows = ruler(runs, self._detail.at, self._session.zone, width)
        return [*gap, rule([heading("What will happen")], width), *gap, *rows] if rows else []

    def _meanings(self) -> dict[str, EntryMeaning]:
        """The meaning of each text, by entry name."""
        limit, typed = int(self._session.settings.payload_limit), typed_texts(self)
        entries = meanings(typed, self._detail, self._session.zone, limit)
        needed = "required in production" if self._required.reason else "optional"
        entries["reason"] = EntryMeaning(RIGHT if typed["reason"] else "", needed, "muted")
        if self._required.reason:
            sign = RIGHT if typed["word"] == self._required.word else ""
            entries["word"] = EntryMeaning(sign, "to save", "muted")
        return entries

    def _wrong(self) -> str:
        """The first wrong entry with its reason; empty if all can be saved."""
        labels = {item.name: item.label for item in entries(self._detail)}
        wrong = ((name, meaning.text) for name, meaning in self._meanings().items() if meaning.wrong)
        return next((f"{labels[name]}: {text}" for name, text in wrong), "")

    async def _save(self, edit: TaskEdit) -> None:
        try:
            result = await edit.save()
        except InvalidPayload as error:
            self.post_message(PayloadRefused(str(error), edit.typed["payload"]))
        except RunnerError as error:
            self.post_message(Notice(str(error), bad=True))
        else:
            self.post_message(OperationDone("Edit", result))

    @on(Notice)
    def _show_error(self, message: Notice) -> None:
        message.stop()  # The form shows it, so the console need not.
        self._show(message.text)

    @on(PayloadRefused)
    def _offer_unchecked(self, message: PayloadRefused) -> None:
        message.stop()
        self._misfit = message.payload
        self._show(f"Nothing was saved. {message.why}\nIf it is right, enter a reason; ctrl+s then saves it unchecked.")

    @on(OperationDone)
    def _close_if_saved(self, message: OperationDone) -> None:
        if message.result.changed:
            self.dismiss(message.result)
        else:
            self._show("\n".join(["Nothing was saved:", *message.result.reasons()]))
            self.run_worker(self._read_again(), group="save")

    async def _read_again(self) -> None:
        with suppress(RunnerError):  # The form already shows why nothing was saved.
            self.post_message(TaskChanged(await self._session.read(task_detail, self._detail.task.id)))

    @on(TaskChanged)
    def _show_conflict(self, message: TaskChanged) -> None:
        """Show the task as it is now and keep the typed texts; saving again applies them to the new version."""
        before, self._detail = self._detail, message.detail
        if before.task.version == message.detail.task.version:
            return  # The task has not changed: keep the error on the form.
        self._requeue = requeues(message.detail)
        conflict = edit_conflict(before, message.detail, self._session.zone)
        for item in entries(before):
            field = self.query_one(f"#{item.name}", Input)
            if field.value == item.value:  # An unedited field takes the new value.
                field.value = conflict.values[item.name]
        self._preview()
        self.query_one("#conflict", Static).update(content(("\n".join(conflict.lines), "bold")))

    def _show(self, text: str, style: str = "bold dead") -> None:
        self.query_one("#preview", Static).update(content((block(text), style)))

    def _edit(self) -> TaskEdit:
        typed = typed_texts(self)
        unchecked = bool(typed["reason"]) and typed["payload"] == self._misfit
        return TaskEdit(self._session, self._detail, typed, unchecked)
