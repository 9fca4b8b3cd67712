"""fairness: claim orders in which no task waits without a bound, and the parser of the setting `claim_order`.

strict                 higher priority first; a priority-1 task waits as long as there are others
aged                   a waiting task rises by one priority per minute
aged:10s               by one priority every 10 seconds
weighted:mail=3,sms=1  strict within a queue; the queues divide the slots of a runner by their weights
package.module:Class   an order of your own
"""

import importlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heapify, heapreplace
from typing import Any, NamedTuple, NoReturn

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.schema.task import Condition
from runner.db.types import db_later, db_now
from runner.errors import InvalidDuration, InvalidSettings
from runner.model.duration import format_duration, parse_duration
from runner.model.task import Priority, State
from runner.policy.claim_order import ClaimOrder, StrictOrder
from runner.policy.lanes import Lane


class OwnClass(NamedTuple):
    """The classes that a setting accepts.

    Args:
        setting: name of the setting.
        methods: methods that a class must have.
        base: a class to derive from, as text.
        choices: the valid values, for people.
    """

    setting: str
    methods: Sequence[str]
    base: str
    choices: str

    def load(self, text: str) -> Any:
        """Import the class and make an instance.

        Args:
            text: package.module:Class.

        Raises:
            InvalidSettings: the text is not the path of such a class.
        """
        module, colon, name = text.strip().partition(":")
        if not colon:
            self.refuse(text, "it is not known")
        try:
            own = getattr(importlib.import_module(module), name)
            policy = own() if isinstance(own, type) else self.refuse(text, f"{name} is not a class")
        except InvalidSettings:
            raise
        except Exception as error:  # the module may raise anything
            self.refuse(text, f"the class cannot be loaded: {type(error).__name__}: {error}")
        missing = [method for method in self.methods if not callable(getattr(policy, method, None))]
        if missing:
            self.refuse(text, f"the class lacks {', '.join(missing)}; derive it from {self.base}")
        return policy

    def refuse(self, text: str, why: str) -> NoReturn:
        """Refuse a value.

        Raises:
            InvalidSettings: always.
        """
        raise InvalidSettings(where=self.setting, why=f"{text!r}: {why}; use {self.choices}")


STEP = timedelta(minutes=1)
"""The default time in which a waiting task rises by one priority."""

EQUALS = StrictOrder()
"""The order of tasks of one priority, in every claim order."""

CHOICES = "strict, aged, aged:10s, weighted:mail=3,sms=1, or a class of your own as package.module:Class"

METHODS = ("within_lane", "of_lanes", "position", "level", "ahead_of", "rank", "lane_key", "sort_key")
"""The methods of a ClaimOrder."""

OWN = OwnClass("claim_order", METHODS, "runner.policy.claim_order.StrictOrder", CHOICES)


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
            return EQUALS.ahead_of(task, level, id, run_at)
        end = db_later(db_now() if run_at is None else run_at, level * self.step.total_seconds())
        return (is_state(task.state, State.WAITING) & (task.run_at < end) & (task.run_at <= db_now()),)

    def lane_key(self, priority: int, wait: float) -> Any:
        """By the virtual due time of the first task."""
        return wait - priority * self.step.total_seconds()

    def sort_key(self, task: Any) -> Any:
        """By virtual due time and id."""
        run_at = datetime.fromisoformat(task.run_at) if isinstance(task.run_at, str) else task.run_at
        return run_at - task.priority * self.step, task.id


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
        return "weighted:" + ",".join(f"{queue}={weight:g}" for queue, weight in self.weights)

    @property
    def note(self) -> str:
        """The effect of the order on a task that waits."""
        return "queues divide the slots by weight"

    def weight(self, queue: str) -> float:
        """The weight of a queue."""
        return dict(self.weights).get(queue, OTHERS)


def longest_wait(step: timedelta) -> timedelta:
    """The time after which no new task overtakes one of the lowest priority: (9 - 1) steps."""
    return (Priority.HIGHEST - Priority.LOWEST) * step


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


class Share(NamedTuple):
    """The lanes of one queue, and the number of tasks to claim from them."""

    lanes: list[Lane]
    tasks: int


class QueueShares:
    """Divides free slots between queues in proportion to their weights.

    Every queue has a pass, which rises by 1/weight with each task; the next slot goes to the lowest pass. A queue that
    had no due tasks starts at the pass of the others: it gets its share from now on, and no more for the past.

    Source: stride scheduling, Waldspurger and Weihl, 1995.

    Args:
        weight: returns the weight of a queue, more than 0.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._passes: dict[str, float] = {}
        self._now = 0.0

    def divide(self, lanes: Sequence[Lane], slots: int) -> list[Share]:
        """Divide slots between the queues of due lanes.

        Args:
            lanes: the due lanes, in the order of claims.
            slots: number of tasks to claim.

        Returns:
            The shares that are not empty, the largest first.
        """
        by_queue: dict[str, list[Lane]] = defaultdict(list)
        for lane in lanes:
            by_queue[lane.queue].append(lane)
        self._passes = {queue: max(self._passes.get(queue, 0.0), self._now) for queue in by_queue}
        tasks = dict.fromkeys(by_queue, 0)
        heap = [(passed + 1 / self._weight(queue), queue) for queue, passed in self._passes.items()]
        heapify(heap)
        for _ in range(slots if heap else 0):
            passed, queue = heap[0]
            tasks[queue] += 1
            heapreplace(heap, (passed + 1 / self._weight(queue), queue))
        shares = [Share(by_queue[queue], number) for queue, number in tasks.items() if number]
        return sorted(shares, key=lambda share: -share.tasks)

    def record(self, queues: Iterable[str]) -> None:
        """Record the queues of claimed tasks, one per task."""
        for queue in queues:
            if queue in self._passes:
                self._passes[queue] += 1 / self._weight(queue)
        self._now = max(self._now, min(self._passes.values(), default=0.0))
