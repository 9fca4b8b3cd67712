"""Events: the facts that the parts of a runner publish to each other, to logs, metrics and hooks."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:  # a worker process has resources and hooks, and none of these
    from runner.engine.running import Running
    from runner.engine.slots import Slots
    from runner.errors import ResourceLimitReached
    from runner.model.task import Claimed
    from runner.policy.lanes import Lane
    from runner.store.breaker import Review
    from runner.store.dependencies.resolve import FinishedParent
    from runner.store.rescue import Rescued
    from runner.store.settle import Settlement

log = logging.getLogger("runner")

E = TypeVar("E")


class HandlersReady(NamedTuple):
    """The resources of more handlers are open."""


class TasksSubmitted(NamedTuple):
    """Tasks were submitted or unblocked, here or elsewhere; `lanes` are theirs, if they are known."""

    lanes: "frozenset[Lane]" = frozenset()


class TasksClaimed(NamedTuple):
    """A claim has returned tasks of one pool, perhaps none; they may not start while the runner drains."""

    slots: "Slots"
    tasks: "Sequence[Claimed]"
    may_start: bool


class TaskClaimedTwice(NamedTuple):
    """A task was claimed while an earlier claim of it is still in flight here."""

    task: "Claimed"


class RoomFreed(NamedTuple):
    """A slot or a limit per runner may have room: at the end of a body, after each written batch, and when resized."""


class AttemptsEnded(NamedTuple):
    """Outcomes of one batch with the same move were written, and their tasks are no longer in flight.

    Args:
        verb: the move; None if the runner had lost the tasks.
        attempts: the attempts and their settlements. A body can end after its own transaction has completed the task:
            its late outcome changes nothing.
        written: the moves that were written before, by task id: the answer to their commit was lost.
        saw_none: True if the statement that wrote all of them saw no open dependency at its start.
    """

    verb: str | None
    attempts: "Sequence[tuple[Running, Settlement]]"
    written: Mapping[int, str]
    runner_id: int = 0
    saw_none: bool = False


class InterruptIgnored(NamedTuple):
    """A body did not end when its runner interrupted it."""

    running: "Running"


class LimitReached(NamedTuple):
    """A limit of the system keeps the runner from its database, while a number of outcomes wait to be written."""

    error: "ResourceLimitReached"
    outcomes: int


class NotesWritten(NamedTuple):
    """Progress or log lines of running tasks were written."""

    ids: Sequence[int]


class TasksRescued(NamedTuple):
    """Tasks of lost runners were rescued, by task id."""

    tasks: "Mapping[int, Rescued]"


class TasksCancelled(NamedTuple):
    """Tasks were cancelled without a claim: they expired, or a parent failed."""

    tasks: "Sequence[FinishedParent]"
    expired: bool


class TasksUnbound(NamedTuple):
    """Tasks waited for their hosts, and any host may take them now."""

    number: int


class StrangersReleased(NamedTuple):
    """Tasks of this runner whose claim never arrived in its process wait again."""

    number: int


class BreakerReviewed(NamedTuple):
    """The breaker of a handler has received a report."""

    handler: str
    review: "Review"


class BucketsGained(NamedTuple):
    """The slice of this runner has more buckets."""


class Events:
    """The bus of one runner.

    `publish` calls the subscribers of the kind in the order of their subscription. One that fails is logged and stops
    no other. A kind without subscribers costs one look-up.
    """

    def __init__(self) -> None:
        self._subscribers: dict[type, tuple[Callable[[Any], object], ...]] = {}

    def subscribe(self, kind: type[E], subscriber: Callable[[E], object]) -> None:
        """Call a function with each event of a kind from now on."""
        self._subscribers[kind] = (*self._subscribers.get(kind, ()), subscriber)

    def publish(self, event: object) -> None:
        """Call the subscribers of an event."""
        for subscriber in self._subscribers.get(type(event), ()):
            try:
                subscriber(event)
            except (Exception, SystemExit, KeyboardInterrupt):  # code of an application may exit
                name = getattr(subscriber, "__qualname__", subscriber)
                log.exception("%s: subscriber %s failed", type(event).__name__, name)
