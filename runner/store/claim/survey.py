"""survey: find the lanes with waiting tasks, and the time at which the first task of each is due."""

from collections.abc import Collection
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import Instant, db_now, seconds_until
from runner.model.task import State
from runner.policy.claim_facts import ClaimScope
from runner.policy.claim_policy import CLAIM_POLICY, LIMITED, PAUSED
from runner.policy.lanes import Head, Lane, runner_queue
from runner.policy.selection import ANY, RUNNER_QUEUE_SQL, TaskSelection, selected
from runner.store.hosts import admitted_by
from runner.store.steps import is_suspended

MANY = 2_000
"""Maximum number of lanes that a survey returns to a runner. The next survey returns others."""

DENSE = 1_000_000
"""Maximum number of index entries to read one after the other where lanes are many and short."""

LANE = Lane._fields


class SurveyScope(NamedTuple):
    """The lanes that a runner claims from.

    Args:
        queues: its queues; empty for all.
        limit: maximum number of lanes to return.
        skip: number of lanes to leave out, in the order of the claims.
        dense: maximum number of index entries to read one after the other before the walk from lane to lane. A short
            lane is read faster than it is skipped.
        host: its host; lanes for other hosts are left out.
    """

    handlers: Collection[str]
    queues: Collection[str]
    limit: int
    skip: int = 0
    dense: int = 0
    host: str = ""


@needs(Needs.PREPARED)
async def survey(
    tx: Transaction,
    scope: SurveyScope | None = None,
    most: int | None = None,
    within: Collection[str] | None = None,
) -> list[Head]:
    """Return lanes with waiting tasks, each with the time of its first task.

    The cost grows with the number of lanes, not of tasks: one index look-up per lane.

    Args:
        tx: an open transaction; one statement is executed.
        scope: the lanes of a runner; None for those of every handler, paused or not.
        most: maximum number of lanes to read without a scope, in the order of their names; None for all.
        within: read only the lanes of these queues, without a scope; None for those of all queues.

    Returns:
        One head per lane. With a scope: only lanes that are not paused, in the order in which they are claimed, and the
        lanes that are not due yet after them, the earliest first.
    """
    names: tuple[str, ...] = ()
    parameters: dict[str, Any] = {} if most is None else {"most": most}
    if scope is not None:
        parameters = {"limit": scope.limit, "skip": scope.skip, "dense": scope.dense}
        parameters["host"] = f",{scope.host},"
        for name, values in (("handlers", scope.handlers), ("queues", scope.queues)):
            if values or name == "handlers":
                names += (name,)
                parameters |= tx.dialect.parameters(name, {"name": list(values)})
    if within is not None:
        parameters |= tx.dialect.parameters("within", {"queue": list(within)})
    dense, bounded = bool(parameters.get("dense")), most is not None
    prepared = _prepared(tx.tables, tx.driver, names, dense=dense, bounded=bounded, within=within is not None)
    rows = await tx.walk(prepared, parameters)
    return [
        Head(
            Lane(queue, handler, priority, hosts, bool(retried)),
            run_at,
            float(wait),
            bool(paused),
            first or None,
            bool(limited),
            first == 0,
        )
        for queue, handler, priority, hosts, retried, run_at, wait, paused, first, limited in rows
    ]


