"""claim: hand out due tasks, each to one runner."""

from collections.abc import Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.columns import NO_JOIN, Instant, ctid, db_later, db_now, minute_number
from runner.policy.selection import Lane, Place
from runner.schema import Tables, state_literal
from runner.store.dialects import DIALECTS, Dialect, by_column
from runner.store.eligible import has_attempts_left, is_due, is_suspect
from runner.store.statement import Prepared
from runner.store.survey import is_paused
from runner.store.transaction import Transaction
from runner.task import MOVES, Claimed

LANE_COLUMNS: dict[str, Any] = {
    "number": sa.Integer,
    "queue": sa.Text,
    "handler": sa.Text,
    "priority": sa.SmallInteger,
    "since": Instant,
    "since_id": sa.BigInteger,
    "max_attempts": sa.Integer,
    "timeout": sa.Float,
}

LIMIT = sa.bindparam("limit", type_=sa.Integer)

Among: TypeAlias = Literal["lane", "lanes", "suspects"]


class Terms(NamedTuple):
    """What a handler gives to tasks that do not say it themselves; written into the row when it is claimed."""

    max_attempts: int
    timeout: float | None
    """Seconds."""


class Claimant(NamedTuple):
    """Who claims."""

    runner_id: int
    host: str


async def claim(
    tx: Transaction, who: Claimant, lanes: Mapping[Lane, Place], terms: Mapping[str, Terms], limit: int
) -> list[Claimed]:
    """Hand out due tasks: higher priority first, then the earlier time, then the lower id.

    Args:
        tx: an open transaction; one statement is executed.
        who: the runner that takes them.
        lanes: where to look, each from the place behind which to start.
        terms: of every handler in `lanes`, by name.
        limit: the most tasks to hand out.

    Returns:
        The tasks that were really taken, in the order in which they are to be started.
    """
    among: Among = "lane" if len(lanes) == 1 else "lanes"
    return await _claim(tx, _prepared(tx.tables, tx.driver, among), who, lanes, terms, limit)


async def claim_suspect(
    tx: Transaction, who: Claimant, lanes: Mapping[Lane, Place], terms: Mapping[str, Terms]
) -> list[Claimed]:
    """Hand out one due task that may have killed its runner, to be run with no other such task beside it.

    Whoever was merely claimed beside a task that kills its runner is rescued along with it each time. Taken one at a
    time, only the culprit uses up its attempts.
    """
    return await _claim(tx, _prepared(tx.tables, tx.driver, "suspects"), who, lanes, terms, 1)


async def _claim(
    tx: Transaction,
    prepared: Prepared,
    who: Claimant,
    lanes: Mapping[Lane, Place],
    terms: Mapping[str, Terms],
    limit: int,
) -> list[Claimed]:
    rows = [
        (number, *lane, place.run_at, place.id, *terms[lane.handler])
        for number, (lane, place) in enumerate(lanes.items())
    ]
    parameters = tx.dialect.parameters("lane", by_column(LANE_COLUMNS, rows))
    parameters |= {"limit": limit, "runner_id": who.runner_id, "host": who.host}
    claimed = [Claimed._make(row) for row in await tx.run(prepared, parameters)]
    claimed.sort(key=lambda task: (-task.priority, task.run_at, task.id))
    return claimed


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect, among: Among) -> Prepared:
    return Prepared(claim_statement(tables, DIALECTS[driver.name], among), driver)


def claim_statement(tables: Tables, dialect: Dialect, among: Among = "lanes") -> sa.Update:
    """The claim, whole.

    Args:
        tables: of the installation.
        dialect: of the database.
        among: what to claim from: one lane, several, or the tasks in them that lived through lost runners.
    """
    task = tables.task
    # MATERIALIZED by being used more than once: the lanes are unpacked once.
    lane = _open_lanes(tables, dialect.rows("lane", LANE_COLUMNS))
    match among:
        case "lane":
            chosen = _first_of_lane(task, lane, dialect)
        case "lanes":
            chosen = _first_in_need(task, lane, dialect)
        case "suspects":
            chosen = _first_suspect(task, lane, dialect)
    if dialect.isolates_rows:
        # An array is computed once, whatever the plan: IN (SELECT ... LIMIT n) can run again and take more than n.
        taken = ctid(task) == sa.func.any(sa.func.array(chosen.scalar_subquery()))
    else:
        taken = task.c.id.in_(chosen.scalar_subquery())
    given = {name: _of_handler(lane, name, task) for name in ("max_attempts", "timeout")}
    return (
        sa.update(task)
        .where(taken, _alive(tables.runner))
        .values(
            state=state_literal(MOVES["claim"].target),
            attempt=task.c.attempt + sa.literal_column("1"),
            fence=task.c.fence + sa.literal_column("1"),
            version=task.c.version + sa.literal_column("1"),
            runner_id=sa.bindparam("runner_id", type_=sa.BigInteger),
            host=sa.bindparam("host", type_=sa.Text),
            claimed_at=db_now(),
            deadline_at=db_later(db_now(), sa.func.coalesce(task.c.timeout, given["timeout"])),
            max_attempts=sa.func.coalesce(task.c.max_attempts, given["max_attempts"]),
        )
        .returning(*_handed_out(task))
    )


