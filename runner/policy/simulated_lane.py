"""SimulatedLane: the waiting tasks of a lane in a simulation, and the order of such lanes."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from runner.policy.claim_order import ClaimOrder
from runner.policy.lanes import Lane


def in_order(order: ClaimOrder, lanes: Mapping[Lane, float], now: float) -> list[Lane]:
    """Lanes in the order of claims, given by the due times of their first tasks."""
    return sorted(lanes, key=lane_key_in(order, lanes, now))


def lane_key_in(order: ClaimOrder, lanes: Mapping[Lane, float], now: float) -> Callable[[Lane], Any]:
    """The sort key of lanes in the order of claims; see `in_order`."""
    return lambda lane: (order.lane_key(lane.priority_in(order), lanes[lane] - now), lanes[lane], lane)


class Waiting(NamedTuple):
    """Tasks that come together, usually one, and their next attempt, from 1."""

    due: float
    tasks: int
    tenant: str | None
    attempt: int = 1


class SimulatedLane:
    """The waiting tasks of a lane: first in, first out, and in turns of tenants where tenants have a limit.

    A round has a turn of the tasks without a tenant and one of each tenant in the order of their names, as in
    runner.store.claim.tenants.

    Args:
        has_turns: True if tenants have a limit.
    """

    def __init__(self, *, has_turns: bool) -> None:
        self._has_turns = has_turns
        self._by_tenant: dict[str, deque[Waiting]] = defaultdict(deque)
        self._cursor: str | None = None

    def __bool__(self) -> bool:
        return bool(self._by_tenant)

    def __iter__(self) -> Iterator[Waiting]:
        return (item for items in self._by_tenant.values() for item in items)

    @property
    def due(self) -> float:
        """The time of the first task."""
        if len(self._by_tenant) == 1:
            return next(iter(self._by_tenant.values()))[0].due
        return min(items[0].due for items in self._by_tenant.values())

    def add(self, item: Waiting) -> None:
        """Add tasks; they come in the order of their time."""
        self._by_tenant[(item.tenant or "") if self._has_turns else ""].append(item)

    def take(self, may_start: Callable[[str], bool]) -> Waiting | None:
        """Take the next tasks; None if no tenant has room."""
        names = sorted(self._by_tenant) if self._has_turns else list(self._by_tenant)
        later = [name for name in names if self._cursor is not None and name > self._cursor]
        for name in [*later, *(name for name in names if name not in later)]:
            if not self._has_turns or may_start(name):
                items = self._by_tenant[name]
                item = items.popleft()
                self._cursor = name
                if not items:
                    del self._by_tenant[name]
                return item
        return None
