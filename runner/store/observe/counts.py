"""counts: what stands in each queue, at a glance."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from math import inf

from runner.policy.selection import Head, Lane
from runner.store.observe import tallies
from runner.store.observe.arrivals import unclaimed
from runner.store.observe.legible import clock
from runner.store.observe.pauses import Pause, registered
from runner.store.observe.reports import Flow, flows
from runner.store.observe.tallies import Count, InHand, Waiting
from runner.store.survey import survey
from runner.store.transaction import Transaction

CAP = 10_000

MINUTE = 60.0
ONE_MINUTE = timedelta(minutes=1)
SOON = 10.0
"""Seconds within which a backlog that is worked off counts as none."""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """One queue.

    Args:
        queue: its name.
        ready: due tasks.
        scheduled: tasks for later that were never tried.
        retrying: tasks for later that were tried before.
        blocked: tasks that wait for others.
        running: tasks in the hands of live runners.
        lost: tasks in the hands of runners whose lease has ended.
        dead: tasks that have failed for good.
        oldest: seconds for which the first ready task has been due; None when none is ready.
        arrived: tasks that were submitted in the last full minute.
        minute: what happened in the last full minute.
        hour: what happened in the last hour.
        limit: how many may run at once; None for any number.
        paused: None when it is not.
    """

    queue: str
    ready: Count
    scheduled: Count
    retrying: Count
    blocked: Count
    running: Count
    lost: Count
    dead: Count
    oldest: float | None
    arrived: Count
    minute: Flow
    hour: Flow
    limit: int | None
    paused: Pause | None

    @property
    def cut(self) -> bool:
        """True when more may wait than was counted."""
        return self.ready.more or self.scheduled.more or self.retrying.more

    @property
    def empty_in(self) -> float | None:
        """Seconds until nothing is ready any more, at the rates of the last full minute.

        Infinite when it never comes to that; None when nothing is ready, or nothing is started for a pause.
        """
        return None if self.paused else emptied(self.ready.number, self.arrived.number, self.minute.ended)

    @property
    def falls_behind(self) -> bool:
        """True when more comes in than goes out, and what waits is worth more than a minute of work."""
        late = self.oldest is not None and self.oldest > MINUTE
        return late and not self.paused and self.ready.number > self.minute.ended < self.arrived.number


def emptied(ready: int, arrived: int, ended: int) -> float | None:
    """Tell when a backlog is gone.

    Args:
        ready: tasks in it.
        arrived: tasks that come in a minute.
        ended: tasks that end in a minute.

    Returns:
        Seconds; infinite for never; None when there is none.
    """
    if not ready:
        return None
    # A queue that starts everything within seconds is not behind, even if chance let more come in this minute.
    if ended and ready * MINUTE / ended <= SOON:
        return ready * MINUTE / ended
    return ready * MINUTE / (ended - arrived) if ended > arrived else inf


async def counts(tx: Transaction, cap: int = CAP, depth: int | None = None) -> list[QueueCounts]:
    """Count what stands in each queue.

    Every count walks along an index and stops at the cap: the cost grows with the number of queues, handlers and
    priorities in use, not with that of tasks.

    Args:
        tx: an open transaction; nine statements are executed, or ten.
        cap: the most tasks to count for one number; those that run or are blocked are counted over all queues.
        depth: the same for those that wait, which take longest when there are many; None for `cap`.

    Returns:
        By name, every queue that has tasks, stands in the registry, or did something in the last hour.
    """
    heads = [head for head in await survey(tx) if isinstance(head.lane.queue, str)]
    walked = await tallies.waiting(tx, _lanes(heads), depth or cap)
    oldest = _oldest(heads)
    in_hand = await tallies.in_hand(tx, cap)
    blocked = await tallies.blocked(tx, cap)
    dead = await tallies.dead(tx, cap)
    minute, hour = await flows(tx)
    last = (await clock(tx)).replace(second=0, microsecond=0)
    new = await unclaimed(tx, last - ONE_MINUTE, last)
    registry = await registered(tx, tx.tables.queue)
    counted = []
    for name in sorted({*walked, *in_hand, *blocked, *dead, *hour, *registry}):
        ready, scheduled, retrying = walked.get(name, Waiting())
        running, lost = in_hand.get(name, InHand())
        entry, flow = registry.get(name), minute.get(name, Flow())
        counted.append(
            QueueCounts(
                queue=name,
                ready=ready,
                scheduled=scheduled,
                retrying=retrying,
                blocked=blocked.get(name, Count()),
                running=running,
                lost=lost,
                dead=dead.get(name, Count()),
                oldest=oldest.get(name),
                arrived=Count(flow.submitted + new.of(name), new.more),
                minute=flow,
                hour=hour.get(name, Flow()),
                limit=entry.limit if entry else None,
                paused=entry.pause if entry else None,
            )
        )
    return counted


async def waiting(tx: Transaction, cap: int = CAP) -> dict[str, Waiting]:
    """Count the waiting tasks of each queue: what of `counts` takes longest when much waits.

    Args:
        tx: an open transaction; two statements are executed.
        cap: the most tasks to count for one number.
    """
    return await tallies.waiting(tx, _lanes(await survey(tx)), cap)


def _lanes(heads: Iterable[Head]) -> list[Lane]:
    """The lanes whose names are text, which SQLite does not see to."""
    return [head.lane for head in heads if isinstance(head.lane.queue, str) and isinstance(head.lane.handler, str)]


def _oldest(heads: Iterable[Head]) -> dict[str, float]:
    ages: dict[str, float] = {}
    for head in heads:
        if head.wait <= 0:
            ages[head.lane.queue] = max(ages.get(head.lane.queue, 0.0), -head.wait)
    return ages
