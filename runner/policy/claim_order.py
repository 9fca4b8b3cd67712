"""claim order: every order in which a claim takes due tasks, and the parser of the setting `claim_order`.

A new order is one class here, and one case in `known_order`.

strict                 higher priority first; a priority-1 task waits as long as there are others
aged                   a waiting task rises by one priority per minute
aged:10s               by one priority every 10 seconds
fresh                  strict, and within a priority the tasks that never failed before the retried ones
weighted:mail=3,sms=1  strict within a queue; the queues divide the slots of a runner by their weights
package.module:Class   an order of your own
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.schema.task import Condition
from runner.db.types import db_later, db_now
from runner.errors import InvalidDuration
from runner.model.duration import format_duration, parse_duration
from runner.model.task import State
from runner.policy.own_class import OwnClass

MICROSECOND = timedelta(microseconds=1)

STEP = timedelta(minutes=1)
"""The default time in which a waiting task rises by one priority."""

CHOICES = "strict, fresh, aged, aged:10s, weighted:mail=3,sms=1, or a class of your own as package.module:Class"

METHODS = ("within_lane", "of_lanes", "position", "effective", "level", "ahead_of", "rank", "lane_key", "sort_key")
"""The methods of a ClaimOrder."""


class ClaimOrder(Protocol):
    """The order of tasks within a lane, and over lanes; the index `ready` has the order within a lane.

    Equal orders must be equal and hashable: statements are prepared once per order.
    """

    def __hash__(self) -> int: ...

    @property
    def note(self) -> str:
        """The effect of the order on a task that waits, for people; empty if the priority is the whole reason."""

    def within_lane(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """The ORDER BY columns within a lane; reversed unless `forward`."""

    def of_lanes(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """The ORDER BY columns that precede these over all lanes."""

    def position(self, task: Any) -> sa.Tuple:
        """The SQL of a task's position in its lane; the next one is greater."""

    def effective(self, priority: int, retried: bool) -> int:
        """The priority that a lane of fresh or of retried tasks has in this order; the other methods take it."""

    def level(self, priority: int, own: int) -> int:
        """The relation of a lane's priority to that of a task; lanes of the same level are compared alike."""

    def ahead_of(self, task: Any, level: int, id: int, run_at: Any) -> Sequence[Condition]:
        """The due tasks in lanes of a level that are claimed before a task, as conditions of one index walk each.

        Args:
            task: the columns of the other tasks.
            level: from `level`.
            run_at: its due time, as SQL; None for a task that becomes due now, after all due tasks.
        """

    def rank(self, priority: int) -> int:
        """The position of a priority in a list in this order; lower ones come first, and equal ones together."""

    def lane_key(self, priority: int, wait: float) -> Any:
        """The sort key of a lane, from its priority and the seconds until its first task is due."""

    def sort_key(self, priority: int, run_at: Any, id: int) -> Any:
        """The sort key of a claimed task, over all lanes.

        Args:
            run_at: its due time, in microseconds since 1970 or as the text of SQLite.
        """


