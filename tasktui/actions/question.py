"""The dialog of an action: a change to confirm, or a form to fill in."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, Union

from textual.content import Content

from runner.operations.results import Result
from tasktui.actions.action import ALL, Action, Confirmation, Targets
from tasktui.actions.as_command import ConsentSql
from tasktui.actions.plan import PlanChanges
from tasktui.messages import Notice, Tone
from tasktui.render.rows import Part, Row
from tasktui.session.session import Job, Session

if TYPE_CHECKING:
    from runner.queries.task.detail import TaskDetail


MOST_SKIPPED = 8
"""Maximum number of skipped tasks to list in a notice."""


class BulkChange(NamedTuple):
    """A confirmed change that shows its progress and can be stopped.

    Args:
        total: number of tasks to change; None if counting stopped at the cap.
        apply: applies the change and reports its progress to the job.
    """

    label: str
    total: int | None
    apply: Callable[[Job], Awaitable[Result]]


Change: TypeAlias = Callable[[Confirmation], Coroutine[Any, Any, Notice] | BulkChange]
"""Returns the change for the answers of the operator."""


class Effect(Protocol):
    """Draws the effect of a change."""

    def __call__(self, width: int, answer: str, *, low: bool) -> Sequence[Row]:
        """Return rows of at most `width` cells for the answer typed so far; few of them if `low`."""
        ...


class AnswerPart(NamedTuple):
    """One of several inputs that make up the answer to a prompt: `concurrency=5 rate=none`.

    Args:
        name: its word in the answer.
        current: its value in force, as text; the answer leaves out an input that keeps it.
        value: initial text.
        meaning: returns the meaning of a text and its role, `dead` if it is refused.
    """

    name: str
    label: str
    current: str
    value: str
    hint: str
    meaning: Callable[[str], Part]


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
        limit: initial text of the limit.
        effect: draws its effect in a width for the typed answer, with few rows if its argument `low` is set.
        parts: the inputs that make up the answer, in place of the one of the prompt; empty for that one.
        subject: the thing that it changes, after the title: queue mail; sanitized.
        title: the question; empty for the label of the action.
        of: its tasks in words, after their number in the title.
        total: number of tasks to spread and to limit; None if counting stopped at the cap.
        reason: initial text of the reason.
        meaning: returns the meaning of the typed answer and its role, `dead` if it is refused; None for none.
        recheck: describes how its rows have changed since; None if it has no rows.
        wider: the same question about more tasks, as a second choice.
    """

    action: Action
    about: Sequence[Content]
    count: int
    words: Callable[[Confirmation], Sequence[object]]
    change: Change
    sql: ConsentSql | None = None
    many: bool = False
    canary: bool = False
    limit: str = ALL
    effect: "Effect | None" = None
    parts: Sequence[AnswerPart] = ()
    subject: str = ""
    title: str = ""
    of: str = ""
    total: int | None = None
    reason: str = ""
    meaning: Callable[[str], Part] | None = None
    recheck: Callable[[], Coroutine[Any, Any, PlanChanges]] | None = None
    wider: "Question | None" = None


Dialog: TypeAlias = Union[Question, "Form", "TaskDetail", Notice]
"""A confirmation, a form, a task for the edit form, or the reason why the action is impossible."""

Ask: TypeAlias = Callable[[Action, Session, Targets], Dialog | Coroutine[Any, Any, Dialog] | None]
"""Returns the dialog of an action, with the equivalent command line and SQL.

It captures the targets when it is called. It returns a coroutine if the dialog needs data of the database, and None
if nothing is selected.
"""


def result_notice(label: str, result: Result, undo: str = "8 Z undoes") -> Notice:
    """Describe the result of an operation, with the first skipped tasks, and how to undo it.

    Args:
        undo: how to undo it; empty for nothing about it.
    """
    is_offered = undo and result.changed and not label.startswith("Undo")
    skipped, undo = result.reasons(), f"; {undo}" if is_offered else ""
    more = [f"and {len(skipped) - MOST_SKIPPED:,} more"] if len(skipped) > MOST_SKIPPED else []
    tone = Tone.of(changed=len(result.changed), unchanged=len(skipped))
    return Notice("\n".join([f"{label}: {result}{undo}", *skipped[:MOST_SKIPPED], *more]), tone=tone)


class FormField(NamedTuple):
    """An entry of a form.

    Args:
        name: the id of the input.
        label: the label beside the input.
        value: the initial text.
        hint: placeholder of an empty input.
        lock_reason: reason why the entry is read-only; empty if it can be edited.
        is_json: True if an editor shows the text as JSON.
        is_secret: True to show a mask in place of the text.
    """

    name: str
    label: str
    value: str = ""
    hint: str = ""
    lock_reason: str = ""
    is_json: bool = False
    is_secret: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """A form to fill in.

    Args:
        title: the title, sanitized.
        about: lines above the entries.
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
