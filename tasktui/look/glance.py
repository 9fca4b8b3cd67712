"""Glance: everything that the overview tells of one moment."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.store import observe
from runner.store.observe import Count, Flow, MinuteFlow, Pause, QueueCounts, RunnerRow, Total, UnknownHandler, Waiting
from runner.store.transaction import Transaction

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
LATELY = timedelta(minutes=10)

SHALLOW, SHALLOWEST = 1_000, 200
"""What waits in a queue is counted so far at each look, and so far where many queues are full."""

MOST_WALKED = 5_000
"""Full queues are counted to so many tasks at each look, all of them together: that takes longer than all the rest."""

UNSETTLED = timedelta(minutes=3)
"""Minutes that lie further back are read once a minute only: now and then a runner writes of them late."""

MOST_SLOW = 3
"""Queues that fall behind of which it is asked what has become slow, and that fail of which it is asked why."""

FEW, MOST_PART = 10, 0.5
"""A queue fails where more attempts than these few failed lately, and they were at least this part of all."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The handler that takes most of a queue's time.

    Args:
        handler: its name.
        p95: seconds that 95 of 100 attempts did not exceed in the last ten minutes; None when not known.
        before: the same in the hour before; None when not known.
    """

    handler: str
    p95: float | None
    before: float | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is asked now and then only.

    Args:
        deaths: what the tasks that died in the last hour died of, the most frequent first.
        slow: the slowest handler of queues that fall behind.
        errors: what attempts of failing queues failed with most often.
    """

    deaths: Mapping[str, int] = field(default_factory=dict)
    slow: Mapping[str, Slowdown] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Glance:
    """Everything of one moment.

    Args:
        at: the database's time.
        queues: by name.
        pulses: what happened in each minute of the last hour, by queue.
        runners: all that are registered.
        unknown: handlers that nobody takes.
        handlers: pauses of handlers.
        trouble: see Trouble.
        whole: when the last hour was read as a whole.
        flows: the minutes of the last day, when they were asked for; else empty.
    """

    at: datetime
    queues: tuple[QueueCounts, ...]
    pulses: Mapping[str, Sequence[MinuteFlow]]
    runners: tuple[RunnerRow, ...]
    unknown: tuple[UnknownHandler, ...]
    handlers: Mapping[str, Pause]
    whole: datetime
    trouble: Trouble = Trouble()
    flows: tuple[MinuteFlow, ...] = ()

    @property
    def hour(self) -> list[MinuteFlow]:
        """The minutes of the last hour, of all queues; a minute may stand there several times."""
        return [flow for flows in self.pulses.values() for flow in flows]

    @property
    def failing(self) -> dict[str, tuple[int, int]]:
        """The queues in which most attempts failed in the last ten minutes: how many did, and how many there were.

        One is left out in whose last minute most went well: what was wrong there is over.
        """
        found = {}
        for queue, flows in self.pulses.items():
            lately = sorted((flow for flow in flows if flow.minute > self.at - LATELY), key=lambda flow: flow.minute)
            failed = sum(flow.flow.failed for flow in lately)
            attempts = failed + sum(flow.flow.succeeded for flow in lately)
            if failed > FEW and failed >= attempts * MOST_PART and lately[-1].flow.failed >= lately[-1].flow.succeeded:
                found[queue] = (failed, attempts)
        return found


async def glance(tx: Transaction, last: Glance | None = None) -> Glance:
    """Read what changes from second to second.

    Args:
        tx: an open transaction.
        last: what was seen last, of which the minutes that lie behind are taken; None to read all.
    """
    at = await observe.clock(tx)
    kept = last if last is not None and not is_stale(last, at) else None
    since = at - (HOUR if kept is None else UNSETTLED)
    pulses = await observe.pulses(tx, since)
    return Glance(
        at=at,
        queues=tuple(await observe.counts(tx, depth=depth(last))),
        pulses=pulses if kept is None else joined(kept.pulses, pulses, at - HOUR, since),
        whole=at if kept is None else kept.whole,
        runners=tuple(await observe.runners(tx)),
        unknown=tuple(await observe.unknown_handlers(tx)),
        handlers=(await observe.pauses(tx)).handlers,
    )


