"""Question and Form: a change that waits for confirmation, and a dialog with several inputs."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, Union

from textual.content import Content

from runner.operations.results import Result
from tasktui.actions.action import Action, Confirmation
from tasktui.actions.as_command import ConsentSql
from tasktui.messages import Notice
from tasktui.render.rows import Row
from tasktui.session.session import Job

if TYPE_CHECKING:
    from runner.queries.task.detail import TaskDetail

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


class Effect(Protocol):
    """Draws the effect of a change."""

    def __call__(self, width: int, *, low: bool) -> Sequence[Row]:
        """Return rows of at most `width` cells; few of them if `low`."""
        ...


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
        effect: draws its effect in a width, with few rows if its argument `low` is set.
        title: the question; empty for the label of the action.
        total: number of tasks to spread and to limit; None if counting stopped at the cap.
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
    effect: "Effect | None" = None
    title: str = ""
    total: int | None = None
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
