"""counts: the number of tasks of each queue by state, and its rates."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import Tables, is_state
from runner.db.transaction import Transaction, clock
from runner.db.types import Instant
from runner.model.task import State
from runner.policy.lanes import Head, Lane
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.queries import counting
from runner.queries.counting import Count, RunningCounts, WaitingCounts, total_of
from runner.queries.registries import MOST, Pause, RegistryEntry, changed_entries, registry_entries
from runner.queries.reports import Flow, flows
from runner.queries.rows import as_text
from runner.store.claim.survey import survey

STEPS = (1_000, 10_000)
"""The number of newest tasks to read; the second step runs only if all tasks of the first are newer than the period."""


class Uncounted(NamedTuple):
    """Tasks that the minute statistics do not count as submitted yet, because their first run has not ended.

    Args:
        work_keys: their number by (queue, handler).
        more: True if there may be more.
    """

    work_keys: Mapping[tuple[str, str], int]
    more: bool

    def of(self, queue: str) -> int:
        """Their number in one queue."""
        return sum(number for work_key, number in self.work_keys.items() if work_key[0] == queue)


async def uncounted(tx: Transaction, since: datetime, until: datetime, steps: tuple[int, ...] = STEPS) -> Uncounted:
    """Count the tasks of a period that the minute statistics do not count as submitted yet.

    Ids grow with the time of the submit, so a walk backwards along the ids finds the tasks and stops at the first one
    that is older than the period.

    Args:
        tx: an open transaction; each step executes one statement.
        since: the start of the period, aware.
        until: the end of the period (exclusive), aware.
        steps: maximum number of tasks to read, first and last.
    """
    for limit in steps:
        rows = await tx.rows(_newest(tx.tables, limit), {"since": since, "until": until})
        more = sum(row[3] for row in rows) >= limit and not any(row[4] for row in rows)
        if not more:
            break
    return Uncounted({(as_text(row[0]), as_text(row[1])): int(row[2]) for row in rows if row[2]}, more)


@lru_cache
def _newest(tables: Tables, limit: int) -> sa.Select[Any]:
    """By queue and handler: uncounted tasks of the period, all tasks, and whether one is older than the period."""
    task, since, until = tables.task.c, sa.bindparam("since", type_=Instant), sa.bindparam("until", type_=Instant)
    is_uncounted = (task.fence == 0) | ((task.fence == 1) & is_state(task.state, State.RUNNING))
    columns = (task.queue, task.handler, task.submitted_at, is_uncounted.label("is_uncounted"))
    window = sa.select(*columns).order_by(task.id.desc()).limit(limit).subquery()
    inside = (window.c.submitted_at >= since) & (window.c.submitted_at < until) & window.c.is_uncounted
    count, older = sa.case((inside, 1), else_=0), sa.case((window.c.submitted_at < since, 1), else_=0)
    groups = (window.c.queue, window.c.handler)
    return sa.select(*groups, sa.func.sum(count), sa.func.count(), sa.func.max(older)).group_by(*groups)


CAP = 10_000

MINUTE = 60.0
ONE_MINUTE = timedelta(minutes=1)
SOON = 10.0
"""A backlog that is processed within this many seconds counts as none."""


class QueueCounts(NamedTuple):
    """The numbers of one queue.

    Args:
        ready: due tasks.
        scheduled: future tasks that were never attempted.
        retrying: future tasks that were attempted before.
        blocked: tasks that wait for dependencies.
        running: tasks on live runners.
        lost: tasks on runners whose lease has expired.
        dead: tasks that failed permanently.
        oldest: seconds since the first ready task became due; None if none is ready.
        arrived: tasks submitted in the last full minute.
        minute: the flow of the last full minute.
        hour: the flow of the last hour.
        paused: the pause in force; None if the queue is not paused.
        limits: its limits over all runners.
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
    paused: Pause | None
    limits: SharedLimits = UNLIMITED

    @property
    def is_capped(self) -> bool:
        """True if there may be more waiting tasks than were counted."""
        return self.ready.more or self.scheduled.more or self.retrying.more

    @property
    def empty_in(self) -> float | None:
        """Seconds until no task is ready, at the rates of the last full minute.

        Infinite if the backlog does not shrink; None if no task is ready or the queue is paused.
        """
        return None if self.paused else time_until_empty(self.ready.number, self.arrived.number, self.minute.finished)

    @property
    def falls_behind(self) -> bool:
        """True if more tasks arrive than end, and the backlog is worth more than a minute of work."""
        late = self.oldest is not None and self.oldest > MINUTE
        return late and not self.paused and self.ready.number > self.minute.finished < self.arrived.number