def is_stale(last: Glance, at: datetime) -> bool:
    """Tell whether the last hour has to be read as a whole again; also where the clock was set back."""
    return not timedelta(0) <= at - last.whole < MINUTE


def depth(last: Glance | None) -> int:
    """How far to count what waits in a queue, by how many queues were full when they were counted last."""
    full = sum(queue.cut for queue in last.queues) if last is not None else 0
    return min(SHALLOW, max(SHALLOWEST, MOST_WALKED // max(full, 1)))


def joined(
    kept: Mapping[str, Sequence[MinuteFlow]],
    fresh: Mapping[str, Sequence[MinuteFlow]],
    begin: datetime,
    since: datetime,
) -> dict[str, list[MinuteFlow]]:
    """Put minutes that were read anew behind those that were kept.

    Args:
        kept: by queue.
        fresh: by queue.
        begin: minutes before it are left out.
        since: from it on minutes are fresh.
    """
    older = {queue: [flow for flow in flows if begin <= flow.minute < since] for queue, flows in kept.items()}
    return {queue: [*older.get(queue, ()), *fresh.get(queue, ())] for queue in {**older, **fresh}}


def deepened(queues: Sequence[QueueCounts], deep: Mapping[str, Waiting]) -> tuple[QueueCounts, ...]:
    """Put in what was counted further, a while ago, where counting stopped early.

    Args:
        queues: as they are counted at each look.
        deep: what waits, by queue.
    """
    return tuple(_deepened(queue, deep.get(queue.queue, Waiting())) for queue in queues)


def _deepened(queue: QueueCounts, deep: Waiting) -> QueueCounts:
    return replace(
        queue,
        ready=_further(queue.ready, deep.ready),
        scheduled=_further(queue.scheduled, deep.scheduled),
        retrying=_further(queue.retrying, deep.retrying),
    )


def _further(now: Count, before: Count) -> Count:
    return before if now.more and before.number > now.number else now


async def trouble(tx: Transaction, behind: Sequence[str], failing: Sequence[str] = ()) -> Trouble:
    """Look into what is wrong.

    Args:
        tx: an open transaction.
        behind: queues that fall behind.
        failing: queues in which most attempts fail.
    """
    at = await observe.clock(tx)
    deaths: Counter[str] = Counter()
    for group in await observe.failures(tx, Filter(), at - HOUR):
        deaths[group.error_type] += group.buried
    slow = {}
    for queue in behind[:MOST_SLOW]:
        lately = await observe.totals(tx, at - LATELY, at + MINUTE, queue)
        if lately:
            worst = max(lately, key=_time)
            before = await observe.totals(tx, at - LATELY - HOUR, at - LATELY, queue, worst.handler)
            slow[queue] = Slowdown(worst.handler, worst.p95, before[0].p95 if before else None)
    errors = {}
    for queue in failing[:MOST_SLOW]:
        for group in await observe.failures(tx, Filter((Term("queue", Operator.EQ, queue),)), at - LATELY, limit=1):
            errors[queue] = group.error_type
    return Trouble({error: number for error, number in deaths.most_common() if number}, slow, errors)


async def day(tx: Transaction) -> tuple[MinuteFlow, ...]:
    """Read the minutes of the last day."""
    at = await observe.clock(tx)
    return tuple(await observe.per_minute(tx, at - timedelta(days=1), at + MINUTE))


def per_minute(
    flows: Sequence[MinuteFlow], at: datetime, number: Callable[[Flow], int], minutes: int = 60
) -> list[float]:
    """One value for each of the last minutes with the present one, those without anything being zero.

    Args:
        flows: minutes in any order.
        at: the present.
        number: what to tell of a minute.
        minutes: how many.
    """
    last = at.replace(second=0, microsecond=0)
    found: Counter[datetime] = Counter()
    for flow in flows:
        found[flow.minute] += number(flow.flow)
    return [float(found[last - back * MINUTE]) for back in range(minutes - 1, -1, -1)]


def _time(total: Total) -> float:
    """About the seconds that all attempts took together."""
    return (total.p50 or 0.0) * sum(total.durations)
