"""The order of the queues on the overview."""

from runner.queries.counts import QueueCounts
from runner.queries.overview import NEGLECTED, Overview


def sorted_queues(overview: Overview) -> list[QueueCounts]:
    """The queues: those that fail, others in trouble, and the rest, each by name.

    While no task arrives or ends, no queue falls behind: then the one with the most ready tasks comes first, and of
    equal ones the one that waits longest. A queue that just fell behind keeps its place for a minute.
    """
    queues, failing = overview.queues, overview.failing
    still = not any(queue.arrived.number or queue.minute.finished for queue in queues)
    neglected = {queue for handler in overview.unknown if handler.due >= NEGLECTED for queue in handler.queues}

    def rank(queue: QueueCounts) -> tuple[bool, bool, int, float, str]:
        ready, oldest = (queue.ready.number, queue.oldest or 0.0) if still else (0, 0.0)
        trouble = queue.falls_behind or queue.lost.number > 0 or queue.queue in neglected
        return queue.queue not in failing, not trouble, -ready, -oldest, queue.queue

    return sorted(queues, key=rank)
