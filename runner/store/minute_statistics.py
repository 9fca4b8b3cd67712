"""Minute statistics of runners for reports and plots."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.db.schema import SETTLED_COUNTS
from runner.db.transaction import Transaction, epoch
from runner.db.types import minute_number
from runner.store.history import NO_RUNNER

MAX_AHEAD = 60
"""Minutes that a submit time may be ahead of the database's clock."""


@dataclass
class Minute:
    """The counts of one runner for one queue and handler in one minute.

    Args:
        minute: start of the minute.
        queue: queue of the tasks.
        handler: handler of the tasks.
        counts: counts by name, see SETTLED_COUNTS.
        durations: histogram of the durations, see runner.policy.histogram.
    """

    minute: datetime
    queue: str
    handler: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SETTLED_COUNTS, 0))
    durations: list[int] = field(default_factory=list)


Arrival: TypeAlias = tuple[float | None, str, str]
"""Submit minute (since 1970; None if unknown), queue and handler of tasks."""


async def write_statistics(
    tx: Transaction, runner_id: int, minutes: Iterable[Minute], arrivals: Mapping[Arrival, int]
) -> None:
    """Write the counts of a runner.

    Args:
        tx: an open transaction.
        runner_id: id of the runner.
        minutes: totals that replace earlier values of the same minutes, so that a repeated write changes nothing.
        arrivals: tasks claimed for the first time since the last call. They are added to the stored values, because
            they may belong to minutes that the runner no longer has in memory.
    """
    await _replace(tx, runner_id, minutes)
    await _add(tx, runner_id, arrivals)


async def count_unclaimed(tx: Transaction, ids: Sequence[int], times: int = 1) -> None:
    """Count tasks as submitted that finish without ever being claimed: no claim counts them.

    Args:
        tx: the transaction that then finishes the tasks.
        ids: ids of locked tasks.
        times: -1 reverts the count for tasks that return to the queue, where a claim counts them.
    """
    task = tx.tables.task.c
    columns = (minute_number(task.submitted_at), task.queue, task.handler)
    never = tx.dialect.one_of(task.id, ids) & (task.fence == 0)
    rows = await tx.rows(sa.select(*columns, sa.func.count()).where(never).group_by(*columns))
    await _add(tx, NO_RUNNER, {(row[0], row[1], row[2]): times * row[3] for row in rows})


async def _replace(tx: Transaction, runner_id: int, minutes: Iterable[Minute]) -> None:
    rows = [
        _key(runner_id, minute.minute, minute.queue, minute.handler)
        | minute.counts
        | {"durations": json.dumps(minute.durations)}
        for minute in minutes
    ]
    if rows:
        insert = tx.dialect.insert(tx.tables.minute)
        new = {name: insert.excluded[name] for name in (*SETTLED_COUNTS, "durations")}
        await tx.execute(insert.on_conflict_do_update(index_elements=tx.tables.minute.primary_key, set_=new), rows)


async def _add(tx: Transaction, runner_id: int, arrivals: Mapping[Arrival, int]) -> None:
    present = int(await epoch(tx) // 60) if arrivals else 0
    totals: Counter[tuple[int, str, str]] = Counter()
    for (minute, queue, handler), number in arrivals.items():
        totals[_valid_minute(minute, present), queue, handler] += number
    rows = [
        _key(runner_id, datetime.fromtimestamp(minute * 60, UTC), queue, handler) | {"submitted": number}
        # Sorted, so that two transactions on the same rows never deadlock.
        for (minute, queue, handler), number in sorted(totals.items())
    ]
    if rows:
        table = tx.tables.minute
        insert = tx.dialect.insert(table)
        more = {"submitted": table.c.submitted + insert.excluded.submitted}
        await tx.execute(insert.on_conflict_do_update(index_elements=table.primary_key, set_=more), rows)


def _valid_minute(minute: float | None, present: int) -> int:
    """Return a minute that can be stored: the current one if the given one is missing or in the future."""
    return int(minute) if minute is not None and 0 <= minute <= present + MAX_AHEAD else present


def _key(runner_id: int, minute: datetime, queue: str, handler: str) -> dict[str, Any]:
    return {"minute": minute, "queue": queue, "handler": handler, "runner_id": runner_id}