@dataclass(frozen=True, slots=True)
class StrictOrder:
    """Higher priority first, then the earlier time, then the lower id."""

    def __str__(self) -> str:
        return "strict"

    @property
    def note(self) -> str:
        """Empty: the priority is the whole reason."""
        return ""

    def within_lane(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """By time and id."""
        return (task.run_at, task.id) if forward else (task.run_at.desc(), task.id.desc())

    def of_lanes(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """By priority."""
        return (task.priority.desc() if forward else task.priority,)

    def position(self, task: Any) -> sa.Tuple:
        """The time and the id."""
        return sa.tuple_(task.run_at, task.id)

    def effective(self, priority: int, retried: bool) -> int:  # noqa: ARG002
        """The priority itself."""
        return priority

    def level(self, priority: int, own: int) -> int:
        """1 for a higher priority, 0 for the same, -1 for a lower one."""
        return (priority > own) - (priority < own)

    def ahead_of(self, task: Any, level: int, id: int, run_at: Any) -> Sequence[Condition]:
        """All due tasks of a higher priority; of the same one those of an earlier time, or the same and a lower id.

        As one comparison of (run_at, id), SQLite would search by the time alone, which a bulk submit shares.
        """
        waiting = is_state(task.state, State.WAITING)
        if level < 0:
            return ()
        if level > 0 or run_at is None:
            return (waiting & (task.run_at <= db_now()),)
        # The tasks before a due task are due too.
        return waiting & (task.run_at < run_at), waiting & (task.run_at == run_at) & (task.id < id)

    def rank(self, priority: int) -> int:
        """The negative priority."""
        return -priority

    def lane_key(self, priority: int, wait: float) -> Any:
        """By priority and time."""
        return self.rank(priority), wait

    def sort_key(self, priority: int, run_at: Any, id: int) -> Any:
        """By priority, time and id."""
        return -priority, run_at, id


STRICT = StrictOrder()
"""The default order, and in every other one the order of tasks of one priority."""


@dataclass(frozen=True, slots=True)
class AgedOrder(StrictOrder):
    """Each task is ordered as if every priority above 1 had made it due one step earlier.

    So a task that has waited for a step is level with a new one of the next priority. A task of priority 1 comes before
    every task of priority 9 that becomes due more than 8 steps after it: it waits for at most the tasks that were due
    earlier, and those of 8 steps. The order of two tasks never changes while they wait, which keeps the walk along the
    index: only the merge of the lanes differs from the strict order.

    Source: priority aging as in Tanenbaum, Modern Operating Systems; as a fixed key, because all tasks age alike.

    Args:
        step: time in which a waiting task rises by one priority.
    """

    step: timedelta = STEP

    def __str__(self) -> str:
        return "aged" if self.step == STEP else f"aged:{format_duration(self.step)}"

    @property
    def note(self) -> str:
        """The effect of the order on a task that waits."""
        return f"tasks rise by one priority every {format_duration(self.step)}"

    def of_lanes(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """By the virtual due time."""
        virtual = db_later(task.run_at, -task.priority * sa.literal_column(str(self.step.total_seconds())))
        return (virtual if forward else virtual.desc(),)

    def level(self, priority: int, own: int) -> int:
        """The difference of the priorities."""
        return priority - own

    def ahead_of(self, task: Any, level: int, id: int, run_at: Any) -> Sequence[Condition]:
        """The tasks with an earlier virtual due time."""
        if level == 0:
            return STRICT.ahead_of(task, level, id, run_at)
        end = db_later(db_now() if run_at is None else run_at, level * self.step.total_seconds())
        return (is_state(task.state, State.WAITING) & (task.run_at < end) & (task.run_at <= db_now()),)

    def lane_key(self, priority: int, wait: float) -> Any:
        """By the virtual due time of the first task."""
        return wait - priority * self.step.total_seconds()

    def sort_key(self, priority: int, run_at: Any, id: int) -> Any:
        """By virtual due time and id."""
        if isinstance(run_at, str):
            return datetime.fromisoformat(run_at) - priority * self.step, id
        return run_at - priority * self.step // MICROSECOND, id


@dataclass(frozen=True, slots=True)
class FreshOrder(StrictOrder):
    """Strict, and within a priority all tasks without a counted attempt before those with one.

    Fresh and retried tasks are lanes of their own, which the index holds apart: a claim reads no retried task to reach
    a fresh one, however many are due.
    """

    def __str__(self) -> str:
        return "fresh"

    @property
    def note(self) -> str:
        """The effect of the order on a task that waits."""
        return "fresh tasks come before retried ones of the same priority"

    def of_lanes(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """By priority, fresh tasks first."""
        return (task.priority.desc(), task.retried) if forward else (task.priority, task.retried.desc())

    def effective(self, priority: int, retried: bool) -> int:
        """Two steps per priority, one of them for retried tasks."""
        return 2 * priority - retried


OTHERS = 1.0
"""The weight of a queue that is not named."""


@dataclass(frozen=True, slots=True)
class WeightedOrder(StrictOrder):
    """Strict within a queue; the due queues divide the slots of a runner in proportion to their weights.

    Args:
        weights: pairs of a queue and its weight, more than 0; other queues have the weight OTHERS.
    """

    weights: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        weights = ",".join(f"{queue}={weight:g}" for queue, weight in self.weights)
        return f"weighted:{weights}" if weights else "strict"

    @property
    def note(self) -> str:
        """The effect of the order on a task that waits."""
        return "queues divide the slots by weight"

    def weight(self, queue: str) -> float:
        """The weight of a queue."""
        return dict(self.weights).get(queue, OTHERS)


def _is_sql(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, sa.ClauseElement) for each in value)


CHECKS = dict.fromkeys(("within_lane", "of_lanes", "ahead_of"), _is_sql)
"""The values that an order of your own may return."""

# Keys of two orders cannot be compared: one failure ends the own order.
OWN = OwnClass(
    "claim_order",
    METHODS,
    "runner.policy.claim_order.StrictOrder",
    CHOICES,
    WeightedOrder(),
    CHECKS,
    lasting=True,
    keys=("rank", "lane_key", "sort_key"),
)


def parse_order(text: str) -> ClaimOrder:
    """Parse a claim order; see the top of this module.

    Args:
        text: the setting `claim_order`.

    Raises:
        InvalidSettings: the text is not an order, or the class cannot be loaded; the message names the choices.
    """
    order = known_order(text)
    if order is not None:
        return order
    own: ClaimOrder = OWN.load(text)
    return own


def known_order(text: str) -> ClaimOrder | None:
    """Parse an order of this module without loading any code; None for another one.

    Raises:
        InvalidSettings: the step of an aged order, or a weight, is not valid.
    """
    match text.strip().partition(":"):
        case "strict", "", "":
            return StrictOrder()
        case "fresh", "", "":
            return FreshOrder()
        case "aged", "", "":
            return AgedOrder()
        case "aged", ":", step:
            return AgedOrder(_step(text, step))
        case "weighted", _, weights:
            return WeightedOrder(tuple(_weight(text, part) for part in weights.split(",")))
    return None


def _step(text: str, argument: str) -> timedelta:
    try:
        step = parse_duration(argument)
    except InvalidDuration:
        OWN.refuse(text, f"{argument!r} is not a duration")
    if not step:
        OWN.refuse(text, "the step must be more than 0")
    return step


def _weight(text: str, part: str) -> tuple[str, float]:
    queue, _, number = part.strip().rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        OWN.refuse(text, f"{part!r} is not a queue and its weight, such as mail=3")
    if not queue or not 0 < weight < math.inf:
        OWN.refuse(text, f"{part!r} needs a queue and a weight above 0, such as mail=3")
    return queue, weight
