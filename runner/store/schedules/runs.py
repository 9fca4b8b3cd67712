"""Runs of schedules: the due ones, the unfinished ones, and the runners of broadcasts."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.lock_limits import UPKEEP_LOCKS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state
from runner.db.schema.records import is_unplanned
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, db_now, next_version, seconds_until
from runner.model.schedule import Overlap
from runner.model.task import LAST_ID, State
from runner.policy.lanes import RUNNER_QUEUE
from runner.policy.schedule import AFTER_END
from runner.store.history import UNASSIGNED, FinishedTask, finish
from runner.store.minute_statistics import NO_RUNNER, count_unclaimed


class NextTick(NamedTuple):
    """The time of the next work for schedules.

    Args:
        due: True if a schedule is due now.
        wait: seconds until the next tick; None without one.
    """

    due: bool
    wait: float | None


@needs(Needs.PREPARED)
async def next_tick(tx: Transaction) -> NextTick:
    """Look whether a schedule is due; the only cost of schedules on an idle runner.

    Args:
        tx: an open transaction; one statement is executed.
    """
    ((wait, unplanned, requested),) = await tx.run(_next_tick(tx.tables, tx.driver), {})
    return NextTick(bool(unplanned or requested or (wait is not None and wait <= 0)), wait)


@lru_cache
def _next_tick(tables: Tables, driver: sa.Dialect) -> Prepared:
    """Three look-ups of one row each."""
    row = tables.schedule.c
    # In the order of their indexes: without it a planner that knows nothing about the table would read all of it.
    first = sa.select(row.next_at).where(row.next_at.is_not(None)).order_by(row.next_at)
    unplanned = sa.select(row.id).where(*_unplanned(tables)).order_by(row.id)
    requested = sa.select(row.run_requested_at).where(row.run_requested_at.is_not(None)).order_by(row.run_requested_at)
    one: sa.ColumnElement[int] = sa.literal_column("1")
    wait, other, request = (part.limit(one).scalar_subquery() for part in (first, unplanned, requested))
    return Prepared(sa.select(seconds_until(wait), other.is_not(None), request.is_not(None)), driver)


def _unplanned(tables: Tables) -> list[sa.ColumnElement[bool]]:
    """The conditions of schedules whose next tick has to be computed; a rule with a delay waits for its last run."""
    row, task = tables.schedule.c, tables.task
    # A look-up for each schedule; as a join it would read all tasks.
    unfinished = sa.select(task.c.id).where(task.c.id == row.last_task_id).offset(NO_JOIN).exists()
    is_running = row.paused_at.is_(None) | (row.paused_until <= db_now())
    waits = row.rule.startswith(AFTER_END, autoescape=True) & unfinished
    return [is_unplanned(row), is_running, ~waits]


async def due_schedules(
    tx: Transaction, limit: int, only: Collection[str] | None = None, without: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Lock the due schedules, except the ones that another runner has locked.

    Args:
        limit: maximum number of schedules.
        only: ids of the only schedules to return; None for all.
        without: ids of schedules to leave out.

    Returns:
        Their rows as they are under the lock: another runner may have handled them in between.
    """
    ids = await due_schedule_ids(tx, limit, without) if only is None else list(only)
    if not ids:
        return []
    schedule = tx.tables.schedule
    condition = tx.dialect.one_of(schedule.c.id, sorted(set(ids)))
    rows = sa.select(schedule, tx.dialect.pause_limit().label("pause_limit")).where(condition).order_by(schedule.c.id)
    rows = rows.where(tx.dialect.lock_limit(UPKEEP_LOCKS))
    return [dict(row) for row in (await tx.execute(rows.with_for_update(skip_locked=True))).mappings()]


async def due_schedule_ids(tx: Transaction, limit: int, without: Collection[str] = ()) -> list[str]:
    """Return the ids of due schedules, locked ones too; for the arguments see `due_schedules`."""
    rows = await tx.run(_due_ids(tx.tables, tx.driver), {"limit": limit + len(without)})
    return list(dict.fromkeys(row[0] for row in rows if row[0] not in without))


async def record_error(tx: Transaction, id: str, error: str) -> None:
    """Record the reason why the ticks of a schedule fail; its next tick clears it.

    Without a next tick nothing would clear it: an unplanned schedule with an error is not tried again.
    """
    row = tx.tables.schedule.c
    planned = (row.id == id) & row.next_at.is_not(None)
    await tx.execute(sa.update(tx.tables.schedule).where(planned).values(error=error))