def time_until_empty(ready: int, arrived: int, finished: int) -> float | None:
    """Estimate the time until a backlog is processed.

    Args:
        ready: the tasks in the backlog.
        arrived: tasks that arrive per minute.
        finished: tasks that end per minute.

    Returns:
        Seconds; infinite if the backlog does not shrink; None without a backlog.
    """
    if not ready:
        return None
    # A queue that starts everything within seconds is not behind, even if more tasks arrived by chance in this minute.
    if finished and ready * MINUTE / finished <= SOON:
        return ready * MINUTE / finished
    return ready * MINUTE / (finished - arrived) if finished > arrived else inf


MOST_QUEUES = 1_000
"""Maximum number of queues in a list."""

QUEUES_PER_STATEMENT = 100


class QueueSurvey(NamedTuple):
    """The queues, and those of their figures that need no list of lanes or queues.

    Args:
        heads: the lanes of the queues with waiting tasks.
    """

    names: frozenset[str]
    heads: Sequence[Head]
    running: Mapping[str, RunningCounts]
    blocked: Mapping[str, Count]
    dead: Mapping[str, Count]
    minute: Mapping[str, Flow]
    hour: Mapping[str, Flow]
    registry: Mapping[str, RegistryEntry]


async def counts(
    tx: Transaction, cap: int = CAP, depth: int | None = None, most: int = MOST_QUEUES
) -> list[QueueCounts]:
    """Count the tasks of each queue by state, with the queue's rates.

    Every count walks along an index and stops at the cap: the cost does not grow with the number of tasks, and beyond
    `most` queues hardly with their number. Only the statistics of the last hour are read completely.

    Args:
        tx: an open transaction; twelve statements are executed, and more with many queues.
        cap: maximum number of tasks to count per number; for running and blocked tasks, over all queues.
        depth: maximum number of waiting tasks to count, the slowest part on a large backlog; None for `cap`.
        most: maximum number of queues.

    Returns:
        Every queue that has tasks, is registered, or was active in the last hour, by name. If there are more than
        `most`: queues that are paused or limited, have lost tasks or failed attempts, and the first by name.
    """
    found = await (tx.once(queue_survey) if (cap, most) == (CAP, MOST_QUEUES) else queue_survey(tx, cap, most))
    return await _counted(tx, found, depth or cap)


async def named_counts(tx: Transaction, matches: Callable[[str], bool], words: Iterable[str] = ()) -> list[QueueCounts]:
    """Count the tasks of the queues whose names match, also of those that `counts` does not list.

    Args:
        matches: the condition on a name.
        words: names of queues that are counted even if nothing but their last hour is known.

    Returns:
        The first MOST_QUEUES by name.
    """
    heads, running, blocked, dead, (_, hour), registry = await tx.gather(
        tx.once(counting.lane_heads),
        counting.running(tx, CAP),
        counting.blocked(tx, CAP),
        counting.dead_queues(tx, counting.MOST_LANES),
        flows(tx, MOST_QUEUES),
        _registered(tx),
    )
    known = {*(lane.queue for lane in _lanes(heads)), *running, *blocked, *dead, *hour, *registry}
    names = sorted(filter(matches, known.union(words)))[:MOST_QUEUES]
    heads, dead_counts, (minute, hour), registry = await tx.gather(
        survey(tx, most=counting.MOST_LANES, within=names),
        counting.dead_of(tx, names, CAP),
        flows(tx, only=names),
        registry_entries(tx, tx.tables.queue, names),
    )
    names = [name for name in names if name in known or name in hour or name in registry]
    found = QueueSurvey(frozenset(names), heads, running, blocked, dead_counts, minute, hour, registry)
    return await _counted(tx, found, CAP)


async def _counted(tx: Transaction, found: QueueSurvey, depth: int) -> list[QueueCounts]:
    waiting_counts, uncounted_tasks = await tx.gather(_waiting(tx, found.heads, depth), _uncounted(tx))
    oldest = _oldest(found.heads)
    queues = []
    for name in sorted(found.names):
        entry, flow = found.registry.get(name), found.minute.get(name, Flow())
        queues.append(
            QueueCounts(
                name,
                *waiting_counts.get(name, WaitingCounts()),
                found.blocked.get(name, Count()),
                *found.running.get(name, RunningCounts()),
                dead=found.dead.get(name, Count()),
                oldest=oldest.get(name),
                arrived=Count(flow.submitted + uncounted_tasks.of(name), uncounted_tasks.more),
                minute=flow,
                hour=found.hour.get(name, Flow()),
                paused=entry.pause if entry else None,
                limits=entry.limits if entry else UNLIMITED,
            )
        )
    return queues


