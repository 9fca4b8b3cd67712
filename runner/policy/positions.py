"""Positions: where the next claim from a lane starts, in all of its tasks or in those of each tenant."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

FIRST_ID = -(2**63)
"""The id before every other one."""

POSITION_LAG = 1.0
"""Seconds by which a lane's old position lags at least: transactions commit out of the order of their tasks' times."""

MOST_TENANTS = 10_000
"""Maximum number of tenants to remember; those without a task for the longest time are forgotten first."""


class LanePosition(NamedTuple):
    """A position in a lane, in the database's own form; the next claim starts after it."""

    run_at: Any
    id: int


class Advance(NamedTuple):
    """How far the claims from a lane have come.

    Args:
        since: when `next` was the last position, in monotonic seconds.
        old: the position from which claims continue. It was the last one at least POSITION_LAG ago.
        next: the next old position.
        new: the last position.
    """

    since: float
    old: LanePosition
    next: LanePosition
    new: LanePosition

    @classmethod
    def at(cls, position: LanePosition) -> "Advance":
        """A lane whose first waiting task follows a position."""
        return cls(0.0, position, position, position)

    def on(self, position: LanePosition, now: float) -> "Advance":
        """Move on to another position; the last one never moves back."""
        new = max(self.new, position)
        return Advance(now, self.next, new, new) if now - self.since >= POSITION_LAG else self._replace(new=new)


class Visit(NamedTuple):
    """A tenant with waiting tasks in a lane, and the first of these.

    Args:
        due: True if its time has come.
        first: its time, or that of the visit if its time has not come, and its id.
    """

    tenant: str
    due: bool
    first: LanePosition


class KnownTenant(NamedTuple):
    """A tenant, and the position from which claims continue."""

    tenant: str
    old: LanePosition


class TenantPositions:
    """The positions that claims have passed in a lane, by tenant.

    A tenant at its limit leaves tasks behind while others go on, so that the lane has no position in common.

    Args:
        start: the position before every task.
    """

    def __init__(self, start: LanePosition) -> None:
        self._start = start
        self._advances: dict[str, Advance] = {}
        """By the time of the last visit, the latest last."""
        self._tenants: list[str] = []
        """The same tenants, sorted."""
        self.cursor = ""
        """The last tenant of the last survey."""

    def meet(self, visits: Iterable[Visit], now: float) -> None:
        """Record the first waiting task of each visited tenant; `now` in monotonic seconds."""
        for tenant, _, first in visits:
            before = LanePosition(first.run_at, first.id - 1)
            passed = self._advances.pop(tenant, None)
            if passed is None:
                insort(self._tenants, tenant)
                self._advances[tenant] = Advance(now, self._start, before, before)
            else:
                self._advances[tenant] = Advance.at(before) if before < passed.old else passed.on(before, now)
        for tenant in list(islice(self._advances, max(0, len(self._advances) - MOST_TENANTS))):
            del self._advances[tenant], self._tenants[bisect_left(self._tenants, tenant)]

    def advance(self, tenant: str, last: LanePosition, now: float) -> None:
        """Move a tenant past the last task that a claim took from it; `now` in monotonic seconds."""
        if (passed := self._advances.get(tenant)) is not None:
            self._advances[tenant] = passed.on(last, now)

    def following(self, tenant: str, most: int, now: float) -> list[KnownTenant]:
        """The known tenants that follow a tenant, in their order.

        Args:
            tenant: empty for the first ones.
            most: maximum number of tenants.
            now: monotonic seconds.
        """
        start = bisect_right(self._tenants, tenant)
        return [KnownTenant(name, self._old(name, now)) for name in self._tenants[start : start + most]]

    def has_after(self, tenant: str) -> bool:
        """True if a tenant is known that follows a tenant."""
        return bool(self._tenants) and self._tenants[-1] > tenant

    def _old(self, tenant: str, now: float) -> LanePosition:
        """The old position, which moves on with the time too: a tenant may have no further tasks."""
        passed = self._advances[tenant]
        self._advances[tenant] = passed = passed.on(passed.new, now)
        return passed.old
