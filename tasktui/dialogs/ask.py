"""ConfirmScreen: the confirmation of a change, which compares its rows with the database before it closes."""

import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Label, Static

from runner.errors import InvalidInput, RunnerError
from runner.model.duration import parse_spread
from runner.operations.targets import RequiredConfirmation
from runner.text import formatting
from runner.text.sanitize import count_noun
from tasktui.actions.action import ALL, CANARY, Confirmation, parse_limit
from tasktui.actions.as_command import copy
from tasktui.actions.plan import PlanChanges
from tasktui.actions.question import Question
from tasktui.dialogs.modal import ModalDialog, typed_texts
from tasktui.messages import Notice
from tasktui.render.render import block, content, line, lines
from tasktui.render.rows import BLANK, Part, Row, heading, rule, width_of
from tasktui.shell.heading import Heading
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.caps import Cap, Caps
from tasktui.widgets.input import FOCUS_KEYS, TextLine

LOW = 36
"""Rows of a screen below which a dialog has few samples, so that the number of changes stays in sight."""

BREAKPOINTS: list[tuple[int, str]] = [(0, "low"), (LOW, "tall")]
"""Classes of a dialog by the rows of the screen."""

ENTRY = 16
"""Cells of the label of an entry, as in the style sheet."""

CommandSource = Callable[[Confirmation], str | None]

FRESH = 5.0
"""Seconds for which the rows of a dialog count as current; a confirmation after that compares them."""

LONGEST = 300
"""Characters of the changes of the rows in a dialog."""

PART = "answer-"
"""Before the name of an input that is a part of the answer."""

SPREAD = "Spread over"
"""The prompt of an action that spreads its tasks."""


