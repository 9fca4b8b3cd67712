"""Lanes: the order in which a runner claims from its queues, and the position that it has reached in each."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from runner.model.task import Claimed
from runner.policy.claim_order import CLAIM_POLICY

RUNNER_QUEUE = "@"
"""The first character of the queues of single runners, where the tasks of a broadcast are."""

RECALLED = 8
"""Maximum number of lanes to remember: a claim right after a submit must not query many lanes."""


CLAIMED = 500
"""Maximum number of lanes of one claim, more than the tasks of a batch. A survey returns lanes in order, so that the
first tasks of n lanes are those of the first n."""


class Lane(NamedTuple):
    """Tasks of one queue, handler and priority, claimed in the order of their time."""

    queue: str
    handler: str
    priority: int


def serves(queue: str, queues: Collection[str], own: str) -> bool:
    """True if a runner claims from a queue.

    Args:
        queue: the queue.
        queues: the queues of the runner; empty for all.
        own: the queue of this runner alone. It never claims from those of others.
    """
    if queue.startswith(RUNNER_QUEUE):
        return queue == own
    return not queues or queue in queues


def runner_queue(runner_id: int) -> str:
    """Return the queue of a single runner."""
    return f"{RUNNER_QUEUE}{runner_id}"


class Head(NamedTuple):
    """The first waiting task of a lane, from a survey.

    Args:
        lane: the lane.
        run_at: time at which the task is due, in the database's own form.
        wait: seconds until then by the database's clock; zero or less if it is due.
        paused: True if the queue or the handler is paused.
        refused: id of its first task if no claim ever takes that task, else None.
    """

    lane: Lane
    run_at: Any
    wait: float
    paused: bool
    refused: int | None = None


class LanePosition(NamedTuple):
    """A position in a lane, in the database's own form; the next claim starts after it."""

    run_at: Any
    id: int


@dataclass
class Lanes:
    """The due lanes of a runner, each with the position that its claims have reached.

    Claimed rows leave dead entries at the head of the index until vacuum removes them, and an old snapshot of another
    client can delay that for hours. A claim therefore starts where the last one ended. The next survey starts over, and
    finds tasks before that position: those with an earlier time, released ones, and those of a lane that was empty.

    Args:
        accepts: returns whether this runner claims from a lane.
        start: position before every task, in the database's own form.
    """

    accepts: Callable[[Lane], bool]
    start: LanePosition
    places: dict[Lane, LanePosition] = field(default_factory=dict)
    """Positions in the lanes that are believed to have due tasks."""
    known: dict[Lane, LanePosition] = field(default_factory=dict)
    """Lanes that the last survey found due, each at its start."""
    lately: dict[Lane, None] = field(default_factory=dict)
    """Lanes that recently had due tasks, the most recent last; at most RECALLED."""
    next_due: float | None = None
    """Seconds from the last survey until another accepted lane becomes due; None without one."""

    def survey(self, heads: Iterable[Head]) -> None:
        """Start over with the result of a survey."""
        rank = CLAIM_POLICY.order.rank
        claimable = [head for head in heads if not head.paused and self.accepts(head.lane)]
        due = [head for head in claimable if head.wait <= 0]
        due.sort(key=lambda head: (rank(head.lane.priority), head.run_at))
        self.known = {head.lane: self.start for head in due}
        self.places = dict(self.known)
        for lane in reversed(list(islice(self.known, RECALLED))):
            self.lately.pop(lane, None)
            self.lately[lane] = None
        for lane in list(self.lately)[:-RECALLED]:
            del self.lately[lane]
        self.next_due = min((head.wait for head in claimable if head.wait > 0), default=None)

    def recall(self) -> None:
        """Treat the lanes that recently had due tasks as due: a new task is most likely in one of them."""
        lately = sorted(self.lately, key=lambda lane: CLAIM_POLICY.order.rank(lane.priority))
        recalled = {lane: self.start for lane in lately if lane not in self.places}
        self.places = recalled | self.places

    @staticmethod
    def first(places: Mapping[Lane, LanePosition], wanted: Callable[[Lane], bool]) -> dict[Lane, LanePosition]:
        """Return the lanes to claim from, in order, at most CLAIMED: the next tasks are in them.

        Args:
            places: positions by lane, in the order of a survey.
            wanted: returns whether a lane is to be claimed from.
        """
        return dict(islice(((lane, place) for lane, place in places.items() if wanted(lane)), CLAIMED))

    def advance(self, lanes: Iterable[Lane], claimed: Sequence[Claimed], requested: int) -> None:
        """Move past the claimed tasks.

        Args:
            lanes: lanes of the claim.
            claimed: tasks that the claim returned.
            requested: number of tasks requested; if fewer were returned, the lanes have no more due tasks.
        """
        if len(claimed) < requested:
            for lane in lanes:
                self.places.pop(lane, None)
            return
        for task in claimed:
            lane, position = Lane(task.queue, task.handler, task.priority), LanePosition(task.run_at, task.id)
            self.places[lane] = max(self.places[lane], position)

    def __bool__(self) -> bool:
        return bool(self.places)
