"""counts: what stands in each queue, at a glance."""

from collections.abc import Iterable
from dataclasses import dataclass

from runner.policy.selection import Head
from runner.store.observe import tallies
from runner.store.observe.pauses import Pause, registered
from runner.store.observe.reports import Flow, flows
from runner.store.observe.tallies import Count, InHand, Waiting
from runner.store.survey import survey
from runner.store.transaction import Transaction

CAP = 10_000


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
    minute: Flow
    hour: Flow
    limit: int | None
    paused: Pause | None


async def counts(tx: Transaction, cap: int = CAP) -> list[QueueCounts]:
    """Count what stands in each queue.

    Every count walks along an index and stops at the cap: the cost grows with the number of queues, handlers and
    priorities in use, not with that of tasks.

    Args:
        tx: an open transaction; seven statements are executed.
        cap: the most tasks to count for one number; those that run or are blocked are counted over all queues.

    Returns:
        By name, every queue that has tasks, stands in the registry, or did something in the last hour.
    """
    heads = [head for head in await survey(tx) if isinstance(head.lane.queue, str)]
    waiting = await tallies.waiting(tx, [head.lane for head in heads if isinstance(head.lane.handler, str)], cap)
    oldest = _oldest(heads)
    in_hand = await tallies.in_hand(tx, cap)
    blocked = await tallies.blocked(tx, cap)
    dead = await tallies.dead(tx, cap)
    minute, hour = await flows(tx)
    registry = await registered(tx, tx.tables.queue)
    counted = []
    for name in sorted({*waiting, *in_hand, *blocked, *dead, *hour, *registry}):
        ready, scheduled, retrying = waiting.get(name, Waiting())
        running, lost = in_hand.get(name, InHand())
        entry = registry.get(name)
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
                minute=minute.get(name, Flow()),
                hour=hour.get(name, Flow()),
                limit=entry.limit if entry else None,
                paused=entry.pause if entry else None,
            )
        )
    return counted


def _oldest(heads: Iterable[Head]) -> dict[str, float]:
    ages: dict[str, float] = {}
    for head in heads:
        if head.wait <= 0:
            ages[head.lane.queue] = max(ages.get(head.lane.queue, 0.0), -head.wait)
    return ages
