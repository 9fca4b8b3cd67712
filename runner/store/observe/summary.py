"""summary: how well it went over some time, by handler or by queue."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

from runner.policy.histogram import merged, percentile
from runner.store.observe.arrivals import unclaimed
from runner.store.observe.legible import clock
from runner.store.observe.reports import Flow, Total, totals
from runner.store.observe.tallies import Count
from runner.store.transaction import Transaction

ALL = "all"
"""The name of the line that sums up the others."""


class By(StrEnum):
    """What the lines of a summary are."""

    HANDLER = "handler"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Line:
    """What was done by one handler, or in one queue.

    Args:
        name: of the handler or the queue.
        submitted: tasks that were submitted in that time, claimed yet or not.
        flow: what happened.
        p50: seconds that half of the attempts did not exceed; None when not known.
        p95: seconds that 95 of 100 attempts did not exceed; None when not known.
    """

    name: str
    submitted: Count
    flow: Flow
    p50: float | None
    p95: float | None

    @property
    def first(self) -> float | None:
        """The share of the tasks that succeeded or died which succeeded at the first attempt."""
        return self.flow.share_of(self.flow.first_try)

    @property
    def second(self) -> float | None:
        """The share of them which succeeded at the second attempt."""
        return self.flow.share_of(self.flow.second_try)


@dataclass(frozen=True, slots=True)
class Summary:
    """How well it went.

    Args:
        at: the database's time.
        since: the first minute.
        until: the minute before which it stops.
        by: what the lines are.
        total: all lines together.
        lines: one for each handler or queue, those with the most ended tasks first.
    """

    at: datetime
    since: datetime
    until: datetime
    by: By
    total: Line
    lines: tuple[Line, ...]


async def summary(tx: Transaction, since: datetime, until: datetime | None = None, by: By = By.HANDLER) -> Summary:
    """Sum up some time.

    Args:
        tx: an open transaction; four statements are executed, or five.
        since: the beginning, aware; the minute in which it lies counts whole.
        until: the minute before which to stop, aware; None for now.
        by: what to make lines of.
    """
    at = await clock(tx)
    first, last = since.replace(second=0, microsecond=0), until or at
    found = await totals(tx, first, last)
    new = await unclaimed(tx, first, last)
    place = 1 if by is By.HANDLER else 0
    groups: dict[str, list[Total]] = defaultdict(list)
    waiting: dict[str, int] = defaultdict(int)
    for total in found:
        groups[(total.queue, total.handler)[place]].append(total)
    for where, number in new.places.items():
        waiting[where[place]] += number
    names = sorted({*groups, *waiting})
    lines = [_line(name, groups[name], waiting[name], new.more) for name in names]
    lines.sort(key=lambda line: -line.flow.ended)
    return Summary(at, first, last, by, _line(ALL, found, sum(waiting.values()), new.more), tuple(lines))


def _line(name: str, totals: Sequence[Total], waiting: int, more: bool) -> Line:
    flow = Flow(**{field.name: sum(getattr(total.flow, field.name) for total in totals) for field in fields(Flow)})
    durations = merged([total.durations for total in totals])
    p50, p95 = (percentile(durations, q) for q in (0.5, 0.95))
    return Line(name, Count(flow.submitted + waiting, more), flow, p50, p95)
