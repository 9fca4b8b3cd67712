"""statistics: what a runner has done, minute by minute, for reports and plots."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.columns import minute_number
from runner.schema import SETTLED_COUNTS
from runner.store.move import NOBODY
from runner.store.transaction import Transaction

MOST_AHEAD = 60
"""Minutes by which a time may lie ahead of this process's clock and still be believed."""


@dataclass
class Minute:
    """What one runner did for one queue and handler in one minute.

    Args:
        minute: its beginning.
        queue: of the tasks.
        handler: of the tasks.
        counts: by name, see SETTLED_COUNTS.
        durations: how many attempts took how long, see runner.policy.histogram.
    """

    minute: datetime
    queue: str
    handler: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SETTLED_COUNTS, 0))
    durations: list[int] = field(default_factory=list)


Arrival: TypeAlias = tuple[float | None, str, str]
"""When and where tasks were submitted: the minute counted from 1970 (None where there is no time), queue, handler."""


async def write_statistics(
    tx: Transaction, runner_id: int, minutes: Iterable[Minute], arrivals: Mapping[Arrival, int]
) -> None:
    """Write what a runner counted.

    Args:
        tx: an open transaction.
        runner_id: that counted.
        minutes: with totals, which replace what the runner wrote before of the same minutes: writing them again
            changes nothing.
        arrivals: tasks claimed for the first time since the last call. They are added to what stands there, for they
            may belong to minutes that the runner has forgotten long ago.
    """
    await _replace(tx, runner_id, minutes)
    await _add(tx, runner_id, arrivals)


async def count_unclaimed(tx: Transaction, ids: Sequence[int], times: int = 1) -> None:
    """Count as submitted those live tasks that end without ever having been claimed: nobody else would.

    Args:
        tx: the transaction that then ends them.
        ids: of tasks that are held.
        times: -1 takes it back, for those that have not ended after all and will be counted when they are claimed.
    """
    task = tx.tables.task.c
    columns = (minute_number(task.submitted_at), task.queue, task.handler)
    never = tx.dialect.one_of(task.id, ids) & (task.fence == 0)
    rows = await tx.rows(sa.select(*columns, sa.func.count()).where(never).group_by(*columns))
    await _add(tx, NOBODY, {(row[0], row[1], row[2]): times * row[3] for row in rows})


async def _replace(tx: Transaction, runner_id: int, minutes: Iterable[Minute]) -> None:
    rows = [
        _place(runner_id, minute.minute, minute.queue, minute.handler)
        | minute.counts
        | {"durations": json.dumps(minute.durations)}
        for minute in minutes
    ]
    if rows:
        insert = tx.dialect.insert(tx.tables.minute)
        new = {name: insert.excluded[name] for name in (*SETTLED_COUNTS, "durations")}
        await tx.execute(insert.on_conflict_do_update(index_elements=tx.tables.minute.primary_key, set_=new), rows)


async def _add(tx: Transaction, runner_id: int, arrivals: Mapping[Arrival, int]) -> None:
    present = int(time.time() // 60)
    counted: Counter[tuple[int, str, str]] = Counter()
    for (minute, queue, handler), number in arrivals.items():
        counted[_believable(minute, present), queue, handler] += number
    rows = [
        _place(runner_id, datetime.fromtimestamp(minute * 60, UTC), queue, handler) | {"submitted": number}
        # Sorted, so that no two who add to the same rows wait for each other.
        for (minute, queue, handler), number in sorted(counted.items())
    ]
    if rows:
        table = tx.tables.minute
        insert = tx.dialect.insert(table)
        more = {"submitted": table.c.submitted + insert.excluded.submitted}
        await tx.execute(insert.on_conflict_do_update(index_elements=table.primary_key, set_=more), rows)


def _believable(minute: float | None, present: int) -> int:
    """A minute that can be stored; the present one where a foreign client wrote none, or one that is yet to come."""
    return int(minute) if minute is not None and 0 <= minute <= present + MOST_AHEAD else present


def _place(runner_id: int, minute: datetime, queue: str, handler: str) -> dict[str, Any]:
    return {"minute": minute, "queue": queue, "handler": handler, "runner_id": runner_id}
