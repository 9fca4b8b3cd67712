"""ActionPlan: the preview of an action on tasks before it runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from textual.content import Content

from runner.filter.parse import Filter
from runner.model.task import Shown
from runner.operations.results import Target
from runner.operations.targets import LAST, MANY, is_last, objection
from runner.queries.counting import Count
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from tasktui.actions.action import Action
from tasktui.render.plot import gauge
from tasktui.render.render import brief, content, fitted, line, state

if TYPE_CHECKING:
    from runner.operations.preview import Preview  # import modules that the first screen does not need


SAMPLES = 5

NO_VALUES: Mapping[str, object] = MappingProxyType({})

MOST_GROUPS = 6
"""Maximum number of states and queues to list, so that the dialog fits a small screen."""


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """A preview of an action on tasks; the operator confirms it.

    Args:
        action: the action.
        eligible: number of tasks that it will change; `more` is set if counting stopped at the cap.
        groups: number of selected tasks by state and queue.
        skipped: number of selected tasks that it does not apply to, by reason.
        samples: the first tasks that it will change.
        targets: the tasks to change, each with the version on the screen; empty if `task_filter` is set.
        task_filter: a filter for the tasks to change; None if `targets` lists them.
        last: number of eligible tasks with one attempt left.
    """

    action: Action
    eligible: Count
    groups: Mapping[tuple[Shown, str], int]
    skipped: Mapping[str, int]
    samples: tuple[TaskRow, ...]
    targets: tuple[Target, ...] = ()
    task_filter: Filter | None = None
    last: int = 0

    @property
    def weight(self) -> int:
        """Number of tasks to change; it decides how much the operator must type to confirm."""
        return MANY + 1 if self.eligible.more else self.eligible.number


def plan(action: Action, tasks: Sequence[TaskRow], values: Mapping[str, object] = NO_VALUES) -> ActionPlan:
    """Plan an action on selected tasks, with the same eligibility rules that the store applies.

    Args:
        action: the action.
        tasks: the tasks as they are on the screen.
        values: the validated values of an edit.
    """
    reasons = {task.id: objection(action.verb, task) for task in tasks}
    if values:
        from runner.operations.edit_values import edit_objection

        reasons |= {task.id: edit_objection(values, task) for task in tasks if reasons[task.id] is None}
    eligible = [task for task in tasks if reasons[task.id] is None]
    return ActionPlan(
        action=action,
        eligible=Count(len(eligible)),
        groups=dict(Counter((task.shown, task.queue) for task in tasks).most_common()),
        skipped=dict(Counter(why for why in reasons.values() if why).most_common()),
        samples=tuple(eligible[:SAMPLES]),
        targets=tuple(Target(task.id, task.version) for task in eligible),
        last=sum(is_last(action.verb, task) for task in eligible),
    )


def plan_for_filter(action: Action, task_filter: Filter, preview: "Preview") -> ActionPlan:
    """Plan an action on the tasks that match a filter, from the preview of the store."""
    from runner.operations.preview import bounded

    return ActionPlan(
        action=action,
        eligible=Count(preview.eligible, preview.total.more),
        groups=preview.groups,
        skipped=preview.skipped,
        samples=tuple(preview.samples),
        task_filter=bounded(task_filter, preview.newest),
        last=preview.last,
    )


BAR = 60
"""Cells of the bar of states."""


def plan_lines(plan: ActionPlan, database: str) -> list[Content]:
    """Render the effect of a plan on a database."""
    count, groups = plan.eligible, list(plan.groups.items())
    selected = sum(plan.groups.values())
    of = "" if selected == count.number and not count.more else f" of {selected:,}{'+' if count.more else ''} selected"
    parts = [content((f"{plan.action.label}: {count.of('task')}{of}, in {line(database)}", "bold strong"))]
    if selected:
        bar = gauge([(number / selected, str(shown)) for (shown, _), number in groups], BAR)
        parts += [content(*bar), content("")]
    for (shown, queue), number in groups[:MOST_GROUPS]:
        cell = state(shown)
        parts.append(content(f"  {number:>6,}  ", (f"{cell.text:12}", cell.style), f" {line(queue, 40)}"))
    if len(groups) > MOST_GROUPS:
        rest = sum(number for _, number in groups[MOST_GROUPS:])
        parts.append(content(f"  {rest:>6,}  in other states and queues"))
    parts += [content((f"  {number:,} skipped: {line(why)}", "retrying")) for why, number in plan.skipped.items()]
    if plan.last:
        parts.append(content((f"  {plan.last:,} {LAST}", "retrying")))
    return parts


def sample_lines(plan: ActionPlan) -> list[Content]:
    """Render the first tasks that a plan changes, one line each at 80 columns."""
    lines = []
    for task in plan.samples:
        error = brief(task.error).partition(":")[0] if task.error else None
        tried = formatting.attempts(task.attempt, task.max_attempts)
        texts = (f"{task.id:>8}", fitted(line(task.handler), 18), fitted(line(task.key), 14), f"{tried:>5}")
        lines.append(content(("  ".join([*texts, line(error, 20)]).rstrip(), "muted")))
    return lines
