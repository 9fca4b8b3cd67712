"""Form: a dialog with several inputs, and the form for the new values of many tasks."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from textual.content import Content

from runner.filter.parse import Filter
from runner.model.duration import parse_duration
from tasktui.actions.action import Action
from tasktui.actions.plan import ActionPlan
from tasktui.render.render import content, line
from tasktui.session.session import Session

if TYPE_CHECKING:  # They import modules that the first screen does not need.
    from runner.operations.edit_values import Changes
    from runner.queries.task_list.row import TaskRow
    from tasktui.actions.question import Dialog, Question
    from tasktui.messages import Notice


class FormField(NamedTuple):
    """An entry of a form.

    Args:
        name: the id of the input.
        label: the label beside the input.
        value: the initial text.
        hint: placeholder of an empty input.
        lock_reason: reason why the entry is read-only; empty if it can be edited.
        is_json: True if an editor shows the text as JSON.
    """

    name: str
    label: str
    value: str = ""
    hint: str = ""
    lock_reason: str = ""
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """A form to fill in.

    Args:
        title: the title, sanitized.
        about: lines above the entries.
        fields: the entries.
        preview: describes the typed texts, by name of the entry, or raises a RunnerError.
        submit: returns the next dialog for the typed texts, or raises a RunnerError, which the form shows.
        errors: the reasons why typed texts are refused, by name of the entry; the form shows them below the entries.
    """

    title: str
    about: Sequence[Content]
    fields: Sequence[FormField]
    preview: Callable[[Mapping[str, str]], Sequence[str]]
    submit: Callable[[Mapping[str, str]], Coroutine[Any, Any, "Dialog"]]
    errors: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda _typed: {}


BULK_FIELDS = (
    FormField("run_at", "Run at", hint="unchanged; now, +15m, 14:30"),
    FormField("spread", "Spread over", hint="after run at: 10m"),
    FormField("max_attempts", "Max attempts", hint="unchanged; a number, or none for the handler's"),
    FormField("priority", "Priority", hint="unchanged; 1 to 9, 9 runs first"),
    FormField("timeout", "Timeout", hint="unchanged; 30s, or none for the handler's"),
)

Ask = Callable[[ActionPlan, Session, Sequence[str]], "Question | Notice"]
"""Returns the confirmation of a plan, with the new values in words."""


def bulk_form(
    action: Action, session: Session, selected: "Filter | Sequence[TaskRow]", of: str, ask: Ask
) -> Coroutine[Any, Any, Form]:
    """Build the form for new values of many tasks.

    Args:
        action: the edit.
        session: the operator's session.
        selected: the filter of the tasks, or the tasks as they are on the screen.
        of: the tasks in words.
        ask: returns the confirmation of a plan.
    """
    return _bulk_form(action, session, selected, of, ask)


async def _bulk_form(
    action: Action, session: Session, selected: "Filter | Sequence[TaskRow]", of: str, ask: Ask
) -> Form:
    from runner.db.transaction import clock

    at = await session.read(clock)
    zone = session.zone

    def read(typed: Mapping[str, str]) -> "tuple[Changes, float, dict[str, Any]]":
        from runner.operations.edit_values import Changes, check_bulk
        from tasktui.actions.edit_form import parse_value

        texts = {name: text for name, text in typed.items() if text and name != "spread"}
        changes = Changes(**{name: parse_value(name, text, at, zone) for name, text in texts.items()})
        spread = parse_duration(typed["spread"]).total_seconds() if typed["spread"] else 0.0
        return changes, spread, check_bulk(changes, spread)

    def preview(typed: Mapping[str, str]) -> Sequence[str]:
        from runner.text import formatting

        if not any(typed.values()):
            return ["no changes yet"]
        _, spread, values = read(typed)
        lines = []
        for name, value in values.items():
            text = formatting.exact(value, at, zone) if name == "run_at" else "none" if value is None else f"{value:g}"
            more = f", spread over {typed['spread']}" if spread and name == "run_at" else ""
            lines.append(f"{name.replace('_', ' ')}: {text}{more}")
        return lines

    async def submit(typed: Mapping[str, str]) -> "Dialog":
        from runner.operations.edit import edit_all
        from tasktui.actions import perform
        from tasktui.actions.plan import plan

        changes, spread, values = read(typed)
        words = [word for name, text in typed.items() if text for word in (f"--{name.replace('_', '-')}", text)]
        edit = replace(
            action,
            operation=lambda by, _answer: partial(edit_all, changes=changes, by=by, spread=spread),
            options=lambda _answer: words,
        )
        if isinstance(selected, Filter):
            return ask(await perform.preview(session, edit, selected, values), session, preview(typed))
        return ask(plan(edit, selected, values), session, preview(typed))

    about = [content((f"New values for {line(of)}. Empty entries stay as they are.", "bold strong"))]
    return Form(f"Edit {line(of)}", about, BULK_FIELDS, preview, submit)
