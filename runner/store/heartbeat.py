"""heartbeat: renew the leases of runners, read their commands, and store what they report of themselves."""

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, db_later, db_now
from runner.model.task import State


class Renewal(NamedTuple):
    """The reply to a renewal.

    Args:
        alive: False if a rescue removed the runner; then nothing was changed.
        late: True if the lease had expired.
    """

    alive: bool
    late: bool


class LoopBlock(NamedTuple):
    """The reason why a runner sends no heartbeat, although it is alive.

    Args:
        seconds: time without a heartbeat, at the renewal of the lease beside it.
        tasks: id and handler of the task that is the reason, or of the possible ones.
        place: file and line of the handler, or the name of another coroutine; empty if unknown.
        locked: True if not even the threads of the runner send a ping, probably because C code holds the
            interpreter lock; False if a coroutine blocks the event loop.
        fact: the observed state of the thread that probably keeps the others from running; empty if unknown.
    """

    seconds: float
    tasks: Sequence[tuple[int, str]] = ()
    place: str = ""
    locked: bool = False
    fact: str = ""


def renew(frame: Frame, runner_id: int, lease: float, block: LoopBlock) -> Steps[Renewal]:
    """Renew a lease beside the heartbeat, unless a rescue has removed the runner.

    Args:
        lease: length of the lease in seconds from now.
        block: the reason, which the next heartbeat clears.
    """
    look, update = _prepared(frame.tables, frame.driver)
    rows = yield Step(look, {"runner": runner_id})
    renewed = yield Step(update, {"runner": runner_id, "lease": lease, "stall": json.dumps(block._asdict())})
    return Renewal(bool(renewed), bool(rows and rows[0][0]))


def end_lease(frame: Frame, runner_id: int) -> Steps[None]:
    """End the lease of a runner whose process has ended; others rescue its tasks."""
    runner = frame.tables.runner
    valid = runner.c.lease_until > db_now()
    ended = sa.update(runner).where(_is_it(frame.tables), valid).values(lease_until=db_now()).returning(runner.c.id)
    yield Step(Prepared(ended, frame.driver), {"runner": runner_id})


MOST_SUSPECTS = 5
"""Maximum number of tasks that are named while no thread of a runner sends a ping."""


def suspects(frame: Frame, runner_id: int) -> Steps[list[tuple[int, str]]]:
    """Read id and handler of the tasks that a runner executes, the last started first."""
    task = frame.tables.task.c
    latest = (
        sa.select(task.id, task.handler)
        .where(*_is_running_on_it(frame.tables))
        .order_by(task.claimed_at.desc(), task.id.desc())
    )
    rows = yield Step(Prepared(latest.limit(MOST_SUSPECTS), frame.driver), {"runner": runner_id})
    return [(int(row[0]), str(row[1])) for row in rows]


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    runner = tables.runner
    same = _is_it(tables)
    until = db_later(db_now(), sa.bindparam("lease", type_=sa.Float))
    stall = sa.bindparam("stall", type_=runner.c.stall.type)
    update = sa.update(runner).where(same).values(heartbeat_at=db_now(), lease_until=until, stall=stall)
    look = sa.select((runner.c.lease_until < db_now()).label("late")).where(same)
    return Prepared(look, driver), Prepared(update.returning(runner.c.id), driver)


class HeartbeatReply(NamedTuple):
    """The reply to a heartbeat.

    Args:
        alive: False if a rescue removed the runner and took its tasks: it must register again.
        command: the runner command of an operator, see runner.policy.runner_command; None without one.
        cancelled: ids of its tasks to terminate.
        late: True if the last heartbeat was too long ago: the database may have been unavailable, and the leases of
            other runners may have expired.
    """

    alive: bool
    command: str | None
    cancelled: frozenset[int]
    late: bool = False


class Usage(NamedTuple):
    """The resources that a runner and its handler processes use.

    Args:
        cpu: processors in use since the reading before: 1.5 for one and a half; None if unknown.
        memory: resident memory in bytes; None if unknown.
    """

    cpu: float | None = None
    memory: int | None = None


UNKNOWN_USAGE = Usage()


@needs(Needs.PREPARED)
async def heartbeat(
    tx: Transaction,
    runner_id: int,
    lease: float,
    running: int,
    gap: float,
    abandoned: tuple[int, int] = (0, 0),
    usage: Usage = UNKNOWN_USAGE,
    tasks: Collection[int] = (),
) -> HeartbeatReply:
    """Renew a runner's lease, unless a rescue has removed the runner.

    A runner that was frozen beyond its lease continues if no rescue took its tasks. Renewal and rescue serialize on the
    runner's row. Nothing here reads the index of running tasks, which an old snapshot fills with dead entries.

    Args:
        tx: an open transaction; two statements are executed.
        lease: length of the lease in seconds from now.
        running: number of tasks in flight.
        gap: seconds since the last heartbeat above which the reply is late.
        abandoned: number of abandoned threads, and of replaced ones.
        tasks: ids of the tasks in flight, of which the reply has those to terminate.
    """
    mine = {"runner": runner_id, "gap": -gap}
    rows = await tx.run(_reply_statement(tx.tables, tx.driver), mine | tx.dialect.parameters("mine", {"id": [*tasks]}))
    renewal = {"runner": runner_id, "lease": lease, "in_flight": running, "cpu": usage.cpu, "memory": usage.memory}
    renewal["gap"] = -gap
    renewal |= {"abandoned": abandoned[0], "replaced": abandoned[1]}
    if not await tx.run(_renew_statement(tx.tables, tx.driver), renewal):
        return HeartbeatReply(False, None, frozenset())
    late, command = rows[0][:2]
    cancelled = frozenset(row[2] for row in rows if row[2] is not None)
    return HeartbeatReply(True, command, cancelled, bool(late))


