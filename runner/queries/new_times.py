"""new_times: the run times and waits of a period for exporters, with a bounded number of names."""

from datetime import datetime

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.policy.histogram import Histogram, Times, merged
from runner.policy.work_keys import MOST_COUNTED, MOST_LISTED, OTHERS, WorkKey, WorkKeys
from runner.queries.reports import COUNTS_ROW, histograms, within
from runner.queries.rows import as_text


async def new_times(tx: Transaction, since: datetime, until: datetime, names: WorkKeys) -> dict[WorkKey, Times]:
    """Read the times of attempts that ended in a period.

    Args:
        tx: an open transaction; two statements are executed, or three if not all names are listed.
        since: the first minute, aware.
        until: the end, aware and exclusive.
        names: those listed so far; they grow by those of the period.

    Returns:
        The times by listed queue and handler; OTHERS has all further ones.
    """
    minute = tx.tables.minute.c
    groups, conditions = (minute.queue, minute.handler), within(tx, since, until)
    pairs = sa.select(*groups).where(*conditions, minute.bin_ms > COUNTS_ROW).group_by(*groups).order_by(*groups)
    rows = await tx.rows(pairs.limit(MOST_LISTED + MOST_COUNTED))
    found = [names.name((as_text(queue), as_text(handler))) for queue, handler in rows]
    listed = sorted({work_key for work_key in found if work_key in names.listed})
    # Each column for itself: a join by pairs depends on the planner. More than these is read, and left out.
    of_listed = [tx.dialect.one_of(groups[index], sorted({pair[index] for pair in listed})) for index in (0, 1)]
    times = await histograms(tx, groups, [*conditions, *of_listed]) if listed else {}
    result = {work_key: times[work_key] for work_key in listed}
    if len(listed) < len(found):
        whole = (await histograms(tx, (), conditions))[()]
        parts = (merged(each[index] for each in result.values()) for index in (0, 1))
        rest = Times(*(times.without(part) for times, part in zip(whole, parts, strict=True)))
        before = result.get(OTHERS, Times(Histogram(), Histogram()))
        result[OTHERS] = Times(*(merged(each) for each in zip(before, rest, strict=True)))
    return result
