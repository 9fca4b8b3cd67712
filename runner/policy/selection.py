"""What a runner claims from: lanes, in order of need, without walking over what it has passed already."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.task import Claimed

RECALLED = 8
"""So many lanes are remembered: a claim that is in a hurry must not look at many."""


class Lane(NamedTuple):
    """Tasks that are served in the order of their time: those of one queue, handler and priority."""

    queue: str
    handler: str
    priority: int


class Head(NamedTuple):
    """A lane that has waiting tasks, as a survey found it.

    Args:
        lane: which.
        run_at: when its first task is due, in the database's own form.
        wait: seconds until then, by the database's clock; not positive when it is due.
        paused: True when its queue or its handler is paused.
    """

    lane: Lane
    run_at: Any
    wait: float
    paused: bool


def is_suspect(task: Claimed) -> bool:
    """Tell whether a task, now claimed, is to be run apart: it saw two runners die, or one before its last attempt."""
    return task.rescues > 1 or (task.rescues == 1 and task.attempt >= task.max_attempts)


class Place(NamedTuple):
    """A place in a lane: the next claim there starts behind it. The values are in the database's own form."""

    run_at: Any
    id: int


@dataclass
class Lanes:
    """The due lanes of a runner, each with the place that its claims have reached.

    Claimed rows leave dead entries behind at the head of the index until they are vacuumed, and an old snapshot
    elsewhere can keep them for hours. A claim therefore starts where the last one ended. What is submitted behind that
    place (an earlier time, a task handed back, a lane that was empty) is found by the next survey, which starts again.

    Args:
        accepts: tells whether this runner takes tasks of a lane.
        start: the place before every task, in the database's own form.
    """

    accepts: Callable[[Lane], bool]
    start: Place
    places: dict[Lane, Place] = field(default_factory=dict)
    """Of the lanes that have due tasks, as far as is known."""
    known: dict[Lane, Place] = field(default_factory=dict)
    """The lanes that the last survey found due, each from its start."""
    lately: dict[Lane, None] = field(default_factory=dict)
    """The lanes that had due tasks lately, the latest last; at most RECALLED."""
    next_due: float | None = None
    """Seconds from the last survey until another lane of ours becomes due; None when there is none."""

    def survey(self, heads: Iterable[Head]) -> None:
        """Begin anew with the lanes that a survey found."""
        mine = [head for head in heads if not head.paused and self.accepts(head.lane)]
        due = sorted((head for head in mine if head.wait <= 0), key=lambda head: -head.lane.priority)
        self.known = {head.lane: self.start for head in due}
        self.places = dict(self.known)
        for lane in reversed(self.known):
            self.lately.pop(lane, None)
            self.lately[lane] = None
        for lane in list(self.lately)[:-RECALLED]:
            del self.lately[lane]
        self.next_due = min((head.wait for head in mine if head.wait > 0), default=None)

    def recall(self) -> None:
        """Take the lanes that had due tasks lately for due: what is submitted now most likely goes there."""
        lately = sorted(self.lately, key=lambda lane: -lane.priority)
        self.places |= {lane: self.start for lane in lately if lane not in self.places}

    def advance(self, lanes: Iterable[Lane], claimed: Sequence[Claimed], asked: int) -> None:
        """Move behind what was claimed.

        Args:
            lanes: that were asked for.
            claimed: what the claim returned.
            asked: how many tasks it asked for; fewer returned means that the lanes are empty behind their places.
        """
        if len(claimed) < asked:
            for lane in lanes:
                self.places.pop(lane, None)
            return
        for task in claimed:
            lane, place = Lane(task.queue, task.handler, task.priority), Place(task.run_at, task.id)
            self.places[lane] = max(self.places[lane], place)

    def __bool__(self) -> bool:
        return bool(self.places)
