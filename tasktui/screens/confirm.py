"""ConfirmScreen: what will be done, before it is done; it is said yes to by typing what its size demands."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from runner.errors import InvalidInput
from runner.people import cells
from runner.policy.consent import Demand
from runner.store.intervene import LAST
from tasktui.act.actions import Action, Plan
from tasktui.act.consent import ALL, Consent, amount_of
from tasktui.act.copying import Scripted, copy
from tasktui.draw.render import block, content, line, lines, state
from tasktui.widgets.text_line import TextLine
from tasktui.widgets.typed import IN_TURN

MOST_GROUPS = 6
"""States and queues that are listed, so that the question fits a small screen."""

Spoken = Callable[[Consent], str | None]


class ConfirmScreen(ModalScreen[Consent | None]):
    """A question in front of the screen; escape says no.

    Args:
        action: what will be done.
        about: what it will be done to.
        demanded: what has to be typed.
        spoken: the command line that does the same, for what was answered so far; None when there is none.
        scripted: writes the SQL that does the same; None when there is none.
        many: it is done to several tasks, so that it can be tried on some of them first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *IN_TURN,
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+y", "copy", "Copy as a command line; again: as SQL", priority=True),
    ]

    def __init__(
        self,
        action: Action,
        about: Sequence[Content],
        demanded: Demand,
        spoken: Spoken,
        scripted: Scripted | None = None,
        *,
        many: bool = False,
    ) -> None:
        super().__init__()
        self._scripted = scripted
        self._spoken = spoken
        self._many = many
        self._action = action
        self._about = about
        self._demanded = demanded

    def compose(self) -> ComposeResult:
        """Put the question and the lines for its answers below each other."""
        with VerticalScroll(classes="dialog") as dialog:
            dialog.can_focus = False
            yield Static(lines(self._about), classes="about")
            action, word = self._action, line(self._demanded.word)
            if action.asks:
                yield from _entry("answer", action.asks, action.example, action.example)
            if self._many:
                yield from _entry("amount", "How many", ALL, f"{ALL}, or 1 to try it on one first")
            yield from _entry("reason", "Reason", hint="needed" if self._demanded.reason else "may be left empty")
            yield from _entry("word", f"Type {word}")
            yield Static("", id="objection")
            sql = ", again: as SQL" if self._scripted else ""
            yield Static(
                content((f"{word} and enter does it, escape leaves all as it is, ctrl+y copies it{sql}", "dim"))
            )

    def on_mount(self) -> None:
        """Begin at the top where there is more to say than the word: what stands above the cursor is overlooked."""
        more = self._action.needed or self._demanded.reason or self._many
        (self.query(Input).first() if more else self.query_one("#word")).focus()

    def action_cancel(self) -> None:
        """Say no."""
        self.dismiss(None)

    def action_copy(self) -> None:
        """Copy the command line that does the same, and show it; again: the SQL."""
        given = self._given()
        try:
            amount = amount_of(given.get("amount", ""))
            consent = Consent(given.get("answer", ""), given["reason"] or None, amount)
            text = self._spoken(consent)
        except InvalidInput as error:
            self._object(line(str(error)))
            return
        copy(self, text, partial(self._scripted, consent) if self._scripted else None)

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show what was copied, or why nothing was."""
        self.query_one("#objection", Static).update(content((block(text), "bold red" if bad else "")))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        if event.input.id != "word":
            self.focus_next()
            return
        given = self._given()
        if given["word"] != self._demanded.word:
            self._object(f"Nothing was done: {line(self._demanded.word)} was not typed")
        elif self._demanded.reason and not given["reason"]:
            self._object("Nothing was done: a reason is needed")
        else:
            self._agree(given.get("answer", ""), given["reason"], given.get("amount", ""))

    def _given(self) -> dict[str, str]:
        return {field.id or "": field.value.strip() for field in self.query(Input)}

    def _agree(self, answer: str, reason: str, amount: str) -> None:
        try:
            self.dismiss(Consent(answer, reason or None, amount_of(amount)))
        except InvalidInput as error:
            self._object(line(str(error)))

    def _object(self, why: str) -> None:
        self.query_one("#objection", Static).update(content((why, "bold red")))


def _entry(name: str, label: str, value: str = "", hint: str = "") -> ComposeResult:
    with Horizontal(classes="entry"):
        yield Label(label, markup=False)
        yield TextLine(value, placeholder=hint, id=name, compact=True, max_length=1000)


def told(plan: Plan, place: str) -> list[Content]:
    """What a plan will do, in lines."""
    count, groups = plan.eligible, list(plan.groups.items())
    chosen = sum(plan.groups.values())
    of = "" if chosen == count.number and not count.more else f" of {chosen:,}{'+' if count.more else ''} chosen"
    parts = [content((f"{plan.action.label}: {count.of('task')}{of}, in {line(place)}", "bold"))]
    for (shown, queue), number in groups[:MOST_GROUPS]:
        cell = state(shown)
        parts.append(content(f"  {number:>6,}  ", (f"{cell.text:12}", cell.style), f" {line(queue, 40)}"))
    if len(groups) > MOST_GROUPS:
        rest = sum(number for _, number in groups[MOST_GROUPS:])
        parts.append(content(f"  {rest:>6,}  in other states and queues"))
    parts += [content((f"  {number:,} left alone: {line(why)}", "yellow")) for why, number in plan.skipped.items()]
    if plan.last:
        parts.append(content((f"  {plan.last:,} {LAST}", "yellow")))
    for task in plan.samples:
        texts = (str(task.id), line(task.handler, 20), line(task.key, 20), line(cells.reason(task.error) or None, 40))
        parts.append(content((f"  {'  '.join(texts)}", "dim")))
    return parts
