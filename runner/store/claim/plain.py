"""claim: assign due tasks to a runner, each to only one."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect, row_address
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, state_literal
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import (
    NO_JOIN,
    PositionTime,
    byte_count,
    ctid,
    db_later,
    db_now,
    from_position,
    next_version,
    seconds_until,
    to_position,
)
from runner.model.task import MOVES, Claimed
from runner.policy.claim_facts import ClaimScope
from runner.policy.claim_order import STRICT, ClaimOrder
from runner.policy.claim_policy import CLAIM_POLICY
from runner.policy.lanes import Lane
from runner.policy.positions import LanePosition
from runner.policy.selection import ANY, TaskSelection
from runner.policy.suspicion import Ask

LANE_COLUMNS: dict[str, Any] = {
    "number": sa.Integer,
    "queue": sa.Text,
    "handler": sa.Text,
    "priority": sa.SmallInteger,
    "hosts": sa.Text,
    "retried": sa.Boolean,
    "since": PositionTime,
    "since_id": sa.BigInteger,
    "max_attempts": sa.Integer,
    "timeout": sa.Float,
}

HOLDS = ("queue_held", "handler_held")
HELD_COLUMNS = LANE_COLUMNS | dict.fromkeys(HOLDS, sa.Boolean)
"""The columns of a lane, and whether the claim holds the limits of its queue and of its handler."""

LIMIT = sa.bindparam("limit", type_=sa.Integer)
PAYLOAD_LIMIT = sa.bindparam("payload_limit", type_=sa.BigInteger)
RUNNER_ID = sa.bindparam("runner_id", type_=sa.BigInteger)

LONGEST_TAGS = 10_000
"""Maximum size in bytes of tags that a runner loads, those of any submit; plain SQL may store more."""

NO_LIMIT = 2**62
"""More bytes than any payload has."""

POSITION = attrgetter("run_at", "id")

OF_ROW = [name for name in Claimed._fields if name not in Lane._fields]
"""The fields that a claim in one lane returns: its tasks share the lane, and each column takes a driver long."""
IN_ORDER = itemgetter(*map((*Lane._fields, *OF_ROW).index, Claimed._fields))

Among: TypeAlias = Literal["lane", "lanes", "suspects"]


class HandlerDefaults(NamedTuple):
    """max_attempts and timeout for tasks without their own; the claim writes them into the row."""

    max_attempts: int
    timeout: float | None
    """Seconds."""


class Claimant(NamedTuple):
    """The runner that claims."""

    runner_id: int
    host: str
    payload_limit: int = NO_LIMIT
    """Maximum size in bytes of a payload that the runner loads."""
    order: ClaimOrder = STRICT
    """Order in which it claims."""
    selection: TaskSelection = ANY
    """The tasks that it takes from its lanes."""


@needs(Needs.PREPARED)
async def claim(
    tx: Transaction,
    who: Claimant,
    lanes: Mapping[Lane, LanePosition],
    defaults: Mapping[str, HandlerDefaults],
    limit: int,
    starts: bool = True,
) -> list[Claimed]:
    """Claim due tasks, in the order of the runner.

    Args:
        tx: an open transaction; one statement is executed.
        lanes: the lanes to claim from, each with the position after which to start.
        defaults: the defaults of every handler in `lanes`, by name.
        limit: maximum number of tasks.
        starts: True if each task has a slot, so that its attempt counts from the claim; False if some wait for a slot.
            `mark_started` marks those of them that run long.

    Returns:
        The claimed tasks in the order in which to start them.
    """
    only = next(iter(lanes)) if len(lanes) == 1 else None
    prepared = _prepared(tx.tables, tx.driver, "lanes" if only is None else "lane", who.order, who.selection.names)
    return await _claim(tx, prepared, who, lanes, defaults, limit, starts=starts, only=only)


@needs(Needs.PREPARED)
async def claim_suspect(
    tx: Transaction,
    who: Claimant,
    lanes: Mapping[Lane, LanePosition],
    defaults: Mapping[str, HandlerDefaults],
    ask: Ask,
) -> list[Claimed]:
    """Claim due tasks that may have killed their runners, the oldest first.

    Tasks that run beside one that kills its runner are rescued along with it each time. In narrow groups, most of them
    keep their attempts; see runner.policy.suspicion.

    Args:
        tx: an open transaction; one statement is executed.
        lanes: the lanes to claim from.
        defaults: the defaults of every handler in `lanes`, by name.
        ask: which suspects.
    """
    prepared = _prepared(tx.tables, tx.driver, "suspects", who.order, who.selection.names)
    return await _claim(tx, prepared, who, lanes, defaults, ask.limit, starts=True, width=ask.width, among=ask.among)


class DueTask(NamedTuple):
    """A task that a claim would take, and its lane."""

    id: int
    lane: Lane


@needs(Needs.PREPARED)
async def first_due(
    tx: Transaction,
    who: Claimant,
    lanes: Mapping[Lane, LanePosition],
    limit: int,
    suspects: bool = False,
    is_held: Callable[[Lane], bool] = lambda _: True,
) -> list[DueTask]:
    """Return the first tasks that a claim from these lanes would take, in its order, and change nothing.

    It serves to find the rows that make a claim fail, or that it never returns. Limits of held lanes, and locks of
    other transactions, are ignored.

    Args:
        tx: an open transaction; one statement is executed.
        lanes: the lanes, each with the position after which to start.
        limit: maximum number of tasks.
        suspects: True for the tasks that `claim_suspect` takes.
        is_held: True for a lane whose limits the claim holds. A lane that is not held may have got a limit or an open
            breaker since the survey, so that a claim takes none of its tasks.
    """
    rows = [
        (number, *lane, *position, None, None, is_held(lane), is_held(lane))
        for number, (lane, position) in enumerate(lanes.items())
    ]
    parameters = tx.dialect.row_parameters("lane", HELD_COLUMNS, rows) | {"limit": limit}
    prepared = _first_due(tx.tables, tx.driver, who.order, who.selection.names, suspects=suspects)
    names = list(lanes)
    return [DueTask(id, names[number]) for number, id in await tx.run(prepared, parameters | who.selection.parameters)]


@lru_cache
def _first_due(
    tables: Tables, driver: sa.Dialect, order: ClaimOrder, selection: tuple[str, ...], *, suspects: bool
) -> Prepared:
    dialect, scope = DIALECTS[driver.name], ClaimScope(tables, HOLDS, selection)
    lane = open_lanes(dialect.rows("lane", HELD_COLUMNS), scope, several=True)
    row = tables.task.alias("due")
    if suspects:
        number = _same_lane(lane, row)
        conditions = (*CLAIM_POLICY.suspects(row.c, scope), number.offset(NO_JOIN).exists())
        columns = (number.limit(sa.literal_column("1")).scalar_subquery(), row.c.id)
        order_by = CLAIM_POLICY.isolation.order_by(row.c)
        return Prepared(sa.select(*columns).where(*conditions).order_by(*order_by).limit(LIMIT), driver)
    joined, task = dialect.for_each(lane, due_tasks(scope, row, lane).limit(LIMIT), tables.task)
    merged = (*order.of_lanes(task), *order.within_lane(task))
    return Prepared(sa.select(lane.c.number, task.id).select_from(joined).order_by(*merged).limit(LIMIT), driver)


@needs(Needs.PREPARED)
async def prepare_claims(tx: Transaction, who: Claimant) -> None:
    """Compile the claims that follow the first one of a runner, and execute nothing."""
    _prepared(tx.tables, tx.driver, "lane", who.order, who.selection.names)
    _prepared(tx.tables, tx.driver, "suspects", who.order, who.selection.names)


async def _claim(
    tx: Transaction,
    prepared: Prepared,
    who: Claimant,
    lanes: Mapping[Lane, LanePosition],
    defaults: Mapping[str, HandlerDefaults],
    limit: int,
    *,
    starts: bool,
    only: Lane | None = None,
    **asked: int,
) -> list[Claimed]:
    rows = await tx.run(prepared, claim_parameters(tx.dialect, who, lanes, defaults, limit, starts=starts) | asked)
    await tx.complete()
    return claimed_tasks(rows, who.order, lanes, only)


def claim_parameters(
    dialect: Dialect,
    who: Claimant,
    lanes: Mapping[Lane, LanePosition],
    defaults: Mapping[str, HandlerDefaults],
    limit: int,
    *,
    starts: bool,
) -> dict[str, Any]:
    """The parameters of a claim; see `claim`."""
    rows = [
        (number, *lane, position.run_at, position.id, *defaults[lane.handler])
        for number, (lane, position) in enumerate(lanes.items())
    ]
    return dialect.row_parameters("lane", LANE_COLUMNS, rows) | claim_values(who, limit, starts=starts)


def claimed_tasks(
    rows: Iterable[tuple[Any, ...]], order: ClaimOrder, lanes: Collection[Lane], only: Lane | None
) -> list[Claimed]:
    """The tasks of the rows of a claim, in the order in which to start them."""
    fields = rows if only is None else map(IN_ORDER, map(only.__add__, rows))
    # Within a lane, every order is that of the positions.
    return sorted(map(Claimed._make, fields), key=POSITION if len(lanes) == 1 else key_of(order))


def claim_values(who: Claimant, limit: int, *, starts: bool) -> dict[str, Any]:
    """The parameters of a claim besides its lanes; see `claim`."""
    values = {"limit": limit, "runner_id": who.runner_id, "host": who.host, "starts": starts}
    return values | {"payload_limit": who.payload_limit} | who.selection.parameters


def key_of(order: ClaimOrder) -> Callable[[Claimed], Any]:
    """The sort key of claimed tasks in an order."""
    return lambda task: order.sort_key(order.effective(task.priority, task.attempt > 1), task.run_at, task.id)


@lru_cache
def _prepared(
    tables: Tables, driver: sa.Dialect, among: Among, order: ClaimOrder, selection: tuple[str, ...]
) -> Prepared:
    return Prepared(claim_statement(tables, DIALECTS[driver.name], among, order, selection), driver)


def claim_statement(
    tables: Tables,
    dialect: Dialect,
    among: Among = "lanes",
    order: ClaimOrder = STRICT,
    selection: tuple[str, ...] = (),
) -> sa.Update:
    """Return the claim statement.

    Args:
        among: one lane, several lanes, or the suspects in them.
        order: the order over several lanes.
        selection: the names of the conditions of the runner's selection.
    """
    statement: sa.Update = claim_with_lanes(tables, dialect, among, order, selection)[0]
    return statement


def claim_with_lanes(
    tables: Tables,
    dialect: Dialect,
    among: Among,
    order: ClaimOrder,
    selection: tuple[str, ...],
    *,
    named: bool = False,
) -> tuple[Any, sa.CTE]:
    """Return the claim statement, and the lanes in it.

    Args:
        named: True to name the returned columns after the fields of Claimed.
    """
    scope = ClaimScope(tables, selection=selection)
    lane = open_lanes(dialect.rows("lane", LANE_COLUMNS), scope, several=among != "lane")
    match among:
        case "lane":
            tasks = first_of_lane(scope, lane, dialect)
        case "lanes":
            tasks = _first_in_need(scope, lane, dialect, order)
        case "suspects":
            tasks = first_suspect(scope, lane, dialect)
    update = claim_update(tables, dialect, lane, tasks, one_lane=among == "lane")
    fields = OF_ROW if among == "lane" else Claimed._fields
    columns = returned(tables.task, dialect, fields)
    if named:
        columns = [column.label(name) for name, column in zip(fields, columns, strict=True)]
    return update.returning(*columns), lane


def claim_update(
    tables: Tables, dialect: Dialect, lane: sa.CTE, selection: sa.Select[Any], *, one_lane: bool = False
) -> sa.Update:
    """Return the statement that claims the selected tasks of some lanes, without a RETURNING.

    Args:
        selection: the ids of the tasks; their ctids on a database with row addresses.
        one_lane: True if there is only one lane, whose defaults are read once and not for each task.
    """
    task = tables.task
    if dialect.row_addresses:
        # An array is computed once under any plan: IN (SELECT ... LIMIT n) can run again and take more than n.
        is_selected = ctid(task) == sa.func.any(sa.func.array(selection.scalar_subquery()))
    else:
        is_selected = task.c.id.in_(selection.scalar_subquery())
    rows = None if one_lane else task
    return (
        sa.update(task)
        .where(is_selected, _alive(tables.runner))
        .values(
            state=state_literal(MOVES["claim"].target),
            attempt=task.c.attempt + sa.literal_column("1"),
            # A settle of an earlier claim has another fence and finds no row, also if the same runner claims again.
            fence=task.c.fence + sa.literal_column("1"),
            version=next_version(task.c.version),
            runner_id=RUNNER_ID,
            host=sa.bindparam("host", type_=sa.Text),
            claimed_at=db_now(),
            started_at=sa.case((sa.bindparam("starts", type_=sa.Boolean), db_now())),
            # SQLite computes the deadline of the only lane once, and formats that of a task for each of them.
            deadline_at=sa.case(
                (task.c.timeout.is_(None), _of_handler(lane, db_later(db_now(), lane.c.timeout), rows)),
                else_=db_later(db_now(), task.c.timeout),
            ),
            max_attempts=sa.func.coalesce(task.c.max_attempts, _of_handler(lane, lane.c.max_attempts, rows)),
        )
    )


def returned(task: sa.Table, dialect: Dialect, fields: Sequence[str]) -> list[sa.ColumnElement[Any]]:
    """The columns of a claimed task for fields of Claimed."""
    size: sa.ColumnElement[int] = byte_count(task.c.payload)
    made: dict[str, sa.ColumnElement[Any]] = {
        # A few large payloads of plain inserts must not fill the memory of the runner.
        "payload": sa.case((size <= PAYLOAD_LIMIT, task.c.payload)),
        "tags": sa.case((byte_count(task.c.tags) <= LONGEST_TAGS, task.c.tags)),
        "oversize": sa.case((size > PAYLOAD_LIMIT, size)),
        "expires_in": seconds_until(task.c.expires_at),
        "address": ctid(task) if dialect.row_addresses else sa.null(),
        "run_at": to_position(task.c.run_at),
        "claimed_at": to_position(task.c.claimed_at),
        "has_order_key": task.c.order_key.is_not(None),
    }
    return [made[name] if name in made else task.c[name] for name in fields]


def open_lanes(lane: sa.FromClause, scope: ClaimScope, *, several: bool) -> sa.CTE:
    """The requested lanes, except lanes that were paused or limited after the survey; several are unpacked once."""
    columns = [from_position(column).label("since") if column.name == "since" else column for column in lane.c]
    lanes = sa.select(*columns).where(*CLAIM_POLICY.of_lane(lane.c, scope)).cte("lane")
    # SQLite 3.46 and newer evaluate a CTE once for each of its uses. PostgreSQL keeps one that is used twice.
    return lanes.prefix_with("MATERIALIZED", dialect="sqlite") if several else lanes


def first_of_lane(scope: ClaimScope, lane: sa.CTE, dialect: Dialect) -> sa.Select[Any]:
    """The first `limit` tasks of the only lane, which is the most frequent claim of a busy runner."""
    if dialect.row_locks:
        return _lock_first(scope, lane, lane, LIMIT)
    # Single values, where a join would hide from SQLite that the index has the order that is asked for.
    only = {name: sa.select(lane.c[name]).scalar_subquery() for name in LANE_COLUMNS}
    row = scope.tables.task.alias("due")
    return CLAIM_POLICY.walk(row, SimpleNamespace(**only), scope).with_only_columns(row.c.id).limit(LIMIT)


def _first_in_need(scope: ClaimScope, lane: sa.CTE, dialect: Dialect, order: ClaimOrder) -> sa.Select[Any]:
    """The first `limit` tasks over all lanes."""
    due = due_tasks(scope, scope.tables.task.alias("due"), lane).limit(LIMIT)
    joined, row = dialect.for_each(lane, due, scope.tables.task)
    merged = (*order.of_lanes(row), *order.within_lane(row))
    head = sa.select(lane.c.number, row.id).select_from(joined).order_by(*merged).limit(LIMIT)
    if not dialect.row_locks:
        return head.with_only_columns(row.id)
    # The order over all lanes is computed without locks and gives only the number of tasks per lane. These are then
    # locked lane by lane with SKIP LOCKED: competing runners take the next tasks and never wait, and no more rows are
    # locked than claimed.
    return lock_shares(scope, lane, head.cte("head"))


def lock_shares(scope: ClaimScope, lane: sa.CTE, head: sa.CTE) -> sa.Select[Any]:
    """Lock as many tasks of each lane as the head has, and return their ctids."""
    share = sa.select(head.c.number, sa.func.count().label("tasks")).group_by(head.c.number).cte("share")
    return _lock_first(scope, lane, share.join(lane, lane.c.number == share.c.number), share.c.tasks)


def _lock_first(scope: ClaimScope, lane: sa.CTE, source: sa.FromClause, tasks: Any) -> sa.Select[Any]:
    """Lock the first tasks of each lane that no other transaction has locked, and return their ctids."""
    row = scope.tables.task.alias("due")
    first = due_tasks(scope, row, lane).with_only_columns(ctid(row)).limit(tasks).with_for_update(skip_locked=True)
    locked = first.correlate(source, lane).lateral("locked")
    return sa.select(locked.c.ctid).select_from(source.join(locked, sa.true()))


def due_tasks(scope: ClaimScope, row: sa.FromClause, lane: sa.CTE) -> sa.Select[Any]:
    """The due tasks of each lane after its position, in order."""
    return CLAIM_POLICY.walk(row, lane.c, scope).correlate(lane)


def first_suspect(scope: ClaimScope, lane: sa.CTE, dialect: Dialect, full: Any = None) -> sa.Select[Any]:
    """The first due suspects in the lanes: a walk along the small index `rescued`.

    Args:
        full: tenants of which none may start, with the queue and the handler whose limit they have reached.
    """
    row, isolation = scope.tables.task.alias("due"), CLAIM_POLICY.isolation
    # As a join it would walk every due task of the lanes instead.
    in_lanes = _same_lane(lane, row).offset(NO_JOIN).exists()
    fits = () if full is None else (~_is_full(full, row),)
    address, width = row_address(row, dialect), isolation.width(row.c)
    oldest = (
        sa.select(address.label("address"), width.label("width"))
        .where(*CLAIM_POLICY.suspects(row.c, scope), in_lanes, *fits)
        .where(width >= sa.bindparam("among", type_=sa.Integer))
        .order_by(*isolation.order_by(row.c))
        .limit(LIMIT)
        .with_for_update(skip_locked=True, of=row)
        .subquery("oldest")
    )
    return sa.select(oldest.c.address).where(oldest.c.width >= sa.bindparam("width", type_=sa.Integer))


def _is_full(full: sa.FromClause, row: sa.FromClause) -> sa.ColumnElement[bool]:
    same = [full.c[name] == row.c[name] for name in ("queue", "handler", "tenant")]
    return sa.select(full.c.tenant).where(*same).offset(NO_JOIN).correlate(row).exists()


def _same_lane(lane: sa.CTE, row: sa.FromClause) -> sa.Select[Any]:
    """The lanes of a suspect, of any priority."""
    return sa.select(lane.c.number).where(
        lane.c.queue == row.c.queue, lane.c.handler == row.c.handler, lane.c.hosts == row.c.hosts
    )


def _alive(runner: sa.Table) -> sa.ColumnElement[bool]:
    """The condition that the lease of the claiming runner is valid; otherwise the claim returns nothing."""
    return sa.exists().where(runner.c.id == RUNNER_ID, runner.c.lease_until >= db_now())


def _of_handler(lane: sa.CTE, default: sa.ColumnElement[Any], task: sa.Table | None) -> sa.ScalarSelect[Any]:
    """A default of the handler of a task, or of the only lane."""
    one = sa.select(default)
    if task is None:
        return one.scalar_subquery()
    same = one.where(lane.c.handler == task.c.handler).limit(sa.literal_column("1"))
    return same.correlate(task).scalar_subquery()
