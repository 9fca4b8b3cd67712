"""Action: the description of a change that an operator can make, and the answers that confirm it."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from runner.errors import InvalidInput
from runner.operations.results import Actor

if TYPE_CHECKING:
    from runner.operations.bulk import Operation
    from tasktui.actions.question import Dialog
    from tasktui.actions.targets import Targets
    from tasktui.session.session import Session

ALL = "all"
CANARY = "canary"
"""Limits in words: all tasks, or stages of 1, 10, 100 and the rest."""


class ActionTarget(Enum):
    """The kind of thing that an action applies to."""

    TASKS = "tasks"
    TASK = "task"
    QUEUE = "queue"
    HANDLER = "handler"
    RUNNER = "runner"
    SCHEDULE = "schedule"
    ENTRY = "change of a task"

    @property
    def word(self) -> str:
        """The target in words."""
        return self.value


Ask: TypeAlias = "Callable[[Action, Session, Targets], Dialog | Coroutine[Any, Any, Dialog] | None]"
"""Returns the dialog of an action.

It captures the targets when it is called. It returns a coroutine if the dialog needs data of the database, and None
if there is no target.
"""


def no_operation(_by: Actor, _answer: str) -> "Operation":
    """The operation of an action that does not apply to tasks."""
    raise InvalidInput(why="this action does not apply to several tasks")


def no_options(_answer: str) -> Sequence[object]:
    """The command-line options of an action without any."""
    return ()


@dataclass(frozen=True, slots=True)
class Action:
    """A change that an operator can make.

    Args:
        name: the command on the command line.
        key: an upper-case letter.
        label: name in the footer and in dialogs.
        target: the kind of thing that it applies to.
        ask: returns its dialog, with the equivalent command line and SQL.
        prompt: label of its own input in the dialog; empty for none.
        default: initial value of that input.
        required: True if the default is only an example, so that the dialog starts at this input.
        in_footer: False to list the key in the help only.
        verb: a key of eligibility.ACCEPTED_STATES; empty for actions that do not depend on the state of a task.
        operation: builds the operation on tasks from its author and the answer to the prompt.
        options: the command-line options for the answer to the prompt.
    """

    name: str
    key: str
    label: str
    target: ActionTarget
    ask: Ask
    prompt: str = ""
    default: str = ""
    required: bool = False
    in_footer: bool = True
    verb: str = ""
    operation: "Callable[[Actor, str], Operation]" = no_operation
    options: Callable[[str], Sequence[object]] = no_options

    def without_prompt(self) -> "Action":
        """Return the action without an input of its own."""
        return replace(self, prompt="", default="", required=False)


class Confirmation(NamedTuple):
    """The answers of an operator who confirmed an action.

    Args:
        answer: answer to the prompt of the action; empty if it has none.
        reason: reason for the audit; None if omitted.
        limit: maximum number of tasks to change; None for all.
        canary: apply the action in stages, and stop at the first failure.
    """

    answer: str = ""
    reason: str | None = None
    limit: int | None = None
    canary: bool = False


def parse_limit(typed: str) -> int | None:
    """Parse the maximum number of tasks to change; None for all.

    Raises:
        InvalidInput: the text is neither a positive integer nor `all`.
    """
    text = typed.replace(",", "").strip().lower()
    if text in ("", ALL):
        return None
    if not text.isdecimal() or not 1 <= int(text[:12]) < 10**9:
        raise InvalidInput(why=f"{typed[:20]!r} is not a number of tasks; enter {ALL}, or 1 to try one task first")
    return int(text)
