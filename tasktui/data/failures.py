"""The figures of the screen Failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.breakers import BreakerRow, breakers
from runner.queries.contrast import Contrast, contrast
from runner.queries.failures import (
    FailureChange,
    Failures,
    GroupTasks,
    Shares,
    beginnings,
    changes_of,
    deploys,
    failures,
    group_tasks,
    shares,
    trends,
    unread_share,
)
from runner.queries.registries import Pause, pauses
from runner.queries.reports import (
    MinuteFlow,
)
from runner.queries.reports import per_minute as read_per_minute
from tasktui.data.background import HOUR

SPANS = (timedelta(hours=1), timedelta(days=1), timedelta(days=7), timedelta(days=30))
"""The spans of the failure groups."""


LONGEST_BY_MINUTE = timedelta(days=1)
"""The longest span whose plot reads the counts per minute."""


MOST_LATEST = 20
"""Latest tasks of a failure group."""


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The failure groups at one moment.

    Args:
        since: the begin of the span.
        groups: the groups, largest first.
        trends: attempts of each group over the span.
        changes: the rate of each group against its usual one.
        unread: the share of the span, at its beginning, whose attempts were not read.
        flows: counts per minute over the span; empty for a longer one than LONGEST_BY_MINUTE.
        versions: when the first runner of each version started, the oldest version first.
    """

    at: datetime
    since: datetime
    groups: tuple[Failures, ...]
    trends: Mapping[str, Sequence[int]]
    unread: float
    flows: tuple[MinuteFlow, ...]
    versions: Mapping[str, datetime]
    paused: Mapping[str, Pause]
    breakers: Sequence[BreakerRow]
    changes: Mapping[str, FailureChange] = field(default_factory=dict)


class GroupDetail(NamedTuple):
    """The attempts of a failure group by place, and its tasks as they are now."""

    shares: Shares
    tasks: GroupTasks


async def failure_groups(tx: Transaction, span: timedelta) -> FailureGroups:
    """Read the failure groups of a span that ends now."""
    at = await clock(tx)
    since = _begin(at, span)
    until = at + HOUR if span <= LONGEST_BY_MINUTE else since
    groups, flows, counts, paused, opened, versions = await tx.gather(
        failures(tx, since=since),
        read_per_minute(tx, since, until),
        trends(tx, since, at),
        pauses(tx),
        breakers(tx, only_open=True),
        deploys(tx),
    )
    began = await beginnings(tx, [group.fingerprint for group in groups])
    changes = changes_of(groups, counts, began, since, at)
    unread = unread_share(counts)
    return FailureGroups(
        at, since, tuple(groups), counts, unread, tuple(flows), versions, paused.queues, opened, changes
    )


def _begin(at: datetime, span: timedelta) -> datetime:
    """The begin of a span, as filters write it."""
    return at.replace(microsecond=0) - span


async def largest_in_queue(tx: Transaction, queue: str, span: timedelta) -> str:
    """Read the fingerprint of the largest failure group of a queue in a span that ends now; empty without one."""
    of_queue = Filter((Term("queue", Operator.EQ, queue),))
    groups = await failures(tx, of_queue, _begin(await clock(tx), span), limit=1)
    return groups[0].fingerprint if groups else ""


async def group_detail(tx: Transaction, fingerprint: str, span: timedelta) -> GroupDetail:
    """Read the shares and the tasks of a failure group in a span that ends now."""
    since = _begin(await clock(tx), span)
    return GroupDetail(
        *await tx.gather(shares(tx, fingerprint, since), group_tasks(tx, fingerprint, since, MOST_LATEST))
    )


async def group_contrast(tx: Transaction, fingerprint: str, handler: str, span: timedelta) -> Contrast:
    """Compare a failure group in a span that ends now with successes of its handler."""
    return await contrast(tx, fingerprint, handler, _begin(await clock(tx), span))
