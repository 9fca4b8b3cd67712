"""EditScreen: new values for one task, with what will follow from them, before they are saved."""

from contextlib import suppress
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from runner.errors import RunnerError
from runner.policy.consent import demand
from runner.store import intervene, observe
from runner.store.intervene import Result, Target
from runner.store.observe import Story
from tasktui.act.copying import copy
from tasktui.act.editing import changes, entries, moved_on, preview, runs_again, touched
from tasktui.act.spoken import of_edit, written
from tasktui.draw.render import block, content, line
from tasktui.messages import Acted, MovedOn, Told
from tasktui.operator.session import Session
from tasktui.widgets.text_line import TextLine
from tasktui.widgets.typed import IN_TURN


class EditScreen(ModalScreen[Result | None]):
    """A form in front of the screen; escape leaves it and changes nothing.

    Args:
        story: of the task, as it was read when the form was asked for.
        session: of the operator.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *IN_TURN,
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+s", "save", "Save", priority=True),
        Binding("ctrl+y", "copy", "Copy as a command line; again: as SQL", priority=True),
    ]

    def __init__(self, story: Story, session: Session) -> None:
        super().__init__()
        self._story = story
        self._session = session
        self._again = runs_again(story)
        self._demanded = demand(1, production=session.settings.production, name=session.name)

    def compose(self) -> ComposeResult:
        """Put the lines of the form below each other."""
        with VerticalScroll(classes="dialog") as dialog:
            dialog.can_focus = False
            yield Static(self._title(), id="title")
            for entry in entries(self._story, self._session.zone):
                with Horizontal(classes="entry"):
                    yield Label(entry.label, markup=False)
                    field = TextLine(entry.value, entry.hint, id=entry.name, compact=True)
                    field.select_on_focus = entry.name != "payload"  # of a payload a part is changed, of others all
                    field.disabled = bool(entry.closed)
                    yield field
                if entry.closed:
                    yield Static(content((f"{entry.label} stays as it is: {entry.closed}", "dim")))
            yield from self._account()
            yield Static("", id="moved")
            yield Static("", id="preview")
            yield Static(content(("ctrl+s saves, escape leaves all as it is, ctrl+y copies it, again: as SQL", "dim")))

    def _title(self) -> Content:
        task = self._story.task
        verb = "Run again, edited," if self._again else "Edit"
        title = (
            f"{verb} {task.id} {line(task.handler, 30)} {line(task.key, 30)} (as you saw it: version {task.version})"
        )
        return content((title, "bold"))

    def _account(self) -> ComposeResult:
        wanted = {"reason": "Reason" if self._demanded.reason else "Reason (optional)"}
        if self._demanded.reason:
            wanted["word"] = f"Type {line(self._demanded.word)}"
        for name, label in wanted.items():
            with Horizontal(classes="entry"):
                yield Label(label, markup=False)
                yield TextLine(id=name, compact=True, max_length=1000)

    def on_mount(self) -> None:
        """Show what would follow from nothing."""
        self._preview()

    def action_cancel(self) -> None:
        """Leave everything as it is."""
        self.dismiss(None)

    def action_save(self) -> None:
        """Save, if the task is still as it was seen."""
        typed = self._typed()
        if self._demanded.reason and (typed["word"] != self._demanded.word or not typed["reason"]):
            self._object(f"Nothing was saved: give a reason, and type {line(self._demanded.word)}")
        else:
            self.run_worker(self._save(typed), group="save", exclusive=True)

    def action_copy(self) -> None:
        """Copy the command line that sets the same values, and show it; again: the SQL."""
        typed, settings = self._typed(), self._session.settings
        given = touched(typed, self._story, self._session.zone)
        try:
            changes(typed, self._story, self._session.zone)
        except RunnerError as error:
            self.say(f"Nothing was copied. {error}", bad=True)
            return
        text = written(of_edit(self._story, given, typed["reason"] or None), settings) if given else None
        copy(self, text, partial(self._script, typed))

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show what was copied, or why nothing was."""
        self.query_one("#preview", Static).update(content((block(text), "bold red" if bad else "")))

    async def _script(self, typed: dict[str, str]) -> str:
        story, session = self._story, self._session
        wanted = changes(typed, story, session.zone)
        by, limit = session.by(typed["reason"] or None), int(session.settings.payload_limit)
        operation = partial(intervene.edit_each, changes=wanted, by=by, payload_limit=limit, again=self._again)
        return await session.write(intervene.script, operation, [Target(story.task.id, story.task.version)])

    @on(Input.Changed)
    def _preview(self) -> None:
        told = preview(self._typed(), self._story, self._session.zone)
        self.query_one("#preview", Static).update(content(block("\n".join(told))))

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.focus_next()

    async def _save(self, typed: dict[str, str]) -> None:
        story, session = self._story, self._session
        try:
            wanted = changes(typed, story, session.zone)
            by, limit = session.by(typed["reason"] or None), int(session.settings.payload_limit)
            result = await session.write(
                intervene.edit, story.task.id, story.task.version, wanted, by, again=self._again, payload_limit=limit
            )
        except RunnerError as error:
            self.post_message(Told(str(error), bad=True))
        else:
            self.post_message(Acted("Edit", result))

    @on(Told)
    def _told(self, message: Told) -> None:
        self._object(message.text)

    @on(Acted)
    def _acted(self, message: Acted) -> None:
        if message.result.changed:
            self.dismiss(message.result)
        else:
            self._object("\n".join(["Nothing was saved:", *message.result.left_alone()]))
            self.run_worker(self._look_again(), group="save")

    async def _look_again(self) -> None:
        with suppress(RunnerError):  # what was said already is all that there is to say
            self.post_message(MovedOn(await self._session.read(observe.story, self._story.task.id)))

    @on(MovedOn)
    def _moved_on(self, message: MovedOn) -> None:
        """Show the task as it is now, keep what was typed, and let that be saved after another look."""
        before, self._story = self._story, message.story
        if before.task.version == message.story.task.version:
            return  # it is as it was: what was said against it stays
        self._again = runs_again(message.story)
        told = moved_on(before, message.story, self._session.zone)
        for entry in entries(before, self._session.zone):
            field = self.query_one(f"#{entry.name}", Input)
            if field.value == entry.value:  # not touched: it follows
                field.value = told.now[entry.name]
        self.query_one("#title", Static).update(self._title())
        self.query_one("#moved", Static).update(content(("\n".join(told.lines), "bold")))

    def _object(self, why: str) -> None:
        self.query_one("#preview", Static).update(content((block(why), "bold red")))

    def _typed(self) -> dict[str, str]:
        return {field.id or "": field.value.strip() for field in self.query(Input)}
