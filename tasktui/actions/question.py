"""Question and Form: a change that waits for confirmation, and a dialog with several inputs."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from textual.content import Content

from runner.filter.parse import Filter
from runner.model.duration import parse_duration
from runner.operations.results import Result
from tasktui.actions.action import Action, Confirmation
from tasktui.actions.as_command import ConsentSql
from tasktui.actions.plan import ActionPlan
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Job, Session

if TYPE_CHECKING:
    from runner.operations.edit_values import Changes
    from runner.queries.task.detail import TaskDetail
    from runner.queries.task_list.row import TaskRow

MOST_SKIPPED = 8
"""Maximum number of skipped tasks to list in a notice."""


class BulkChange(NamedTuple):
    """A confirmed change that shows its progress and can be stopped.

    Args:
        label: name of the change.
        total: number of tasks to change; None if counting stopped at the cap.
        apply: applies the change and reports its progress to the job.
    """

    label: str
    total: int | None
    apply: Callable[[Job], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Question:
    """A change to confirm.

    Args:
        action: the action; its prompt is an input of the dialog.
        about: description of the change.
        count: number of things that it changes.
        words: returns the words after `runner` of the equivalent command.
        change: returns the change for the answers: a coroutine, or a bulk change.
        sql: returns the equivalent SQL; None if there is none.
        many: True to offer a limit on the number of tasks.
        canary: True to offer stages as well.
        samples: some of the things that it changes; a low screen shows the first one.
        reason: initial text of the reason.
    """

    action: Action
    about: Sequence[Content]
    count: int
    words: Callable[[Confirmation], Sequence[object]]
    change: Callable[[Confirmation], Coroutine[Any, Any, Notice] | BulkChange]
    sql: ConsentSql | None = None
    many: bool = False
    canary: bool = False
    samples: Sequence[Content] = ()
    reason: str = ""


Dialog: TypeAlias = Union[Question, "Form", "TaskDetail", Notice]
"""A confirmation, a form, a task for the edit form, or the reason why the action is impossible."""


def result_notice(label: str, result: Result) -> Notice:
    """Describe the result of an operation, with the first skipped tasks."""
    skipped = result.reasons()
    more = [f"and {len(skipped) - MOST_SKIPPED:,} more"] if len(skipped) > MOST_SKIPPED else []
    return Notice("\n".join([f"{label}: {result}", *skipped[:MOST_SKIPPED], *more]), bad=bool(skipped))


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
