"""The figures of the screen Failures."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.shard import ShardId
from runner.queries.breakers import BreakerRow, breakers
from runner.queries.contrast import Contrast, contrast
from runner.queries.counting import Count
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
from runner.queries.shard_failures import counts_by_shard, merged_changes, merged_failures
from runner.text.times import EARLIEST
from tasktui.data.background import HOUR
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session

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
        shards: the number of attempts of each group in each shard; empty for one database.
        silent: the error of each shard without an answer.
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
    shards: Mapping[str, Mapping[str, Count]] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


class GroupDetail(NamedTuple):
    """The attempts of a failure group by place, and its tasks as they are now."""

    shares: Shares
    tasks: GroupTasks
    at: datetime


DETAIL_EVERY, CONTRAST_EVERY = 5.0, 60.0
"""Seconds to cache the shares and the tasks of a group, and its comparison with successes."""


class GroupsReader:
    """Reads the failure groups of a database again and again."""

    def __init__(self) -> None:
        self._details = TtlCache[GroupDetail](DETAIL_EVERY)
        self._contrasts = TtlCache[Contrast](CONTRAST_EVERY)

    async def read(
        self, session: Session, span: timedelta, fingerprint: str | None
    ) -> tuple[FailureGroups, GroupDetail | None]:
        """Read the groups, and the shares and the tasks of one; None for none."""

        async def read_all(tx: Transaction) -> tuple[FailureGroups, GroupDetail | None]:
            if fingerprint is None:
                return await failure_groups(tx, span), None
            ask = partial(group_detail, tx, fingerprint, span)
            details = self._details.get((fingerprint, span), ask, session.distance)
            return await tx.gather(failure_groups(tx, span), details)

        return await session.read(read_all)

    async def compare(self, session: Session, span: timedelta, group: Failures) -> Contrast:
        """Compare a group with successes of its handler."""
        ask = partial(session.read, group_contrast, group.fingerprint, group.handler, span)
        return await self._contrasts.get((group.fingerprint, span), ask, session.distance)


def merged_groups(parts: Mapping[str, FailureGroups], silent: Mapping[str, str]) -> FailureGroups:
    """The failure groups of all shards, each cause as one group.

    Args:
        parts: the groups of each shard that answered, by its name.
        silent: the error of each other one.
    """
    each = [*parts.values()]
    groups = {name: part.groups for name, part in parts.items()}
    trends = dict[str, Sequence[int]]()
    for part in each:
        for key, trend in part.trends.items():
            trends[key] = [sum(pair) for pair in zip(trends[key], trend, strict=True)] if key in trends else trend
    versions = dict[str, datetime]()
    for name, start in sorted((item for part in each for item in part.versions.items()), key=itemgetter(1)):
        versions.setdefault(name, start)
    return FailureGroups(
        max((part.at for part in each), default=EARLIEST),
        min((part.since for part in each), default=EARLIEST),
        tuple(merged_failures(groups)),
        trends,
        max((part.unread for part in each), default=0.0),
        tuple(flow for part in each for flow in part.flows),
        versions,
        {queue: pause for part in each for queue, pause in part.paused.items()},
        [row for part in each for row in part.breakers],
        merged_changes(part.changes for part in each),
        counts_by_shard(groups),
        silent,
    )


def merged_detail(parts: Mapping[str, GroupDetail | None]) -> GroupDetail | None:
    """The shares and the tasks of a group in all shards; the ids have their shard."""
    details = {name: each for name, each in parts.items() if each is not None}
    if not details:
        return None

    def added(get: Callable[[GroupDetail], Mapping[str, int]]) -> dict[str, int]:
        total = Counter[str]()
        for each in details.values():
            total.update(get(each))
        return dict(total)

    tasks = [each.tasks for each in details.values()]
    latest = [
        replace(one, task=one.task._replace(id=ShardId(name, one.task.id)))
        for name, each in details.items()
        for one in each.tasks.latest
    ]
    latest.sort(key=lambda one: one.failed_at or EARLIEST, reverse=True)
    states, soon = added(lambda each: each.tasks.states), sum(each.soon for each in tasks)
    return GroupDetail(
        Shares(
            added(lambda each: each.shares.versions),
            added(lambda each: each.shares.hosts),
            added(lambda each: each.shares.numbers),
        ),
        GroupTasks(states, soon, any(each.more for each in tasks), tuple(latest[:MOST_LATEST])),
        min(each.at for each in details.values()),
    )


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
        deploys(tx, since),
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
    at = await clock(tx)
    since = _begin(at, span)
    read = await tx.gather(shares(tx, fingerprint, since), group_tasks(tx, fingerprint, since, MOST_LATEST))
    return GroupDetail(*read, at)


async def group_contrast(tx: Transaction, fingerprint: str, handler: str, span: timedelta) -> Contrast:
    """Compare a failure group in a span that ends now with successes of its handler."""
    return await contrast(tx, fingerprint, handler, _begin(await clock(tx), span))