class ConfirmScreen(ModalDialog[Confirmation | Question | None]):
    """A confirmation dialog. Escape cancels, and a key replaces the question by a wider one.

    If it was open for a while, it compares its rows with the database before it closes, shows the changes, and
    asks again. The change itself skips every task that is no longer at the version on the screen.

    Args:
        required: the word to type, and whether a reason is required.
        command: returns the equivalent command line for the answers so far; None if there is none.
        now: the time of day, for the end of a spread.
        production: True if the database is marked as production.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *FOCUS_KEYS,
        Binding("escape", "dismiss", "Cancel"),
        Binding("ctrl+y", "copy", "Copy command or SQL"),
        Binding("ctrl+t", "stage", "Canary, or all at once", priority=True),
        Binding("ctrl+a", "widen", "All of this cause", priority=True),
    ]
    VERTICAL_BREAKPOINTS = BREAKPOINTS

    @dataclass(eq=False, repr=False)
    class Compared(Message):
        """The rows of the change were compared with the database.

        Args:
            values: the texts of the inputs that the operator confirmed.
            changes: how the rows have changed since.
        """

        values: Mapping[str, str]
        changes: PlanChanges

    def __init__(
        self,
        question: Question,
        required: RequiredConfirmation,
        command: CommandSource,
        now: datetime,
        *,
        production: bool = False,
    ) -> None:
        super().__init__()
        self._question = question
        self._required = required
        self._command = command
        self._now = now
        self._safety = "Production" if production else "Confirm"
        self._fresh_at = time.monotonic()
        self._known: Mapping[str, int] | None = None

    def compose(self) -> ComposeResult:
        """Build the description and the inputs."""
        question, action = self._question, self._question.action
        yield Heading()
        with VerticalScroll(classes="dialog changes") as dialog:
            dialog.can_focus = False
            dialog.border_title = content(
                (f"{' '.join(filter(None, (_label(question), question.subject, question.of)))}?", "bold strong")
            )
            dialog.border_subtitle = content((f"ctrl+y copies the command{', again the SQL' * bool(question.sql)}", ""))
            if question.about:
                yield Static(lines(question.about), classes="about")
            yield Canvas(id="effect")
            if action.prompt or question.many:
                yield Canvas(id="how", classes="section")
            for part in question.parts:
                yield from _entry(f"{PART}{part.name}", part.label, part.value, part.hint)
            if action.prompt and not question.parts:
                yield from _entry("answer", action.prompt, action.default, action.default)
            if question.many:
                yield from _entry("limit", "Limit", question.limit)
                yield Canvas(id="when", classes="section")
            yield Canvas(id="safety", classes="section")
            yield from _entry(
                "reason", "Reason", question.reason, hint="required" if self._required.reason else "optional"
            )
            yield from _entry("word", f"Type {line(self._required.word)}")
            yield Static("", id="objection")
            yield Caps(id="caps")

    def on_mount(self) -> None:
        """Start at the first input without a usable default: the answer, the reason or the word.

        A word or a reason typed too early must never become a spread, a limit or a duration.
        """
        for field in self.query(TextLine):
            last = field.id == "word"
            field.on_submit = lambda _, last=last: self.action_submit() if last else self.focus_next()
        answer = f"{PART}{self._question.parts[0].name}" if self._question.parts else "answer"
        first = answer if self._question.action.required else "reason" if self._required.reason else "word"
        self.query(f"#{first}").focus()  # a dialog that closes as it opens has no inputs

    def on_resize(self) -> None:
        """Draw the rows in the new width, once it is known."""
        self.call_after_refresh(self._draw)

    @on(Input.Changed)
    def _draw(self) -> None:
        """Draw the effect, and the meaning of each input."""
        if not self.query(".dialog"):  # it has closed since the resize
            return
        dialog, low = self.query_one(".dialog"), self.app.size.height < LOW
        width = dialog.scrollable_content_region.width or self.app.size.width
        values = self._values()
        if self._question.effect is not None:
            self.query_one("#effect", Canvas).draw(self._question.effect(width, values.get("answer", ""), low=low))
        for name, title in (("how", "How"), ("safety", self._safety)):
            for canvas in self.query(f"#{name}").results(Canvas):
                canvas.draw([*([] if low else [BLANK]), rule([heading(title)], width)])
        meanings = self._meanings(values)
        for name, (text, role) in meanings.items():
            self.query_one(f"#{name}-meaning", Static).update(content((text, role)))
        self.query("#answer-meaning").set(display="answer" in meanings)  # without one, its place is for long answers
        for canvas in self.query("#when").results(Canvas):
            when = self._when(values, width)
            canvas.draw([when] if when else [])
        is_ready = not self._refused(values) and self._refusal(values) == ""
        label = _label(self._question, self._lower_limit(values)).lower()
        caps = [Cap("esc", "cancel", "screen.dismiss"), Cap("↵", label, "screen.submit", locked=not is_ready)]
        if self._question.canary and self._question.many:
            other = "all at once" if self._is_canary(values) else CANARY
            caps.insert(0, Cap("ctrl+t", other, "screen.stage"))
        if (wider := self._question.wider) is not None:
            caps.insert(0, Cap("ctrl+a", f"{_label(wider)} {wider.of}".lower(), "screen.widen"))
        self.query_one("#caps", Caps).show((), caps)

    def _meanings(self, values: Mapping[str, str]) -> dict[str, Part]:
        """The meaning of each text, or the reason why it is wrong, with its role."""
        meanings: dict[str, Part] = {}
        if self._question.many and self._question.action.prompt == SPREAD:
            meanings["answer"] = self._spread(values)
        elif self._question.meaning is not None and self._question.action.prompt and not self._question.parts:
            meanings["answer"] = self._question.meaning(values["answer"])
        for part in self._question.parts:
            text = values[f"{PART}{part.name}"]
            is_same = text in ("", part.current)
            meanings[f"{PART}{part.name}"] = ("unchanged", "muted") if is_same else part.meaning(text)
        if self._question.many:
            meanings["limit"] = self._limit(values["limit"])
        meanings["reason"] = ("✓" if values["reason"] else "", "succeeded")
        word = self._required.word
        rest = len(word) - len(values["word"])
        if values["word"] == word:
            meanings["word"] = ("✓", "succeeded")
        elif word.startswith(values["word"]):
            meanings["word"] = (count_noun(rest, "character") + " to go" if values["word"] else "", "muted")
        else:
            meanings["word"] = ("✗ differs", "dead")
        return meanings

    def _seconds(self, values: Mapping[str, str]) -> float:
        return parse_spread(values.get("answer"))

    def _tasks(self, values: Mapping[str, str]) -> int | None:
        """Number of tasks to change; None if it is unknown."""
        limit, total = parse_limit(values.get("limit", "")), self._question.total
        return total if limit is None else min(limit, total) if total is not None else limit

    def _lower_limit(self, values: Mapping[str, str]) -> int | None:
        """A limit below the number of the tasks; None without one, or while it is wrong."""
        try:
            tasks = self._tasks(values)
        except InvalidInput:
            return None
        return None if tasks == self._question.total else tasks

    def _spread(self, values: Mapping[str, str]) -> Part:
        try:
            seconds = self._seconds(values)
        except InvalidInput:
            return ("✗ a duration such as 10m", "dead")
        try:
            number = None if self._is_canary(values) else self._tasks(values)
        except InvalidInput:  # its own input is wrong
            number = None
        if not seconds:
            return ("all at once; 10m spreads them", "muted")
        if self._is_canary(values):
            return (f"✗ {CANARY} waits for each stage", "dead")
        rate = "" if number is None else f"about {number / seconds:,.2g} per second, "
        return (f"✓ {rate}until {self._end(seconds)}", "muted")

    def _limit(self, text: str) -> Part:
        if self._question.canary and text.lower() == CANARY:
            return ("✓ in stages, until a task fails", "muted")
        try:
            limit = parse_limit(text)
        except InvalidInput:
            return ("✗ a number, or all", "dead")
        if limit is None:
            return ("1 tries one, canary in stages" if self._question.canary else "1 tries one first", "muted")
        return (f"✓ the newest {limit:,} only" if limit > 1 else "✓ the newest one only", "muted")

    def _when(self, values: Mapping[str, str], width: int) -> Row:
        """The moments of the change on a line; empty without a spread and stages."""
        room = max(10, width - ENTRY)
        label: Part = (f"{'When':{ENTRY}}", "muted")
        if self._is_canary(values):
            stages = [part for size in self._stages() for part in ((f"◆ {size} ", "accent"), ("┄┄ ", "line"))]
            end = "rest"
            bar = "━" * max(1, room - width_of(stages) - len(end) - 3)
            return [label, *stages, (f"{bar} ", "accent"), (end, "muted")]
        try:
            seconds = self._seconds(values) if self._question.action.prompt == SPREAD else 0.0
        except InvalidInput:
            return ()
        if not seconds:
            return ()
        end = f" done about {self._end(seconds)}"
        return [label, ("◆", "bold accent"), ("━" * max(1, room - len(end) - 1), "accent"), (end, "muted")]

    def _stages(self) -> list[int]:
        """The sizes of the stages of a canary before the rest."""
        from runner.operations.canary import STAGES  # imports all operations, which the first screen does not need

        before = [sum(STAGES[:place]) for place in range(1, len(STAGES) + 1)]
        return [size for size, tasks in zip(STAGES, before, strict=True) if tasks < self._question.count]

    def _end(self, seconds: float) -> str:
        return formatting.clock(self._now + timedelta(seconds=min(seconds, 1e8)), self._now, self._now.tzinfo or UTC)

    def _is_canary(self, values: Mapping[str, str]) -> bool:
        return self._question.canary and values.get("limit", "").lower() == CANARY

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Refuse the keys of the wider question and of the stages if there are none."""
        match action:
            case "widen":
                return self._question.wider is not None
            case "stage":
                return self._question.canary and self._question.many
        return super().check_action(action, parameters)

    def action_stage(self) -> None:
        """Go in stages, or change all tasks at once."""
        self.query_one("#limit", Input).value = ALL if self._is_canary(self._values()) else CANARY

    def action_widen(self) -> None:
        """Ask the wider question instead; it has its own number and its own word to type."""
        self.dismiss(self._question.wider)

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

    def action_submit(self) -> None:
        """Confirm the change, if the word and the reason are there."""
        values = self._values()
        if refusal := self._refusal(values):
            self._reject(refusal)
        else:
            self._confirm(values)

    def _refused(self, values: Mapping[str, str]) -> str:
        """The first wrong text, with its label and the reason; empty if none is."""
        labels = {"answer": self._question.action.prompt, "limit": "Limit"}
        labels |= {f"{PART}{part.name}": part.label for part in self._question.parts}
        for name, (text, role) in self._meanings(values).items():
            if role == "dead" and name in labels:
                return f"{labels[name]} {line(values[name])!r} is refused: {text.removeprefix('✗ ')}"
        return ""

    def _refusal(self, values: Mapping[str, str]) -> str:
        if values["word"] != self._required.word:
            return f"Nothing was changed: type {line(self._required.word)} to confirm"
        if self._required.reason and not values["reason"]:
            return "Nothing was changed: enter a reason"
        if self._question.parts and not values["answer"]:
            return "Nothing was changed: every value is the one in force"
        return ""

    def _values(self) -> dict[str, str]:
        values = typed_texts(self)
        if parts := self._question.parts:
            texts = [(part, values[f"{PART}{part.name}"]) for part in parts]
            edited = [f"{part.name}={''.join(text.split())}" for part, text in texts if text not in ("", part.current)]
            values["answer"] = " ".join(edited)
        return values

    def _confirmation(self, values: Mapping[str, str]) -> Confirmation:
        limit, answer = values.get("limit", ""), values.get("answer", "")
        is_canary = self._is_canary(values)
        if is_canary and answer not in ("", "0", "0s"):
            raise InvalidInput(why=f"{CANARY} waits for each stage; leave out the spread, or the {CANARY}")
        return Confirmation(answer, values["reason"] or None, None if is_canary else parse_limit(limit), is_canary)

    def _confirm(self, values: Mapping[str, str]) -> None:
        try:
            confirmation = self._confirmation(values)
        except InvalidInput as error:
            self._reject(line(str(error)))
            return
        if refused := self._refused(values):
            self._reject(f"Nothing was changed: {refused}")
        elif self._question.recheck is None or time.monotonic() - self._fresh_at < FRESH:
            self.dismiss(confirmation)
        else:
            self._reject("Comparing with the database; escape cancels", "muted")
            self.run_worker(self._compare(values, self._question.recheck()), group="compare", exclusive=True)

    async def _compare(self, values: Mapping[str, str], recheck: Coroutine[Any, Any, PlanChanges]) -> None:
        try:
            self.post_message(self.Compared(values, await recheck))
        except RunnerError as error:
            self.post_message(Notice(str(error), bad=True))

    @on(Notice)
    def _show_error(self, message: Notice) -> None:
        message.stop()  # The dialog shows it, so the console need not.
        self._reject(f"Nothing was changed. {line(message.text)}")

    @on(Compared)
    def _show_changes(self, message: Compared) -> None:
        """Close if the rows have no risk that the operator has not seen, and the answers are as confirmed; else ask."""
        message.stop()
        (text, risks), known = message.changes, self._known
        is_known = known is not None and all(number <= known.get(risk, 0) for risk, number in risks.items())
        if (is_known or not text) and message.values == self._values():
            self.dismiss(self._confirmation(message.values))
            return
        self._fresh_at, self._known = time.monotonic(), risks if text else known
        why = "Nothing was changed yet: an answer has changed since. Enter again confirms the answers, escape cancels"
        if text:
            why = f"Nothing was changed yet. Since this dialog opened: {line(text, LONGEST)}."
            why = f"{why} Enter again continues, escape cancels"
        self._reject(why, "bold retrying")

    def _reject(self, why: str, style: str = "bold dead") -> None:
        objection = self.query_one("#objection", Static)
        objection.update(content((why, style)))
        self.call_after_refresh(objection.scroll_visible, animate=False)


def _label(question: Question, limit: int | None = None) -> str:
    """The change with its number, and the limit of the tasks among them: `Retry 300 of 914 tasks`."""
    label = (question.title or question.action.label).rstrip("?")
    return (
        label if limit is None else f"{question.action.label} {limit:,} of{label.removeprefix(question.action.label)}"
    )


def entry(label: str, field: TextLine) -> ComposeResult:
    """An input with its label and its meaning."""
    with Horizontal(classes="entry with-meaning"):
        yield Label(label, markup=False)
        yield field
        yield Static("", id=f"{field.id}-meaning", classes="meaning")


def _entry(name: str, label: str, value: str = "", hint: str = "") -> ComposeResult:
    yield from entry(label, TextLine(value, placeholder=hint, id=name, compact=True, max_length=1000))