async def queue_survey(tx: Transaction, cap: int = CAP, most: int = MOST_QUEUES) -> QueueSurvey:
    """Read the queues; see `counts`."""
    heads, running, blocked, dead, (minute, hour), registry = await tx.gather(
        tx.once(counting.lane_heads),
        counting.running(tx, cap),
        counting.blocked(tx, cap),
        counting.dead(tx, cap, most),
        flows(tx, most),
        _registered(tx),
    )
    heads = _first_heads(heads, most)
    names: set[str] = {*(head.lane.queue for head in heads), *running, *blocked, *dead, *hour, *registry}
    if len(names) >= most:  # each of the parts may have stopped before some of these queues
        rank = partial(_rank, urgent=_urgent(running, registry), hour=hour, oldest=_oldest(heads))
        names = set(heapq.nsmallest(most, names, key=rank))
        heads = await survey(tx, most=counting.MOST_LANES, within=sorted(names))
        dead |= await counting.dead_of(tx, sorted(names - dead.keys()), cap)
        if quiet := sorted(names - hour.keys()):
            rest = await flows(tx, only=quiet)
            minute, hour = minute | rest[0], hour | rest[1]
    return QueueSurvey(frozenset(names), heads, running, blocked, dead, minute, hour, registry)


async def _uncounted(tx: Transaction) -> Uncounted:
    """The tasks of the last full minute that the minute statistics do not count as submitted yet."""
    this_minute = (await clock(tx)).replace(second=0, microsecond=0)
    return await uncounted(tx, this_minute - ONE_MINUTE, this_minute)


async def _registered(tx: Transaction) -> dict[str, RegistryEntry]:
    """The first registered queues, and those with a pause or limits."""
    first = await registry_entries(tx, tx.tables.queue)
    return first | await changed_entries(tx, tx.tables.queue) if len(first) >= MOST else first


def _urgent(running: Mapping[str, RunningCounts], registry: Mapping[str, RegistryEntry]) -> set[str]:
    """The queues with lost tasks, pauses or limits."""
    lost = {name for name, each in running.items() if each.lost.number}
    return lost | {name for name, entry in registry.items() if entry.is_changed}


def _rank(
    name: str, urgent: Collection[str], hour: Mapping[str, Flow], oldest: Mapping[str, float]
) -> tuple[bool, int, float, str]:
    """The place of a queue in a list that does not have room for all."""
    return name not in urgent, -hour[name].failed if name in hour else 0, -oldest.get(name, 0.0), name


async def waiting(tx: Transaction, cap: int = CAP, most: int = MOST_QUEUES) -> dict[str, WaitingCounts]:
    """Count the waiting tasks of each queue: the slowest part of `counts` on a large backlog.

    Args:
        cap: maximum number of tasks to count per number.
        most: maximum number of queues, by name.
    """
    return await _waiting(tx, _first_heads(await tx.once(counting.lane_heads), most), cap)


async def _waiting(tx: Transaction, heads: Sequence[Head], cap: int) -> dict[str, WaitingCounts]:
    """Count the tasks of some queues per statement, because each statement compares each queue with each lane."""
    by_queue: dict[str, list[Lane]] = defaultdict(list)
    for lane in _lanes(heads):
        by_queue[lane.queue].append(lane)
    counts: dict[str, WaitingCounts] = {}
    every = list(by_queue)
    chunks = [every[begin : begin + QUEUES_PER_STATEMENT] for begin in range(0, len(every), QUEUES_PER_STATEMENT)]
    lanes = ([lane for name in names for lane in by_queue[name]] for names in chunks)
    for part in await tx.gather(*(counting.waiting(tx, each, cap) for each in lanes)):
        counts |= part
    if len(heads) < counting.MOST_LANES:
        return counts
    return {name: WaitingCounts(*(count._replace(more=True) for count in each)) for name, each in counts.items()}


def _first_heads(heads: Iterable[Head], most: int) -> list[Head]:
    """The lanes of the first queues by name whose names are text."""
    heads = [head for head in heads if isinstance(head.lane.queue, str)]
    first = {name for name, _ in zip(dict.fromkeys(head.lane.queue for head in heads), range(most), strict=False)}
    return [head for head in heads if head.lane.queue in first]


def _lanes(heads: Iterable[Head]) -> list[Lane]:
    """The lanes whose names are text; SQLite also stores other types."""
    return [head.lane for head in heads if isinstance(head.lane.queue, str) and isinstance(head.lane.handler, str)]


def _oldest(heads: Iterable[Head]) -> dict[str, float]:
    ages: dict[str, float] = {}
    for head in heads:
        if head.wait <= 0:
            ages[head.lane.queue] = max(ages.get(head.lane.queue, 0.0), -head.wait)
    return ages


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
    names = [name for name in QueueTotals._fields if name not in ("oldest", "finished", "failed")]
    return QueueTotals(
        **{name: total(getattr(queue, name) for queue in queues) for name in names},
        oldest=max((queue.oldest for queue in queues if queue.oldest is not None), default=None),
        finished=sum(flow.finished for flow in minutes),
        failed=sum(flow.failed for flow in minutes),
    )
