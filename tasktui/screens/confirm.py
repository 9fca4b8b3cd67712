"""ConfirmScreen: what will be done, before it is done; it is said yes to by typing what its size demands."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from runner import cells
from tasktui.actions import Action, Demand, Plan
from tasktui.render import content, line, lines, state


class Consent(NamedTuple):
    """The answers of an operator who said yes."""

    answer: str
    reason: str | None


class ConfirmScreen(ModalScreen[Consent | None]):
    """A question in front of the screen; escape says no.

    Args:
        action: what will be done.
        about: what it will be done to.
        demanded: what has to be typed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, action: Action, about: Sequence[Content], demanded: Demand) -> None:
        super().__init__()
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
            yield from _entry("reason", "Reason", hint="needed" if self._demanded.reason else "may be left empty")
            yield from _entry("word", f"Type {word}")
            yield Static("", id="objection")
            yield Static(content((f"{word} and enter does it, escape leaves everything as it is", "dim")))

    def on_mount(self) -> None:
        """Begin where the first answer is needed."""
        self.query_one("#answer" if self._action.needed else "#reason" if self._demanded.reason else "#word").focus()

    def action_cancel(self) -> None:
        """Say no."""
        self.dismiss(None)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        if event.input.id != "word":
            self.focus_next()
            return
        given = {field.id: field.value.strip() for field in self.query(Input)}
        if given["word"] != self._demanded.word:
            self._object(f"Nothing was done: {line(self._demanded.word)} was not typed")
        elif self._demanded.reason and not given["reason"]:
            self._object("Nothing was done: a reason is needed")
        else:
            self.dismiss(Consent(given.get("answer", ""), given["reason"] or None))

    def _object(self, why: str) -> None:
        self.query_one("#objection", Static).update(content((why, "bold red")))


def _entry(name: str, label: str, value: str = "", hint: str = "") -> ComposeResult:
    with Horizontal(classes="entry"):
        yield Label(label, markup=False)
        yield Input(value, placeholder=hint, id=name, compact=True, max_length=1000)


def told(plan: Plan, place: str) -> list[Content]:
    """What a plan will do, in lines."""
    count = len(plan.targets)
    parts = [content((f"{plan.action.label}: {count:,} task{'' if count == 1 else 's'} of {line(place)}", "bold"))]
    for (shown, queue), number in plan.groups.items():
        cell = state(shown)
        parts.append(content(f"  {number:>6,}  ", (f"{cell.text:12}", cell.style), f" {line(queue, 40)}"))
    parts += [content((f"  {number:,} left alone: {line(why)}", "yellow")) for why, number in plan.skipped.items()]
    for task in plan.samples:
        texts = (str(task.id), line(task.handler, 20), line(task.key, 20), line(cells.reason(task.error) or None, 40))
        parts.append(content((f"  {'  '.join(texts)}", "dim")))
    return parts
