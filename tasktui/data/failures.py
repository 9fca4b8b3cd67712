"""The figures of the screen Failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from runner.db.transaction import Transaction, clock
from runner.queries.breakers import BreakerRow, breakers
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
    since = at.replace(microsecond=0) - span  # as filters write it
    groups = tuple(await failures(tx, since=since))
    flows = tuple(await read_per_minute(tx, since, at + HOUR)) if span <= LONGEST_BY_MINUTE else ()
    counts = await trends(tx, since, at) if groups else {}
    paused, opened = (await pauses(tx)).queues, await breakers(tx, only_open=True)
    versions = await deploys(tx)
    began = await beginnings(tx, [group.fingerprint for group in groups])
    changes = changes_of(groups, counts, began, since, at)
    return FailureGroups(at, since, groups, counts, unread_share(counts), flows, versions, paused, opened, changes)


async def group_detail(tx: Transaction, fingerprint: str, since: datetime) -> GroupDetail:
    """Read the shares and the tasks of a failure group."""
    tasks = await group_tasks(tx, fingerprint, since, MOST_LATEST)
    return GroupDetail(await shares(tx, fingerprint, since), tasks)
