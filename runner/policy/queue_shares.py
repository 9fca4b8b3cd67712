"""Queue shares: the parts of a claim that queues get by their weights."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from runner.policy.lanes import Lane


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
