"""overview: the figures of one moment, which the first screen shows and the alerts judge."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.breakers import BreakerRow, breakers
from runner.queries.counting import Count, WaitingCounts, total_of
from runner.queries.counts import MOST_QUEUES, QueueCounts, counts, queue_survey, waiting
from runner.queries.registries import Pause, paused_handlers
from runner.queries.reports import OTHERS, Flow, MinuteFlow
from runner.queries.reports import per_minute as read_per_minute
from runner.queries.reports import pulses as read_pulses
from runner.queries.runners import HandlerWithoutRunner, RunnerRow, busy_slots, unknown_handlers
from runner.queries.runners import runners as read_runners
from runner.text import formatting

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)

SHALLOW, SHALLOWEST = 1_000, 200
"""Waiting tasks of a queue are counted up to the first number per query, up to the second if many queues are full."""

MAX_COUNTED = 5_000
"""Tasks counted per query in all full queues together; these counts take longer than all other queries."""

UNSETTLED = timedelta(minutes=3)
"""Older minutes are read only once per minute, because a runner may write them late."""

MAX_DIAGNOSED = 3
"""Maximum number of queues to diagnose: of those falling behind, and of those failing."""

FEW, MIN_SHARE = 10, 0.5
"""Most attempts of a queue or a handler fail if more than FEW failed recently, and at least MIN_SHARE of them all."""

RECENT = timedelta(minutes=10)
"""The period of the attempts that decide whether a queue or a handler is failing."""

NEGLECTED = 60.0
"""Seconds since a task became due from which a handler without a runner is broken: a deploy takes a while."""


class Slowdown(NamedTuple):
    """The handler that takes most of a queue's time.

    Args:
        p95: 95th percentile of the duration in the last ten minutes, in seconds; None if unknown.
        before: the same for the hour before; None if unknown.
    """

    handler: str
    p95: float | None
    before: float | None


class Diagnoses(NamedTuple):
    """Diagnoses that are too expensive for every refresh.

    Args:
        slow: the slowest handler of each queue that is falling behind.
        errors: the most frequent error type of each failing queue.
    """

    slow: Mapping[str, Slowdown] = {}
    errors: Mapping[str, str] = {}


class Overview(NamedTuple):
    """The figures of one moment.

    Args:
        pulses: minutes of the last hour, by queue; those of all queues that are not listed as OTHERS.
        unknown: handlers that no live runner takes.
        breakers: open breakers of handlers.
        whole: time when the last hour was last read completely.
        slots: running tasks of each runner by handler, most first.
        waits: mean seconds from the due time to the start, by queue and minute of the last hour; empty at first.
        flows: minutes of the last day, on request; else empty.
    """

    at: datetime
    queues: tuple[QueueCounts, ...]
    pulses: Mapping[str, Sequence[MinuteFlow]]
    runners: tuple[RunnerRow, ...]
    unknown: tuple[HandlerWithoutRunner, ...]
    handlers: Mapping[str, Pause]
    breakers: Sequence[BreakerRow]
    whole: datetime
    diagnoses: Diagnoses = Diagnoses()
    flows: tuple[MinuteFlow, ...] = ()
    slots: Mapping[int, Mapping[str, int]] = {}
    waits: Mapping[str, Mapping[datetime, float]] = {}

    def last_minute(self, minutes: int) -> datetime:
        """The last minute of a plot: the last full one, or this one while only it has data."""
        *earlier, now = per_minute(self.flows or self.hour, self.at, lambda flow: flow.finished, minutes + 1)
        return self.at if now and not any(earlier) else self.at - MINUTE

    @property
    def alive(self) -> tuple[RunnerRow, ...]:
        """The runners whose lease is valid."""
        return tuple(runner for runner in self.runners if runner.alive)

    @property
    def deploys(self) -> dict[str, datetime]:
        """When the first registered runner of each version started, the oldest version first."""
        first: dict[str, datetime] = {}
        for at, version in sorted((each.started_at, each.version) for each in self.runners if each.started_at):
            first.setdefault(version, at)
        return first

    @property
    def hides_queues(self) -> bool:
        """True if there may be more queues than are listed."""
        return len(self.queues) == MOST_QUEUES

    def ready(self, queues: Iterable[QueueCounts]) -> Count:
        """The ready tasks of some listed queues: a lower bound if there may be other queues."""
        number, more = total_of(queue.ready for queue in queues)
        return Count(number, more or self.hides_queues)

    @property
    def hour(self) -> list[MinuteFlow]:
        """The minutes of the last hour, of all queues; a minute may occur several times."""
        return [flow for flows in self.pulses.values() for flow in flows]

    def waits_of(self, queue: QueueCounts) -> list[float]:
        """Seconds that the tasks of a queue waited for their start, in each full minute of the last hour.

        The first ready task has not started: its wait until each minute counts, even if no attempt ended there.
        """
        end, oldest = self.at.replace(second=0, microsecond=0), queue.oldest or 0.0
        means = self.waits.get(queue.queue, {})
        minutes = [end - ago * MINUTE for ago in range(60, 0, -1)]
        return [
            max(means.get(minute, 0.0), oldest - (self.at - minute - MINUTE).total_seconds(), 0.0) for minute in minutes
        ]

    def slots_of(self, queue: str) -> int:
        """The slots of the live runners that claim from a queue."""
        return sum(runner.capacity for runner in self.alive if not runner.queues or queue in runner.queues)

    def pause_end(self, queue: QueueCounts, zone: tzinfo) -> str:
        """The end of the pause of a queue in six cells; empty without one."""
        end = queue.paused.until if queue.paused else None
        return formatting.short_clock(end, self.at, zone) if end else ""

    @property
    def failing(self) -> dict[str, tuple[int, int]]:
        """The queues in which most attempts failed; see `failing_from`."""
        return self.failing_from(MIN_SHARE)

    def failing_from(self, share: float) -> dict[str, tuple[int, int]]:
        """Failed and total attempts of the last ten minutes, for each queue in which this share of attempts failed.

        A queue is omitted if most attempts of its last minute succeeded: it has recovered.
        """
        failing = {}
        for queue, flows in self.pulses.items():
            if queue == OTHERS:
                continue
            recent = sorted((flow for flow in flows if flow.minute > self.at - RECENT), key=lambda flow: flow.minute)
            failed = sum(flow.flow.failed for flow in recent)
            attempts = failed + sum(flow.flow.succeeded for flow in recent)
            if failed > FEW and failed >= attempts * share and recent[-1].flow.failed >= recent[-1].flow.succeeded:
                failing[queue] = (failed, attempts)
        return failing

    def failing_since(self, queue: str) -> datetime:
        """The first minute of the last hour from which on at least half of the attempts of a queue failed.

        FEW successes in between do not end an outage: the probes of an open breaker, and the canary of an operator.
        """
        first, succeeded = self.at, 0
        for each in sorted(self.pulses.get(queue, ()), key=lambda flow: flow.minute, reverse=True):
            failing = each.flow.failed >= max(1, each.flow.succeeded)
            succeeded = 0 if failing else succeeded + each.flow.succeeded
            if succeeded > FEW:
                break
            first = each.minute if failing else first
        return first


async def read_overview(tx: Transaction, last: Overview | None = None) -> Overview:
    """Read the figures that change every second.

    Args:
        last: the previous overview, whose older minutes are reused; None to read all.
    """
    await tx.keep_to_indexes()
    (at, whole, pulses), queues, (runners, slots), unknown, handlers, opened = await tx.gather(
        _last_hour(tx, last),
        counts(tx, depth=depth(last)),
        tx.gather(read_runners(tx), busy_slots(tx)),
        unknown_handlers(tx),
        paused_handlers(tx),
        breakers(tx, only_open=True),
    )
    return Overview(
        at=at,
        queues=tuple(queues),
        pulses=pulses,
        whole=whole,
        runners=tuple(runners),
        unknown=tuple(unknown),
        handlers=handlers,
        breakers=tuple(opened),
        slots=slots,
    )


async def _last_hour(
    tx: Transaction, last: Overview | None
) -> tuple[datetime, datetime, Mapping[str, Sequence[MinuteFlow]]]:
    """The time, the time of the last complete read, and the minutes of the last hour by queue."""
    at, found = await tx.gather(clock(tx), tx.once(queue_survey))
    stored = last if last is not None and not is_stale(last, at) else None
    since = at - (HOUR if stored is None else UNSETTLED)
    pulses = await read_pulses(tx, since, sorted(found.names) if len(found.names) == MOST_QUEUES else None)
    if stored is None:
        return at, at, pulses
    return at, stored.whole, joined(stored.pulses, pulses, at - HOUR, since)


def is_stale(last: Overview, at: datetime) -> bool:
    """True if the last hour must be read completely, also after the clock was set back."""
    return not timedelta(0) <= at - last.whole < MINUTE


def depth(last: Overview | None) -> int:
    """The limit for counting the waiting tasks of a queue, from the number of full queues in the last overview."""
    full = sum(queue.is_capped for queue in last.queues) if last is not None else 0
    return min(SHALLOW, max(SHALLOWEST, MAX_COUNTED // max(full, 1)))


def joined(
    stored: Mapping[str, Sequence[MinuteFlow]],
    fresh: Mapping[str, Sequence[MinuteFlow]],
    begin: datetime,
    since: datetime,
) -> dict[str, list[MinuteFlow]]:
    """Join stored minutes and new ones.

    Args:
        stored: stored minutes by queue.
        fresh: new minutes by queue.
        begin: older minutes are dropped.
        since: first new minute.
    """
    older = {queue: [flow for flow in flows if begin <= flow.minute < since] for queue, flows in stored.items()}
    return {queue: [*older.get(queue, ()), *fresh.get(queue, ())] for queue in {**older, **fresh}}


async def counted_overview(tx: Transaction) -> Overview:
    """Read the overview, and count the tasks of full queues further, as the screen does after its first data."""
    overview = await read_overview(tx)
    if not any(queue.is_capped for queue in overview.queues):
        return overview
    return overview._replace(queues=deepened(overview.queues, await waiting(tx)))


def deepened(queues: Sequence[QueueCounts], deep: Mapping[str, WaitingCounts]) -> tuple[QueueCounts, ...]:
    """Replace counts that stopped at their limit with earlier counts that went further.

    Args:
        deep: earlier counts of waiting tasks by queue.
    """
    return tuple(_with_waiting(queue, deep.get(queue.queue, WaitingCounts())) for queue in queues)


def _with_waiting(queue: QueueCounts, deep: WaitingCounts) -> QueueCounts:
    return queue._replace(
        ready=_larger(queue.ready, deep.ready),
        scheduled=_larger(queue.scheduled, deep.scheduled),
        retrying=_larger(queue.retrying, deep.retrying),
    )


def _larger(now: Count, before: Count) -> Count:
    return before if now.more and before.number > now.number else now


async def diagnoses(tx: Transaction, behind: Sequence[str], failing: Sequence[str] = ()) -> Diagnoses:
    """Diagnose queues.

    Args:
        failing: queues in which most attempts fail.
    """
    from runner.queries.failures import failures  # The first data does not need these.
    from runner.queries.summary import totals as read_totals

    at = await clock(tx)
    failing, behind = failing[:MAX_DIAGNOSED], behind[:MAX_DIAGNOSED]

    async def slowdown(queue: str) -> Slowdown | None:
        recent, earlier = await tx.gather(
            read_totals(tx, at - RECENT, at + MINUTE, queue), read_totals(tx, at - RECENT - HOUR, at - RECENT, queue)
        )
        if not recent:
            return None
        worst = max(recent, key=lambda total: total.durations.seconds)
        before = next((total.p95 for total in earlier if total.handler == worst.handler), None)
        return Slowdown(worst.handler, worst.p95, before)

    filters = [Filter((Term("queue", Operator.EQ, queue),)) for queue in failing]
    found, slow = await tx.gather(
        tx.gather(*(failures(tx, each, at - RECENT, limit=1) for each in filters)),
        tx.gather(*map(slowdown, behind)),
    )
    return Diagnoses(
        {queue: each for queue, each in zip(behind, slow, strict=True) if each is not None},
        {queue: each[0].error_type for queue, each in zip(failing, found, strict=True) if each},
    )


async def waits(tx: Transaction, queues: Sequence[str]) -> dict[str, dict[datetime, float]]:
    """Read the waits of queues in each minute of the last hour; see `Overview.waits`."""
    from runner.queries.summary import waits_by_queue  # The first data does not need it.

    return await waits_by_queue(tx, await clock(tx) - HOUR, queues)


async def day(tx: Transaction) -> tuple[MinuteFlow, ...]:
    """Read the minutes of the last day."""
    at = await clock(tx)
    return tuple(await read_per_minute(tx, at - timedelta(days=1), at + MINUTE))


def per_minute(
    flows: Sequence[MinuteFlow], at: datetime, value: Callable[[Flow], int], minutes: int = 60
) -> list[float]:
    """One value per minute up to the current one; 0 for minutes without data.

    Args:
        flows: minutes in any order.
        value: the figure of a minute.
        minutes: number of minutes.
    """
    last = at.replace(second=0, microsecond=0)
    totals: Counter[datetime] = Counter()
    for flow in flows:
        totals[flow.minute] += value(flow.flow)
    return [float(totals[last - ago * MINUTE]) for ago in range(minutes - 1, -1, -1)]
