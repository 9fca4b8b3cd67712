"""queue_totals: the sums of the figures of several queues, such as those of all shards."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runner.queries.counting import Count, total_of
from runner.queries.counts import MOST_QUEUES, QueueCounts


class QueueTotals(NamedTuple):
    """The figures of all queues.

    Args:
        oldest: seconds since the first ready task became due; None if none is ready.
        arrived: the tasks submitted in the last full minute.
        finished: the tasks that ended in it.
        failed: the attempts that failed in it.
    """

    ready: Count
    scheduled: Count
    retrying: Count
    blocked: Count
    running: Count
    lost: Count
    dead: Count
    oldest: float | None
    arrived: Count
    finished: int
    failed: int


def queue_totals(lists: Iterable[Sequence[QueueCounts]], *, more: bool = False) -> QueueTotals:
    """Sum up queues.

    Args:
        lists: the queues of each database; a list of MOST_QUEUES may lack some, so its sums are lower bounds.
        more: True if the sums are lower bounds anyway.
    """
    lists = list(lists)
    queues = [queue for each in lists for queue in each]
    more = more or any(len(each) == MOST_QUEUES for each in lists)

    def total(counts: Iterable[Count]) -> Count:
        number, bounded = total_of(counts)
        return Count(number, bounded or more)

    minutes = [queue.minute for queue in queues]
    return QueueTotals(
        ready=total(queue.ready for queue in queues),
        scheduled=total(queue.scheduled for queue in queues),
        retrying=total(queue.retrying for queue in queues),
        blocked=total(queue.blocked for queue in queues),
        running=total(queue.running for queue in queues),
        lost=total(queue.lost for queue in queues),
        dead=total(queue.dead for queue in queues),
        oldest=max((queue.oldest for queue in queues if queue.oldest is not None), default=None),
        arrived=total(queue.arrived for queue in queues),
        finished=sum(flow.finished for flow in minutes),
        failed=sum(flow.failed for flow in minutes),
    )