@lru_cache
def _due_ids(tables: Tables, driver: sa.Dialect) -> Prepared:
    """A part for each reason, each along its own index."""
    row, limit = tables.schedule.c, sa.bindparam("limit", type_=sa.Integer)
    planned = sa.select(row.id).where(row.next_at.is_not(None), row.next_at <= db_now()).order_by(row.next_at)
    unplanned = sa.select(row.id).where(*_unplanned(tables)).order_by(row.id)
    requested = sa.select(row.id).where(row.run_requested_at.is_not(None)).order_by(row.run_requested_at)
    parts = [
        sa.select(part.limit(limit).subquery(name).c.id)
        for name, part in (("planned", planned), ("unplanned", unplanned), ("requested", requested))
    ]
    return Prepared(sa.union_all(*parts), driver)


MOST_KEPT = 10
"""Most unfinished runs of a schedule, or of a runner of a broadcast, that a tick knows: the first, and the last one."""


MOST_REPLACED = 1_000
"""Most unfinished runs beyond the known ones that a tick replaces in one transaction. With as many it knows MOST_KEPT
of them, and looks for more."""


def known_runs(row: Mapping[str, Any]) -> list[int]:
    """The tasks of a schedule that were unfinished after its last tick, and that of its last run, in order."""
    try:
        others = json.loads(row["other_task_ids"] or "[]")
    except ValueError:
        others = []
    ids = {id for id in others if type(id) is int and 0 < id <= LAST_ID} if isinstance(others, list) else set()
    return sorted(ids if row["last_task_id"] is None else {*ids, row["last_task_id"]})


def kept_runs(row: Mapping[str, Any], runs: Iterable[tuple[int, str | None]]) -> list[int]:
    """Return the unfinished runs that a schedule keeps.

    Args:
        runs: their task ids and queues, in order. The queue names the runner of a task of a broadcast.
    """
    groups: dict[str | None, list[int]] = {}
    for id, queue in runs:
        groups.setdefault(queue if row["broadcast"] else None, []).append(id)
    return sorted(id for ids in groups.values() for id in (*ids[: MOST_KEPT - 1], *ids[MOST_KEPT - 1 :][-1:]))


class LastRuns(NamedTuple):
    """The known runs of schedules.

    Args:
        live: the queues of the unfinished ones by id.
        ends: the end of each other one by id; a task that was pruned is missing.
        others: the queues of unfinished runs that are not known, by id, for each schedule that replaces them.
    """

    live: Mapping[int, str]
    ends: Mapping[int, datetime]
    others: Mapping[str, Mapping[int, str]] = {}

    def unfinished(self, row: Mapping[str, Any]) -> dict[int, str]:
        """The queues of the unfinished runs of a schedule by id, in order."""
        known = {id: self.live[id] for id in known_runs(row) if id in self.live}
        return dict(sorted({**known, **self.others.get(row["id"], {})}.items()))

    def may_have_more(self, row: Mapping[str, Any]) -> bool:
        """True if a schedule may have more unfinished runs than these."""
        return len(self.others.get(row["id"], {})) >= MOST_REPLACED

    def end(self, row: Mapping[str, Any]) -> datetime | None:
        """The end of the run of a schedule that ended last; None if it is unknown."""
        return max((self.ends[id] for id in known_runs(row) if id in self.ends), default=None)