def _handed_out(task: sa.Table) -> list[sa.ColumnElement[Any]]:
    """The columns of a claimed task."""
    made: dict[str, sa.ColumnElement[Any]] = {"submitted": minute_number(task.c.submitted_at)}
    return [made[name] if name in made else task.c[name] for name in Claimed._fields]


def _open_lanes(tables: Tables, lane: sa.FromClause) -> sa.CTE:
    """The lanes that were asked for, without those that have been paused since they were surveyed."""
    queue = sa.exists().where(tables.queue.c.name == lane.c.queue, is_paused(tables.queue))
    handler = sa.exists().where(tables.handler.c.name == lane.c.handler, is_paused(tables.handler))
    return sa.select(lane).where(~queue, ~handler).cte("lane")


def _first_of_lane(task: sa.Table, lane: sa.CTE, dialect: Dialect) -> sa.Select[Any]:
    """The first `limit` tasks of the only lane: what most claims of a busy runner ask for."""
    if dialect.isolates_rows:
        return _taken(task, lane, lane, LIMIT)
    # Single values, where a join would hide from SQLite that the index has the order that is asked for.
    only = {name: sa.select(lane.c[name]).scalar_subquery() for name in LANE_COLUMNS}
    row = task.alias("due")
    return _in_order(row, SimpleNamespace(**only)).with_only_columns(row.c.id).limit(LIMIT)


def _first_in_need(task: sa.Table, lane: sa.CTE, dialect: Dialect) -> sa.Select[Any]:
    """The first `limit` tasks over all lanes."""
    found, row = dialect.for_each(lane, _due(task.alias("due"), lane).limit(LIMIT), task)
    need = (row.priority.desc(), row.run_at, row.id)
    head = sa.select(lane.c.number, row.id).select_from(found).order_by(*need).limit(LIMIT)
    if not dialect.isolates_rows:
        return head.with_only_columns(row.id)
    # The order over all lanes is found without locks, and tells only how many of each lane are in need. These are
    # then locked lane by lane, skipping what others hold: rivals take the next ones and never wait, and no more
    # rows are locked than are taken.
    numbers = head.cte("head")
    share = sa.select(numbers.c.number, sa.func.count().label("tasks")).group_by(numbers.c.number).cte("share")
    parts = share.join(lane, lane.c.number == share.c.number)
    return _taken(task, lane, parts, share.c.tasks)


def _taken(task: sa.Table, lane: sa.CTE, source: sa.FromClause, tasks: Any) -> sa.Select[Any]:
    """The places of the first so many tasks of each lane that nobody else holds, locked."""
    row = task.alias("due")
    first = _due(row, lane).with_only_columns(ctid(row)).limit(tasks).with_for_update(skip_locked=True)
    taken = first.correlate(source, lane).lateral("taken")
    return sa.select(taken.c.ctid).select_from(source.join(taken, sa.true()))


def _due(row: sa.FromClause, lane: sa.CTE) -> sa.Select[Any]:
    """The due tasks of each lane behind its place, in order."""
    return _in_order(row, lane.c).correlate(lane)


def _in_order(row: sa.FromClause, lane: Any) -> sa.Select[Any]:
    """The due tasks of a lane, given by its values, behind its place: a walk along the index `ready`."""
    return (
        sa.select(row.c.id, row.c.priority, row.c.run_at)
        .where(
            is_due(row),
            row.c.queue == lane.queue,
            row.c.handler == lane.handler,
            row.c.priority == lane.priority,
            sa.tuple_(row.c.run_at, row.c.id) > sa.tuple_(lane.since, lane.since_id),
            has_attempts_left(row),
            ~is_suspect(row),
        )
        .order_by(row.c.run_at, row.c.id)
    )


def _first_suspect(task: sa.Table, lane: sa.CTE, dialect: Dialect) -> sa.Select[Any]:
    """The place of the first due suspect in the lanes: a walk along the small index `rescued`."""
    row = task.alias("due")
    mine = sa.select(lane.c.number).where(lane.c.queue == row.c.queue, lane.c.handler == row.c.handler)
    # As a join it would walk every due task of the lanes instead.
    ours = mine.offset(NO_JOIN).exists()
    return (
        sa.select(ctid(row) if dialect.isolates_rows else row.c.id)
        .where(is_due(row), row.c.rescues > sa.literal_column("0"), is_suspect(row), has_attempts_left(row), ours)
        .order_by(row.c.run_at, row.c.id)
        .limit(LIMIT)
        .with_for_update(skip_locked=True, of=row)
    )


def _alive(runner: sa.Table) -> sa.ColumnElement[bool]:
    """The condition that the claiming runner's lease holds; without it nothing is handed out."""
    me = runner.c.id == sa.bindparam("runner_id", type_=sa.BigInteger)
    return sa.exists().where(me, runner.c.lease_until >= db_now())


def _of_handler(lane: sa.CTE, column: str, task: sa.Table) -> sa.ScalarSelect[Any]:
    one = sa.select(lane.c[column]).where(lane.c.handler == task.c.handler).limit(sa.literal_column("1"))
    return one.correlate(task).scalar_subquery()
