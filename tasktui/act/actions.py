"""What an operator can do: every action with its key in one table, and what is asked before it is done."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from runner.errors import InvalidInput
from runner.people.filters import Filter
from runner.people.times import parse_duration
from runner.policy.consent import MANY
from runner.store import intervene
from runner.store.intervene import By, Target
from runner.store.observe import Count, TaskRow
from runner.task import Shown

if TYPE_CHECKING:
    from runner.store.intervene import Operation, Preview  # with all that a change needs, and the first screen does not

SAMPLES = 5

EVERY = "all"
"""What is typed for all that a task waits for."""

MOST_DIGITS = 19
"""Digits of a number that both databases hold."""


class Subject(Enum):
    """What an action is done to."""

    TASKS = "tasks"
    TASK = "task"
    QUEUE = "queue"
    HANDLER = "handler"
    RUNNER = "runner"
    ENTRY = "change of a task"

    @property
    def word(self) -> str:
        """As people call it."""
        return self.value


@dataclass(frozen=True, slots=True)
class Action:
    """Something that changes the database.

    Args:
        name: as the command line says it.
        key: an upper-case letter.
        verb: a key of intervene.VERBS; empty for what is not done to tasks by their state.
        label: below the screen.
        subject: what it is done to.
        asks: what it needs to know besides; empty for nothing.
        example: of that, and what is meant when nothing else is typed.
        needed: it means little without an answer, so that is asked first.
        shown: below the screen; others are listed by the help.
    """

    name: str
    key: str
    verb: str
    label: str
    subject: Subject
    asks: str = ""
    example: str = ""
    needed: bool = False
    shown: bool = True

    def plain(self) -> "Action":
        """The same, asking for nothing."""
        return replace(self, asks="", example="", needed=False)


ACTIONS = {
    action.name: action
    for action in (
        Action("retry", "R", "retry_now", "Retry", Subject.TASKS, "Spread over", "0s"),
        Action("terminate", "T", "terminate", "Terminate", Subject.TASKS),
        Action("delay", "D", "delay", "Delay", Subject.TASKS, "Delay by", "10m", needed=True),
        Action("unblock", "U", "unblock", "Unblock", Subject.TASKS, "Edge", EVERY, shown=False),
        Action("edit", "E", "edit", "Edit", Subject.TASK),
        Action("pause", "P", "", "Pause", Subject.QUEUE, "For", "30m", needed=True),
        Action("pause --handler", "H", "", "Pause handler", Subject.HANDLER, "For", "30m", needed=True, shown=False),
        Action("drain", "L", "", "Drain", Subject.RUNNER),
        Action("resize", "S", "", "Resize", Subject.RUNNER, "Run at once", "slots=100 threads=10", needed=True),
        Action("undo", "Z", "", "Undo", Subject.ENTRY),
        Action("undo --batch", "B", "", "Undo together", Subject.ENTRY, shown=False),
    )
}
"""Every action by its name; keys, footers, help and the guard of read-only all follow from it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an action will be done to, as the operator sees it before saying yes.

    Args:
        action: which.
        eligible: how many tasks it will be done to; more when there were too many to count.
        groups: how many of the chosen ones are in each state and queue.
        skipped: how many of the chosen ones it cannot be done to, by the reason.
        samples: the first of those that it will be done to.
        chosen: the tasks that it will be done to, each with the version that was seen; or
        wanted: a filter that lets them through.
        last: how many of those that it will be done to have one attempt left.
    """

    action: Action
    eligible: Count
    groups: Mapping[tuple[Shown, str], int]
    skipped: Mapping[str, int]
    samples: tuple[TaskRow, ...]
    chosen: tuple[Target, ...] = ()
    wanted: Filter | None = None
    last: int = 0

    @property
    def weight(self) -> int:
        """How many tasks it will be done to, for judging how much has to be said before."""
        return MANY + 1 if self.eligible.more else self.eligible.number


def plan(action: Action, chosen: Sequence[TaskRow]) -> Plan:
    """Sort out to which of the chosen tasks an action applies; the store asks the same question when it acts."""
    objections = {task.id: intervene.objection(action.verb, task) for task in chosen}
    eligible = [task for task in chosen if objections[task.id] is None]
    return Plan(
        action=action,
        eligible=Count(len(eligible)),
        groups=dict(Counter((task.shown, task.queue) for task in chosen).most_common()),
        skipped=dict(Counter(why for why in objections.values() if why).most_common()),
        samples=tuple(eligible[:SAMPLES]),
        chosen=tuple(Target(task.id, task.version) for task in eligible),
        last=sum(intervene.is_last(action.verb, task) for task in eligible),
    )


def plan_of(action: Action, wanted: Filter, seen: "Preview") -> Plan:
    """What an action will be done to when it is done to all that a filter lets through, as the store previewed it."""
    return Plan(
        action=action,
        eligible=Count(seen.eligible, seen.total.more),
        groups=seen.groups,
        skipped=seen.skipped,
        samples=tuple(seen.samples),
        wanted=intervene.bounded(wanted, seen.newest),
        last=seen.last,
    )


def operation(action: Action, by: By, answer: str = "") -> "Operation":
    """What to do to tasks, for a store that gives the transaction and the targets.

    Args:
        action: done to tasks.
        by: who does it.
        answer: to what the action asks.

    Raises:
        InvalidDuration: the answer is no length of time.
        InvalidInput: the action is not done to several tasks.
    """
    match action.name:
        case "retry":
            over = parse_duration(answer).total_seconds() if answer else 0.0
            return partial(intervene.retry_now, by=by, over=over)
        case "terminate":
            return partial(intervene.terminate, by=by)
        case "unblock":
            return partial(intervene.unblock, by=by, edge=_edge(answer))
        case "delay":
            return partial(intervene.delay, seconds=parse_duration(answer).total_seconds(), by=by)
    raise InvalidInput(why=f"{action.name} is not done to tasks at once")


def _edge(answer: str) -> int | None:
    """The number of an edge; None for all of them."""
    if answer in ("", EVERY):
        return None
    if not (answer.isdecimal() and len(answer) < MOST_DIGITS):
        raise InvalidInput(why=f"an edge is a number that stands before what a task waits for, or {EVERY}")
    return int(answer)
