"""recovery: the latest outage of a handler that has ended, with the fate of its tasks."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.model.task import State
from runner.queries.counting import Count, due_by_lane, lane_heads, total_of
from runner.queries.failures import INTERRUPTED_VERB, WINDOW
from runner.queries.reports import COUNTS_ROW, Flow, MinuteFlow, per_step
from runner.queries.rows import as_int, as_text

MINUTE = timedelta(minutes=1)

LONGEST, SHOWN = timedelta(hours=4), timedelta(hours=2)
"""How far back an outage is searched, and for how long it counts as the latest after its end."""

CALM, GAP = 3 * MINUTE, 10 * MINUTE
"""The time after its end until an outage counts as ended, and the longest time without a bad minute within one in which
attempts may succeed."""

FEWEST_FAILED, FEWEST_MINUTES = 20, 2
"""Failed attempts and bad minutes of an outage at least; fewer are a hiccup."""

MOST_HANDLERS = 20
"""Handlers whose minutes are read at most, those with the most failed attempts."""

ENDED_WINDOW = 100_000
"""Tasks of all handlers that are read at most, from the end of an outage on."""


class EndedOutage(NamedTuple):
    """An outage of a handler that has ended.

    Args:
        since: the start of its first bad minute.
        until: the start of the first minute after its last bad one in which an attempt succeeded.
        failed: the attempts that failed in it.
    """

    since: datetime
    until: datetime
    failed: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """An outage that has ended, and the tasks that waited in it as they are now.

    Args:
        since: the start of its first bad minute.
        until: the start of the first minute after its last bad one in which an attempt succeeded.
        tasks: the tasks that failed in it, or were due before its end and started later.
        longer: True if it may have begun before `since`, which is as far as the search goes.
    """

    handler: str
    since: datetime
    until: datetime
    tasks: Count
    died: Count
    done: Count
    longer: bool = False

    @property
    def length(self) -> timedelta:
        """How long it took."""
        return self.until - self.since


def last_outage(minutes: Iterable[MinuteFlow], now: datetime) -> EndedOutage | None:
    """Find the latest outage of a handler; None if it goes on, was short, or ended long ago.

    In a bad minute at least half of the attempts fail. An outage lasts until an attempt succeeds: an open breaker, a
    pause or a lack of tasks ends the failures too.

    Args:
        minutes: the counts of the handler by minute, in any order.
        now: the database's time.
    """
    outage: list[MinuteFlow] = []
    ends = [now]
    for at, flow in sorted(minutes, key=lambda minute: minute.minute, reverse=True):
        if flow.failed < max(1, flow.succeeded):
            ends += [at] if flow.succeeded else []
        elif outage and ends[-1] < outage[-1].minute and outage[-1].minute - at > GAP:
            break
        else:
            outage.append(MinuteFlow(at, flow))
    if not outage:
        return None
    until = min(end for end in ends if end > outage[0].minute)
    failed = sum(minute.flow.failed for minute in outage)
    is_short = failed < FEWEST_FAILED or len(outage) < FEWEST_MINUTES
    is_latest = CALM <= now - until <= SHOWN
    return EndedOutage(outage[-1].minute, until, failed) if is_latest and not is_short else None


async def recovery(tx: Transaction) -> Recovery | None:
    """Find the latest outage that has ended; None without one. Of several, the one with the most failures counts.

    Args:
        tx: an open transaction; three statements are executed, and a few more for an outage. They read the statistics
            of LONGEST, at most WINDOW failed attempts, and at most ENDED_WINDOW tasks that have ended.
    """
    now = await clock(tx)
    begin = now - LONGEST
    if not (handlers := await _failing(tx, begin)):
        return None
    minutes = await per_step(tx, "handler", handlers, begin, now + MINUTE, 1)
    outages = {handler: outage for handler in handlers if (outage := last_outage(minutes.get(handler, ()), now))}
    if not outages:
        return None
    handler = max(outages, key=lambda name: (outages[name].failed, name))
    since, until, _ = outages[handler]
    later = sum((flow for at, flow in minutes[handler] if at >= until), Flow())
    fate = await _tasks(tx, handler, since, until, later.succeeded)
    return Recovery(handler, since, until, *fate, longer=since - begin <= GAP)


async def _failing(tx: Transaction, since: datetime) -> list[str]:
    """The handlers with enough failed attempts for an outage, most of them first."""
    minute = tx.tables.minute.c
    failed = sa.func.sum(minute.retried + minute.died)
    within = (minute.minute >= since) & (minute.bin_ms == COUNTS_ROW)
    statement = sa.select(minute.handler).where(within).group_by(minute.handler).having(failed >= FEWEST_FAILED)
    rows = await tx.rows(statement.order_by(failed.desc(), minute.handler).limit(MOST_HANDLERS))
    return [as_text(handler) for (handler,) in rows]


async def _tasks(
    tx: Transaction, handler: str, since: datetime, until: datetime, succeeded: int
) -> tuple[Count, Count, Count]:
    """The tasks of a handler that waited in an outage, and how many of them are dead and have succeeded.

    Args:
        succeeded: the tasks of the handler that have succeeded since its end, from the statistics.
    """
    attempt, history = tx.tables.attempt.c, tx.tables.history
    within = (attempt.ended_at >= since) & (attempt.ended_at < until)
    columns = (attempt.task_id, attempt.handler, attempt.verb)
    latest = sa.select(*columns).where(within).order_by(attempt.ended_at.desc()).limit(WINDOW).subquery()
    is_failure = (latest.c.handler == handler) & (latest.c.verb != INTERRUPTED_VERB)
    failed = sa.select(latest.c.task_id.label("id")).where(is_failure).distinct().cte("failed")
    row = history.c
    later = sa.select(row.id, row.handler, row.run_at, row.state).where(row.finished_at >= until)
    ended = later.order_by(row.finished_at).limit(ENDED_WINDOW).subquery()
    is_held = sa.case((ended.c.run_at < until, failed.c.id.is_(None)), else_=sa.false()).label("is_held")
    read = sa.select(sa.func.count()).select_from(latest).scalar_subquery()
    attempts, failures, ends, waiting = await tx.gather(
        tx.rows(sa.select(read)),
        tx.rows(
            sa.select(row.state, sa.func.count())
            .select_from(failed.outerjoin(history, row.id == failed.c.id))
            .group_by(row.state)
        ),
        tx.rows(
            sa.select(ended.c.state, is_held, sa.func.count())
            .select_from(ended.outerjoin(failed, failed.c.id == ended.c.id))
            .where(ended.c.handler == handler)
            .group_by(ended.c.state, is_held)
        ),
        _never_run(tx, handler, until),
    )
    tasks = Counter({as_text(state): as_int(number) for state, number in failures})
    successes = 0
    for state, held, number in ends:
        tasks[as_text(state)] += as_int(number) if held else 0
        successes += as_int(number) if as_text(state) == State.SUCCEEDED else 0
    is_cut = as_int(attempts[0][0]) >= WINDOW
    is_bound = is_cut or successes < succeeded  # the others are beyond the window, or pruned
    return (
        total_of([Count(tasks.total(), is_bound), waiting]),
        Count(tasks[State.DEAD], is_bound),
        Count(tasks[State.SUCCEEDED], is_bound),
    )


async def _never_run(tx: Transaction, handler: str, before: datetime) -> Count:
    """The waiting tasks of a handler that became due before a time and have had no attempt."""
    lanes = [head.lane for head in await tx.once(lane_heads)]
    never_run = [lane for lane in lanes if lane.handler == handler and not lane.retried]
    return total_of((await due_by_lane(tx, never_run, before)).values())