@lru_cache
def _prepared(
    tables: Tables, driver: sa.Dialect, names: tuple[str, ...], *, dense: bool, bounded: bool, within: bool
) -> Prepared:
    """The statement of a survey.

    Args:
        names: the restrictions of a scope, "handlers" and "queues"; empty for all lanes.
        dense: read index entries one after the other first.
        bounded: stop the walk after `most` lanes.
        within: walk through the lanes of some queues, one queue after the other.
    """
    dialect = DIALECTS[driver.name]
    if within:
        head: Any = walk_of_lanes(tables, dialect, _before_each(dialect), same_queue=True)
    else:
        head = _dense_heads(tables, dialect) if dense else walk_of_lanes(tables, dialect, before_all_lanes())
    registries = ((head.c.queue, tables.queue), (head.c.handler, tables.handler))
    # As sets that are read once; joined, a planner that expects few lanes would look each of them up.
    paused = [name.in_(sa.select(entry.c.name).where(PAUSED.is_paused(entry))) for name, entry in registries]
    limited = [name.in_(sa.select(entry.c.name).where(LIMITED.is_limited(entry))) for name, entry in registries]
    selection = sa.select(*head.c, sa.or_(*paused).label("paused"), sa.or_(*limited).label("limited"))
    if names:
        column = {"handlers": head.c.handler, "queues": head.c.queue}
        accepted = [column[name].in_(sa.select(dialect.rows(name, {"name": sa.Text}).c.name)) for name in names]
        limit, skip = (sa.bindparam(name, type_=sa.Integer) for name in ("limit", "skip"))
        accepted.append(admitted_by(head.c.hosts, sa.bindparam("host", type_=sa.Text)))
        selection = selection.where(*accepted, ~sa.or_(*paused)).order_by(*_claim_order(head)).limit(limit).offset(skip)
    elif bounded:
        selection = selection.limit(sa.bindparam("most", type_=sa.Integer))  # without a sort, it ends the recursion
    lane = selection.subquery("selection")
    columns = (*(lane.c[name] for name in LANE), lane.c.run_at, seconds_until(lane.c.run_at), lane.c.paused)
    return Prepared(sa.select(*columns, _first(tables, lane), lane.c.limited), driver)