async def last_runs(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> LastRuns:
    """Read the tasks of the known runs of schedules, and of the others of schedules that replace their runs."""
    ids = sorted({id for row in rows for id in known_runs(row)})
    if not ids:
        return LastRuns({}, {})
    many = [row for row in rows if row["overlap"] == Overlap.REPLACE and len(known_runs(row)) >= MOST_KEPT]
    others = {row["id"]: await _other_runs(tx, row) for row in many}
    task, history = tx.tables.task.c, tx.tables.history.c
    live = {
        row.id: row.queue
        for row in await tx.rows(sa.select(task.id, task.queue).where(tx.dialect.one_of(task.id, ids)))
    }
    rest = [id for id in ids if id not in live]
    if not rest:
        return LastRuns(live, {}, others)
    ended = sa.select(history.id, history.finished_at).where(tx.dialect.one_of(history.id, rest))
    return LastRuns(live, {row.id: row.finished_at for row in await tx.rows(ended)}, others)


async def _other_runs(tx: Transaction, row: Mapping[str, Any]) -> dict[int, str]:
    """Return the queues of unfinished runs that a schedule does not know and that nothing terminates, oldest first."""
    task, tick, known = tx.tables.task.c, tx.tables.tick.c, known_runs(row)
    # A broadcast knows the runs of each runner. The others are between the last two: the first ones are known.
    after = known[0] if row["broadcast"] else known[-2]
    queue = sa.select(task.queue).where(task.id == tick.task_id, ~task.cancel_requested).scalar_subquery()
    later = sa.select(tick.task_id, queue.label("queue")).where(tick.schedule == row["id"], tick.task_id > after)
    runs = later.order_by(tick.task_id).offset(NO_JOIN).subquery().c
    rows = await tx.rows(sa.select(runs.task_id, runs.queue).where(runs.queue.is_not(None)).limit(MOST_REPLACED))
    return {run.task_id: run.queue for run in rows}


async def terminate(tx: Transaction, reasons: Mapping[int, str]) -> set[int]:
    """Cancel tasks: waiting and blocked ones now, running ones through their runners.

    Call it once per transaction: it locks the tasks in the order of their ids, and a second call could wait for a
    transaction that waits for the first one.

    Args:
        reasons: the reason by task id, which the history keeps; finished tasks stay as they are.

    Returns:
        The ids of the cancelled tasks.
    """
    if not reasons:
        return set()
    task = tx.tables.task
    selection = sa.select(task.c.id, task.c.state, task.c.fence).where(tx.dialect.one_of(task.c.id, sorted(reasons)))
    rows = await tx.rows(selection.order_by(task.c.id).with_for_update())
    running = [row.id for row in rows if row.state == State.RUNNING]
    idle = [FinishedTask(row.id, row.fence, error=reasons[row.id]) for row in rows if row.state != State.RUNNING]
    change = sa.update(task).values(version=next_version(task.c.version))
    if running:
        await tx.execute(change.where(tx.dialect.one_of(task.c.id, running)).values(cancel_requested=sa.true()))
    if idle:
        idle_ids = [ending.id for ending in idle]
        await tx.execute(change.where(tx.dialect.one_of(task.c.id, idle_ids)).values(UNASSIGNED))
        await count_unclaimed(tx, idle_ids)
        await finish(tx, "cancel", NO_RUNNER, idle)
    return {ending.id for ending in idle}


AFTER_QUEUES = chr(ord(RUNNER_QUEUE) + 1)
"""A name that sorts after the queues of single runners, and before all others that do."""


async def broadcast_runners(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the ids of the live runners that have the handler of a broadcast, by schedule."""
    runners = await _live_runners(tx) if rows else {}
    return {
        row["id"]: [runner_id for runner_id, handlers in runners.items() if row["handler"] in handlers] for row in rows
    }


async def _live_runners(tx: Transaction) -> dict[int, frozenset[str]]:
    """The handlers of the live runners by runner id."""
    runner = tx.tables.runner
    rows = await tx.rows(sa.select(runner.c.id, runner.c.handlers).where(runner.c.lease_until > db_now()))
    return {row.id: _names(row.handlers) for row in sorted(rows)}


def _names(text: str) -> frozenset[str]:
    try:
        return frozenset(name for name in json.loads(text) if isinstance(name, str))
    except (TypeError, ValueError):
        return frozenset()


async def abandon_rounds(tx: Transaction) -> list[int]:
    """Cancel the waiting tasks of runners that no longer exist, at most 1,000: no other runner claims them.

    Returns:
        The ids of the cancelled tasks.
    """
    task, runner = tx.tables.task, tx.tables.runner
    in_runner_queue = (task.c.queue >= RUNNER_QUEUE) & (task.c.queue < AFTER_QUEUES)
    waiting = is_state(task.c.state, State.WAITING) & in_runner_queue  # a range of the index of the claims
    owner: sa.ColumnElement[str] = sa.literal_column(f"'{RUNNER_QUEUE}'") + sa.cast(runner.c.id, sa.Text)
    orphans = sa.select(task.c.id).where(waiting, ~sa.exists().where(owner == task.c.queue)).limit(1_000)
    ids = [row.id for row in await tx.rows(orphans)]
    await terminate(tx, dict.fromkeys(ids, "its runner no longer exists"))
    return ids
