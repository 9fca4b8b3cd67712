"""recovery: the latest outage of a handler that has ended, with the fate of its tasks."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.model.task import State
from runner.queries.counting import Count
from runner.queries.failures import INTERRUPTED_VERB, WINDOW
from runner.queries.reports import COUNTS_ROW
from runner.queries.rows import as_int, as_text, moment, readable

MINUTE = timedelta(minutes=1)

LONGEST, SHOWN = timedelta(hours=4), timedelta(hours=2)
"""How far back an outage is searched, and for how long it counts as the latest after its end."""

CALM, GAP = 3 * MINUTE, 10 * MINUTE
"""The time without a bad minute after which an outage has ended, and the longest pause within one."""

FEWEST_FAILED, FEWEST_MINUTES = 20, 2
"""Failed attempts and bad minutes of an outage at least; fewer are a hiccup."""

MOST_ROWS = 50_000
"""Minutes of handlers with failures that are returned at most, latest first."""


class FailedMinute(NamedTuple):
    """A minute of a handler in which attempts failed."""

    at: datetime
    succeeded: int
    failed: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """An outage that has ended, and the tasks that failed in it as they are now.

    Args:
        since: the start of its first bad minute.
        until: the end of its last bad minute.
        tasks: the tasks that failed in it.
        longer: True if it may have begun before `since`, which is as far as the search goes.
    """

    handler: str
    since: datetime
    until: datetime
    tasks: Count
    died: int
    done: int
    longer: bool = False

    @property
    def length(self) -> timedelta:
        """How long it took."""
        return self.until - self.since


def last_outage(minutes: Iterable[FailedMinute], now: datetime) -> list[FailedMinute]:
    """Find the bad minutes of the latest outage of a handler; none if it goes on, was short, or ended long ago.

    In a bad minute at least half of the attempts fail.

    Args:
        minutes: the minutes in which attempts failed, in any order.
        now: the database's time.
    """
    bad = sorted(minute for minute in minutes if minute.failed >= max(1, minute.succeeded))
    outage: list[FailedMinute] = []
    for minute in reversed(bad):
        if outage and outage[-1].at - minute.at > GAP:
            break
        outage.append(minute)
    if not outage or not CALM <= now - (outage[0].at + MINUTE) <= SHOWN:
        return []
    is_short = sum(minute.failed for minute in outage) < FEWEST_FAILED or len(outage) < FEWEST_MINUTES
    return [] if is_short else outage[::-1]


async def recovery(tx: Transaction) -> Recovery | None:
    """Find the latest outage that has ended; None without one. Of several, the one with the most failures counts.

    It has ended if the handler has succeeded since: a breaker that lets no task start ends the failures too.

    Args:
        tx: an open transaction; two statements are executed, and a few more for an outage. They read the statistics of
            LONGEST, and at most WINDOW failed attempts.
    """
    now = await clock(tx)
    by_handler = defaultdict[str, list[FailedMinute]](list)
    for handler, each in await _failed_minutes(tx, now - LONGEST):
        by_handler[handler].append(each)
    outages = {handler: last_outage(minutes, now) for handler, minutes in by_handler.items()}
    failed = {handler: sum(each.failed for each in outage) for handler, outage in outages.items() if outage}
    for handler in sorted(failed, key=lambda name: (failed[name], name), reverse=True):
        if await _works(tx, handler, outages[handler][-1].at + MINUTE):
            break
    else:
        return None
    since, until = outages[handler][0].at, outages[handler][-1].at + MINUTE
    tasks, died, done = await _tasks(tx, handler, since, until)
    return Recovery(handler, since, until, tasks, died, done, longer=since - (now - LONGEST) <= GAP)


async def _failed_minutes(tx: Transaction, since: datetime) -> list[tuple[str, FailedMinute]]:
    minute = tx.tables.minute.c
    failed = sa.func.sum(minute.retried + minute.died)
    statement = (
        sa.select(minute.handler, *readable(tx, [minute.minute]), sa.func.sum(minute.succeeded), failed)
        .where(minute.minute >= since, minute.bin_ms == COUNTS_ROW)
        .group_by(minute.handler, minute.minute)
        .having(failed > 0)
        .order_by(minute.minute.desc())
        .limit(MOST_ROWS)
    )
    return [
        (as_text(handler), FailedMinute(at, as_int(succeeded), as_int(number)))
        for handler, value, succeeded, number in await tx.rows(statement)
        if (at := moment(value)) is not None
    ]


async def _works(tx: Transaction, handler: str, since: datetime) -> bool:
    """True if more attempts of a handler have succeeded than failed since a time."""
    minute = tx.tables.minute.c
    numbers = (sa.func.sum(minute.succeeded), sa.func.sum(minute.retried + minute.died))
    later = (minute.minute >= since) & (minute.bin_ms == COUNTS_ROW) & (minute.handler == handler)
    ((succeeded, failed),) = await tx.rows(sa.select(*numbers).where(later))
    return as_int(succeeded or 0) > as_int(failed or 0)


async def _tasks(tx: Transaction, handler: str, since: datetime, until: datetime) -> tuple[Count, int, int]:
    """The tasks of a handler that failed in a period, and how many of them are dead and have succeeded."""
    attempt, history = tx.tables.attempt.c, tx.tables.history
    within = (attempt.ended_at >= since) & (attempt.ended_at < until)
    columns = (attempt.task_id, attempt.handler, attempt.verb)
    latest = sa.select(*columns).where(within).order_by(attempt.ended_at.desc()).limit(WINDOW).subquery()
    of_handler = (latest.c.handler == handler) & (latest.c.verb != INTERRUPTED_VERB)
    ids = sa.select(latest.c.task_id).where(of_handler).distinct().subquery()
    read, number = sa.select(sa.func.count()).select_from(latest), sa.select(sa.func.count()).select_from(ids)
    ((whole, tasks),) = await tx.rows(sa.select(read.scalar_subquery(), number.scalar_subquery()))
    joined = ids.join(history, history.c.id == ids.c.task_id)
    rows = await tx.rows(sa.select(history.c.state, sa.func.count()).select_from(joined).group_by(history.c.state))
    states = {as_text(state): as_int(count) for state, count in rows}
    return Count(as_int(tasks), as_int(whole) >= WINDOW), states.get(State.DEAD, 0), states.get(State.SUCCEEDED, 0)