def _claim_order(head: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    """The due lanes in the order of claims, then the others by time."""
    later = head.c.run_at > db_now()
    due = SimpleNamespace(priority=sa.case((later, sa.null()), else_=head.c.priority))
    return [later, *CLAIM_POLICY.order.of_lanes(due), head.c.run_at]


def _first(tables: Tables, lane: sa.Subquery) -> sa.ScalarSelect[int]:
    """The id of the first task of a lane if no claim ever takes it; 0 if it has an order key; null otherwise."""
    task = tables.task.alias("first").c
    never = CLAIM_POLICY.is_never_claimed(task, ClaimScope(tables))
    # From its time on: the walk has passed the dead entries before it already.
    mine = (*(task[name] == lane.c[name] for name in LANE), task.run_at >= lane.c.run_at)
    in_order: Any = (task.order_key.is_not(None), sa.literal_column("0"))
    first = sa.select(sa.case((never, task.id), in_order)).where(is_state(task.state, State.WAITING), *mine)
    first = first.order_by(*CLAIM_POLICY.order.within_lane(task)).limit(sa.literal_column("1"))
    return first.correlate(lane).scalar_subquery()


def _dense_heads(tables: Tables, dialect: Dialect) -> sa.Subquery:
    """The lanes of the first index entries, read one after the other, and then those of a walk from lane to lane."""
    row = tables.task.alias("short")
    entries = _along_index(row).limit(sa.bindparam("dense", type_=sa.Integer)).subquery("entry").c
    lane = [entries[name] for name in LANE]
    dense = sa.select(*lane, sa.func.min(entries.run_at).label("run_at")).group_by(*lane).cte("dense")
    one: sa.ColumnElement[int] = sa.literal_column("1")
    last = sa.select(dense).order_by(*(dense.c[name].desc() for name in LANE)).limit(one).subquery("last")
    start = sa.select(*(last.c[name] for name in LANE)).select_from(before_all_lanes().outerjoin(last, sa.true()))
    walk = walk_of_lanes(tables, dialect, start.subquery("behind"))
    return sa.union_all(sa.select(dense), sa.select(walk)).subquery("head")


def before_all_lanes() -> sa.Subquery:
    """One row, which is before every lane."""
    columns: list[sa.ColumnElement[Any]] = [sa.literal_column(none) for none in _NONE]
    return sa.select(*(column.label(name) for name, column in zip(LANE, columns, strict=True))).subquery("start")


def _before_each(dialect: Dialect) -> sa.Subquery:
    """One row for each queue of `within`, which is before its lanes."""
    queue = dialect.rows("within", {"queue": sa.Text}).c.queue
    types: tuple[sa.types.TypeEngine[Any], ...] = (sa.Text(), sa.SmallInteger(), sa.Text(), sa.Boolean())
    none = (sa.literal_column(text, type_) for text, type_ in zip(_NONE[1:], types, strict=True))
    columns: tuple[sa.ColumnElement[Any], ...] = (queue, *none)
    return sa.select(*(column.label(name) for name, column in zip(LANE, columns, strict=True))).subquery("start")


def walk_of_lanes(tables: Tables, dialect: Dialect, start: sa.FromClause, *, same_queue: bool = False) -> sa.CTE:
    """Walk the index of waiting tasks from lane to lane, a "loose index scan".

    Neither database skips within an index by itself (SELECT DISTINCT reads all of it), so a recursive query looks up
    the first row behind the lane of the last one: one search of the index per lane.

    Args:
        start: one row, the lane before the walk; null for all lanes.
        same_queue: each walk ends with its queue; there may be several rows in `start`.
    """
    heads = _following(tables, dialect, start, same_queue=same_queue).cte("walk", recursive=True)
    return heads.union_all(_following(tables, dialect, heads, same_queue=same_queue))


def _following(tables: Tables, dialect: Dialect, lanes: sa.FromClause, *, same_queue: bool) -> sa.Select[Any]:
    """The first task behind each lane, of any queue or of the same one; the first of all behind one that is null."""
    beyond = tables.task.alias("beyond")
    # As an expression: a comparison of SQLite's columns with one another could not use the index.
    lane = (sa.func.coalesce(lanes.c[name], sa.literal_column(none)) for name, none in zip(LANE, _NONE, strict=True))
    # With the end of the lane: SQLite begins with the row that equals the compared one.
    end = sa.tuple_(*lane, sa.literal_column(_END, Instant))
    further = sa.tuple_(*(beyond.c[name] for name in (*LANE, "run_at"))) > end
    queue = (beyond.c.queue == lanes.c.queue,) if same_queue else ()
    one = _along_index(beyond, further, *queue).limit(sa.literal_column("1")).correlate(lanes)
    source, row = dialect.first_of_each(lanes, one, tables.task)
    return sa.select(*(row[name] for name in (*LANE, "run_at"))).select_from(source)


_NONE = ("''", "''", "0", "''", "false")
"""The columns of a lane before all others."""

_END = "'9999-12-31'"
"""A time after every `run_at`, in a form that both databases read."""


def _along_index(task: Any, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    order = (*(task.c[name] for name in LANE), task.c.run_at, task.c.id)
    return sa.select(*order).where(is_state(task.c.state, State.WAITING), *conditions).order_by(*order)


CAP = 10_000
"""Upper bound of the count."""


class Pending(NamedTuple):
    """The remaining work of a runner.

    Args:
        running: True if a runner has one of their tasks.
        returning: True if a task is due, or waits for another attempt.
        later: number of tasks scheduled for later that were never tried, or that sleep or wait for a signal, up to CAP;
            0 while other work remains.
        example: a task that is due, or waits for another attempt.
    """

    running: bool
    returning: bool
    later: int
    example: int | None = None


@needs(Needs.PREPARED)
async def pending(
    tx: Transaction,
    runner_id: int,
    host: str,
    handlers: Collection[str],
    queues: Collection[str] = (),
    selection: TaskSelection = ANY,
    *,
    retries: bool = True,
) -> Pending:
    """Return the remaining work of a runner: the tasks that it or another runner with its selection will take.

    The cost grows with the number of lanes and, with a selection, with the waiting tasks in the runner's own lanes.

    Args:
        tx: an open transaction; two statements are executed.
        host: its host; tasks for other hosts are left out.
        queues: its queues; empty for all but those of other runners.
        retries: False to count the tasks that wait for another attempt as later ones.
    """
    values = {"host": f",{host},", "own": runner_queue(runner_id)} | selection.parameters
    for name, names in (("handlers", handlers), ("queues", queues)):
        values |= tx.dialect.parameters(name, {"name": list(names)}) if names or name == "handlers" else {}
    now, later = _prepared_pending(tx.tables, tx.driver, selection.names, some_queues=bool(queues), retries=retries)
    (row,) = await tx.run(now, values)
    if any(row):
        return Pending(bool(row[0]), row[1] is not None, 0, row[1])
    (row,) = await tx.run(later, values)
    return Pending(running=False, returning=False, later=int(row[0]))


@lru_cache
def _prepared_pending(
    tables: Tables, driver: sa.Dialect, selection: tuple[str, ...], *, some_queues: bool, retries: bool
) -> tuple[Prepared, Prepared]:
    dialect, task = DIALECTS[driver.name], tables.task.alias("mine").c
    mine = _of_runner(task, dialect, some_queues=some_queues)
    running = sa.select(task.id).where(is_state(task.state, State.RUNNING), *mine, *selected(task, selection))

    lane, row = _lanes_of_runner(tables, dialect, some_queues=some_queues), tables.task.alias("first")
    tried = (row.c.fence > sa.literal_column("0")) & ~is_suspended(row.c.id, tables) if retries else sa.false()
    due = row.c.run_at <= db_now()
    claimable = (*selected(row.c, selection), *CLAIM_POLICY.of_task(row.c, ClaimScope(tables)))
    waiting = _along_index(row, *(row.c[name] == lane.c[name] for name in LANE), *claimable).correlate(lane)
    one: Any = sa.literal_column("1")
    cap: Any = sa.literal_column(str(CAP))
    source, first = dialect.first_of_each(lane, waiting.where(tried | due).limit(one), tables.task)
    now = sa.select(running.exists(), sa.select(first.id).select_from(source).limit(one).scalar_subquery())

    # As a range of the index, which passes over the due tasks of other buckets.
    source, rest = dialect.for_each(lane, waiting.where(row.c.run_at > db_now(), ~tried).limit(cap), tables.task)
    some = sa.select(rest.id).select_from(source).limit(cap).subquery("some")
    return Prepared(now, driver), Prepared(sa.select(sa.func.count()).select_from(some), driver)


def _lanes_of_runner(tables: Tables, dialect: Dialect, *, some_queues: bool) -> sa.CTE:
    """The lanes of a runner that are not paused."""
    head = walk_of_lanes(tables, dialect, before_all_lanes())
    paused = PAUSED.pauses_of(head.c, tables)
    return sa.select(head).where(*_of_runner(head.c, dialect, some_queues=some_queues), ~sa.or_(*paused)).cte("lane")


def _of_runner(lane: Any, dialect: Dialect, *, some_queues: bool) -> list[sa.ColumnElement[bool]]:
    """The SQL that a lane, or a task, has a handler, a queue and the host of the runner."""
    accepted = {name: dialect.rows(name, {"name": sa.Text}).c.name for name in ("handlers", "queues")}
    any_queue: sa.ColumnElement[bool] = sa.func.substr(lane.queue, *_FIRST_CHARACTER) != RUNNER_QUEUE_SQL
    shared = lane.queue.in_(sa.select(accepted["queues"])) if some_queues else any_queue
    own = lane.queue == sa.bindparam("own", type_=sa.Text)
    admits = admitted_by(lane.hosts, sa.bindparam("host", type_=sa.Text))
    return [lane.handler.in_(sa.select(accepted["handlers"])), shared | own, admits]


_FIRST_CHARACTER: Any = (sa.literal_column("1"), sa.literal_column("1"))
