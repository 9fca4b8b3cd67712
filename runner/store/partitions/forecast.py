"""forecast: decide which ranges of the history to drop or to spare."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from runner.db.schema import Tables, is_state
from runner.db.transaction import Transaction, clock
from runner.model.task import State
from runner.policy.partitions import FEW, Fate, Range, RangeState, fate
from runner.store.partitions.layout import read_layout


async def assess(tx: Transaction, part: Range, next_id: int, before: datetime, soon: datetime) -> RangeState:
    """Determine the age of the rows of a range, and the number of rows that may still arrive.

    Args:
        tx: an open transaction; one statement is executed, which reads at most FEW rows of each table.
        part: a range of the history.
        next_id: the next id of the task sequence.
        before: tasks that finished before this time are old.
        soon: tasks that finished before this time will be old after the leeway.
    """
    past, task = tx.tables.history.c, tx.tables.task.c
    finished = sa.select(past.finished_at).where(*within(tx.tables, part))
    oldest = finished.order_by(past.finished_at).limit(1).scalar_subquery()
    youngest = finished.order_by(past.finished_at.desc()).offset(FEW).limit(1).scalar_subquery()
    live = sa.select(task.id).where(task.id >= part.first, task.id < part.end).limit(FEW + 1).subquery()
    number = sa.select(sa.func.count()).select_from(live).scalar_subquery()
    statement = sa.select(number <= FEW, oldest < before, youngest < before, youngest < soon)
    (row,) = await tx.rows(statement)
    return RangeState(part.end <= next_id, *row)


def within(tables: Tables, part: Range) -> tuple[sa.ColumnElement[bool], ...]:
    """The conditions that a finished task is in a range."""
    past: Any = tables.history.c
    return is_state(past.state, State.SUCCEEDED), past.id >= part.first, past.id < part.end


@dataclass(frozen=True, slots=True)
class Forecast:
    """The ranges to drop and to spare; tasks of other ranges are deleted row by row.

    Args:
        before: tasks that finished before this time are old.
        drop: ranges to drop now, the lowest ids first.
        spare: ranges to skip, because they can be dropped soon.
    """

    before: datetime
    drop: Sequence[Range] = ()
    spare: Sequence[Range] = ()


async def forecast(tx: Transaction, age: timedelta, leeway: float) -> Forecast:
    """Decide which ranges of the history to drop or to spare, without changes.

    Args:
        tx: an open transaction.
        age: retention of succeeded tasks.
        leeway: fraction of the retention by which they may be kept longer.
    """
    now, layout = await clock(tx), await read_layout(tx)
    before = now - age
    if layout is None or not layout.may_change:
        return Forecast(before)
    soon = before + leeway * age
    started_ranges = [part for part in layout.ranges if part.first < layout.next_id]
    fates = {part: fate(await assess(tx, part, layout.next_id, before, soon)) for part in started_ranges}
    drop, spare = ([part for part in started_ranges if fates[part] is fate] for fate in (Fate.DROP, Fate.SPARE))
    return Forecast(before, drop, spare)


async def has_tasks_beyond(tx: Transaction, end: int) -> bool:
    """Return True if there are succeeded tasks beyond all ranges of the history.

    Args:
        tx: an open transaction.
        end: the end of the last range.
    """
    past = tx.tables.history.c
    there = sa.select(past.id).where(is_state(past.state, State.SUCCEEDED), past.id >= end).exists()
    return bool(await tx.scalar(sa.select(there)))
