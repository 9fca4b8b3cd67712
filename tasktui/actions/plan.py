"""ActionPlan: the preview of an action on tasks before it runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from runner.filter.parse import Filter
from runner.model.task import Shown
from runner.operations.results import Result, Target
from runner.operations.targets import LAST, MANY, is_last, objection
from runner.queries.counting import Count
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from tasktui.actions.action import Action, Confirmation
from tasktui.render.plot import gauge
from tasktui.render.render import fitted, line, state
from tasktui.render.rows import BLANK, Part, Row, handler, wrapped

if TYPE_CHECKING:
    from runner.operations.preview import Preview  # import modules that the first screen does not need


SAMPLES = 5

NO_VALUES: Mapping[str, object] = MappingProxyType({})

LATER = "it matches only since the preview"
"""The reason why a task that the preview did not count stays as it is."""

MOST_GROUPS = 6
"""Maximum number of states and queues to list, so that the dialog fits a small screen."""


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """A preview of an action on tasks; the operator confirms it.

    Args:
        eligible: number of tasks that it will change; `more` is set if counting stopped at the cap.
        groups: number of selected tasks by state and queue.
        skipped: number of selected tasks that it does not apply to, by reason.
        samples: the first tasks that it will change.
        targets: the tasks to change, each with the version on the screen; empty if `task_filter` is set.
        task_filter: a filter for the tasks to change; None if `targets` lists them.
        last: number of eligible tasks with one attempt left.
        states: number of eligible tasks by state.
        obstacles: sentences about the obstacles that the tasks meet after the change.
        values: the validated values of an edit.
        reasons: why each task that matches `task_filter` stays as it is, None for those to change, by id; empty if
            counting stopped at the cap.
        shards: the plan of each shard, by its name; this one then is their sum, and its ids have their shard.
    """

    action: Action
    eligible: Count
    groups: Mapping[tuple[Shown, str], int]
    skipped: Mapping[str, int]
    samples: tuple[TaskRow, ...]
    targets: tuple[Target, ...] = ()
    task_filter: Filter | None = None
    last: int = 0
    states: Mapping[Shown, int] = field(default_factory=dict)
    obstacles: tuple[str, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    reasons: Mapping[int, str | None] = field(default_factory=dict)
    shards: "Mapping[str, ActionPlan]" = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """Number of tasks to change; it decides how much the operator must type to confirm."""
        return MANY + 1 if self.eligible.more else self.eligible.number

    def most(self, confirmation: Confirmation) -> int | None:
        """The maximum number of tasks to change; None if counting stopped at the cap."""
        eligible = None if self.eligible.more else self.eligible.number
        return eligible if confirmation.limit is None else min(confirmation.limit, eligible or confirmation.limit)


def plan(action: Action, tasks: Sequence[TaskRow], values: Mapping[str, object] = NO_VALUES) -> ActionPlan:
    """Plan an action on selected tasks, with the same eligibility rules that the store applies."""
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
        states=dict(Counter(task.shown for task in eligible).most_common()),
    )


def plan_for_filter(
    action: Action, task_filter: Filter, preview: "Preview", values: Mapping[str, object] = NO_VALUES
) -> ActionPlan:
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
        states=preview.states,
        values=values,
        reasons={} if preview.total.more else preview.reasons,
    )


class PlanChanges(NamedTuple):
    """The changes of the tasks of a plan since it was made.

    Args:
        text: a clause; empty if there is nothing to ask about.
        risks: the number of tasks with each risk among those that will change.
    """

    text: str = ""
    risks: Mapping[str, int] = MappingProxyType({})


def changed_targets(plan: ActionPlan, result: Result) -> PlanChanges:
    """Describe how many tasks of a plan have changed since, which stay as they are.

    Args:
        plan: the plan, which lists its tasks.
        result: the tasks that the action would skip now.
    """
    reasons = result.reasons()
    if len(plan.targets) == 1 or not reasons:
        return PlanChanges("".join(reasons))
    states = Counter(f"{conflict.state}" for conflict in result.conflicts)
    now = [f"{number:,} now {word}" for word, number in states.most_common()]
    now += [f"{len(result.skipped):,} skipped"] if result.skipped else []
    number = f"{len(reasons):,} of {len(plan.targets):,}"
    return PlanChanges(f"{number} tasks have changed and stay as they are: {', '.join(now)}")


def changed_matches(plan: ActionPlan, preview: "Preview") -> PlanChanges:
    """Describe how many more tasks match now, which stay as they are, and the greater risk of those of a plan.

    Args:
        preview: the preview of the same action now, which skips the tasks that the plan does not change.
    """
    risks = {
        "running": (plan.states.get(Shown.RUNNING, 0), preview.states.get(Shown.RUNNING, 0)),
        "with one attempt left": (plan.last, preview.last),
    }
    clauses = []
    if later := preview.skipped.get(LATER, 0):
        stay = "task matches now and stays as it is" if later == 1 else "tasks match now and stay as they are"
        clauses.append(f"{Count(later, preview.total.more)} more {stay}")
    if grown := [f"{name} {before:,} -> {now:,}" for name, (before, now) in risks.items() if now > before]:
        clauses.append(f"of the {plan.eligible} that will change: {', '.join(grown)}")
    return PlanChanges("; ".join(clauses), {name: now for name, (_, now) in risks.items()})


LABEL = 10
"""Cells of the labels of a plan."""

ON_REQUEST = "end by request, at the next heartbeat of the runner"
"""The remark on running tasks that an operator terminates, after their number."""

FEW_SAMPLES = 2
"""Samples on a low screen."""


def plan_rows(plan: ActionPlan, database: str, width: int, _answer: str, *, low: bool) -> list[Row]:
    """Render the effect of a plan on a database.

    Args:
        width: cells of a row.
        low: True for a screen with few rows: few samples, and no blank rows.
    """
    count, selected = plan.eligible, sum(plan.groups.values())
    more = "+" if count.more else ""
    of = "" if selected == count.number and not more else f" of {selected:,}{more} selected"
    noun = "task" if selected == 1 else "tasks"
    where = ", ".join(f"{line(name)} {each.eligible}" for name, each in plan.shards.items()) or line(database)
    rows: list[Row] = [[(f"{count.number:,}{more}", "bold strong"), (f"{of} {noun} will change, in {where}.", "text")]]
    for text in plan.obstacles:
        rows += wrapped([(line(text, 2 * width), "bold retrying")], width)
    if selected:
        skipped = sum(plan.skipped.values())
        shares = [(number / selected, str(shown)) for shown, number in plan.states.items()]
        legend = _legend(plan.states, skipped, f"of the first {selected:,}" if count.more else "")
        rows += [BLANK, gauge([*shares, (skipped / selected, "cancelled")], width), legend]
    rows += [*_gap(low=low), _queues(plan.groups)]
    for index, (why, number) in enumerate(plan.skipped.items()):
        label = "Skipped" if index == 0 else ""
        rows.append([(f"{label:{LABEL}}", "muted"), (f"{number:>8,}", "strong"), (f"  {line(why)}", "retrying")])
    if plan.action.verb == "terminate" and (running := plan.states.get(Shown.RUNNING, 0)):
        rows.append([(f"{'Running':{LABEL}}", "muted"), (f"{running:>8,}", "strong"), (f"  {ON_REQUEST}", "retrying")])
    if plan.last:
        rows.append([(f"{'Caution':{LABEL}}", "muted"), (f"{plan.last:>8,}", "strong"), (f"  {LAST}", "retrying")])
    return [*rows, *_gap(low=low), *_samples(plan, FEW_SAMPLES if low else SAMPLES)]


def _gap(*, low: bool) -> list[Row]:
    return [] if low else [BLANK]


def _legend(states: Mapping[Shown, int], skipped: int, bound: str) -> Row:
    """The numbers of the bar, in its order, and the tasks that were counted if there are more."""
    parts: list[Part] = []
    for shown, number in states.items():
        cell = state(shown)
        sign, _, word = cell.text.partition(" ")
        parts += [(f"{sign} ", cell.style), (f"{number:,}", "strong"), (f" {word}   ", "muted")]
    if skipped:
        parts += [("⊘ ", "cancelled"), (f"{skipped:,}", "strong"), (" skipped   ", "muted")]
    return [*parts, (bound, "faint")]


def _queues(groups: Mapping[tuple[Shown, str], int]) -> Row:
    """The selected tasks by queue."""
    queues: Counter[str] = Counter()
    for (_, queue), number in groups.items():
        queues[queue] += number
    names = ", ".join(f"{line(queue, 40)} {number:,}" for queue, number in queues.most_common(MOST_GROUPS))
    rest = len(queues) - MOST_GROUPS
    return [(f"{'Queues':{LABEL}}", "muted"), (f"{names}, {rest:,} more" if rest > 0 else names, "text")]


def _samples(plan: ActionPlan, most: int) -> list[Row]:
    """The first tasks that a plan changes, one line each."""
    rows: list[Row] = []
    for index, task in enumerate(plan.samples[:most]):
        cell = state(task.shown)
        error = formatting.brief(task.error).partition(":")[0] if task.error else ""
        tried = formatting.attempts(task.attempt, task.max_attempts)
        rows.append(
            [
                (f"{'Samples' if index == 0 else '':{LABEL}}", "muted"),
                (f"{task.id!s:>8}  ", "text"),
                (f"{cell.text[:1]} ", cell.style),
                *handler(task.handler, 18),
                (f"  {fitted(line(task.key) if task.key else '', 14)}  ", "strong"),
                (f"{tried:>5}  ", "muted"),
                (line(error, 20) if error else "", "muted"),
            ]
        )
    return rows