@lru_cache
def _reply_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    """One row for each task in flight to terminate, and at least one row."""
    dialect, runner, task = DIALECTS[driver.name], tables.runner, tables.task
    mine = dialect.rows("mine", {"id": sa.BigInteger})
    # As an expression, so that no plan uses the index of running tasks.
    is_own = sa.func.coalesce(task.c.runner_id, sa.literal_column("0")) == sa.bindparam("runner", type_=sa.BigInteger)
    one = sa.select(task.c.id).where(task.c.id == mine.c.id, is_own, task.c.cancel_requested).offset(NO_JOIN)
    joined, match = dialect.for_each(mine, one.correlate(mine), task)
    doomed = sa.select(match.id).select_from(joined).subquery("doomed")
    gap = runner.c.heartbeat_at < db_later(db_now(), sa.bindparam("gap", type_=sa.Float))
    late = ((runner.c.lease_until < db_now()) | gap).label("late")
    reply = sa.select(late, runner.c.command, doomed.c.id).select_from(runner.outerjoin(doomed, sa.true()))
    return Prepared(reply.where(_is_it(tables)), driver)


@needs(Needs.PREPARED)
async def running_tasks(tx: Transaction, runner_id: int) -> frozenset[tuple[int, int]]:
    """Return id and fence of each task that runs on a runner according to the table.

    Args:
        tx: an open transaction; one statement is executed, which reads the index of running tasks.
    """
    return frozenset(
        (row[0], row[1]) for row in await tx.run(_running_tasks(tx.tables, tx.driver), {"runner": runner_id})
    )


@lru_cache
def _running_tasks(tables: Tables, driver: sa.Dialect) -> Prepared:
    task = tables.task.c
    return Prepared(sa.select(task.id, task.fence).where(*_is_running_on_it(tables)), driver)


@lru_cache
def _renew_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    until = db_later(db_now(), sa.bindparam("lease", type_=sa.Float))
    renewed = sa.update(tables.runner).where(_is_it(tables))
    in_flight, memory = sa.bindparam("in_flight", type_=sa.Integer), sa.bindparam("memory", type_=sa.BigInteger)
    threads = {"abandoned_threads": "abandoned", "replaced_threads": "replaced"}
    counts = {name: sa.bindparam(key, type_=sa.Integer) for name, key in threads.items()}
    usage = {"cpu": sa.bindparam("cpu", type_=sa.Float), "memory": memory, "stall": sa.null()}
    proof = _proof(tables)
    renewed = renewed.values(heartbeat_at=db_now(), lease_until=until, running=in_flight, **proof, **counts, **usage)
    return Prepared(renewed.returning(tables.runner.c.id), driver)


def _proof(tables: Tables) -> dict[str, Any]:
    """Extend the runner's proof of availability, or begin another one after a gap or a step of the clock."""
    runner = tables.runner.c
    gap = runner.available_until < db_later(db_now(), sa.bindparam("gap", type_=sa.Float))
    is_broken = gap | (runner.lease_until < db_now()) | (runner.available_since > db_now())
    since = sa.case((is_broken, db_now()), else_=runner.available_since)
    return {"available_since": since, "available_until": db_now()}


def _is_running_on_it(tables: Tables) -> list[sa.ColumnElement[bool]]:
    task = tables.task.c
    return [task.runner_id == sa.bindparam("runner", type_=sa.BigInteger), is_state(task.state, State.RUNNING)]


def _is_it(tables: Tables) -> sa.ColumnElement[bool]:
    return tables.runner.c.id == sa.bindparam("runner", type_=sa.BigInteger)


@needs(Needs.PREPARED)
async def write_stuck(tx: Transaction, runner_id: int, stuck: str | None) -> None:
    """Store the stuck rows of a runner, for other processes.

    Args:
        tx: an open transaction; one statement is executed.
        stuck: JSON text from runner.model.stuck_row; None without any.
    """
    await tx.run(_write_stuck(tx.tables, tx.driver), {"runner": runner_id, "stuck": stuck})


@lru_cache
def _write_stuck(tables: Tables, driver: sa.Dialect) -> Prepared:
    stuck = sa.bindparam("stuck", type_=tables.runner.c.stuck.type)
    return Prepared(sa.update(tables.runner).where(_is_it(tables)).values(stuck=stuck), driver)


async def acknowledge(
    tx: Transaction, runner_id: int, command: str, rest: str | None, capacity: int, threads: int, processes: int
) -> None:
    """Clear an executed command except for its rest, unless a newer one has replaced it.

    Args:
        command: the command from `heartbeat`.
        rest: the part of it that stays, because it takes until the runner exits; None for none.
        capacity: new maximum number of tasks that run at the same time.
        threads: new number of thread slots.
        processes: new number of process slots.
    """
    runner = tx.tables.runner
    same = runner.c.command == command
    values = {
        "capacity": capacity,
        "threads": threads,
        "processes": processes,
        "command": sa.case((same, sa.null() if rest is None else rest), else_=runner.c.command),
    }
    await tx.execute(sa.update(runner).where(runner.c.id == runner_id).values(values))
