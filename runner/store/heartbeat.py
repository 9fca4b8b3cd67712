"""heartbeat: register runners and renew their leases."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, NO_JOIN, db_later, db_now
from runner.model.task import State
from runner.policy.limits import UNLIMITED
from runner.store.breaker import declare_breakers, json_text
from runner.store.claim.ledger import kept_tokens
from runner.store.ended_runners import end_runners


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
    valid = (runner.c.id == sa.bindparam("runner", type_=sa.BigInteger)) & (runner.c.lease_until > db_now())
    ended = sa.update(runner).where(valid).values(lease_until=db_now()).returning(runner.c.id)
    yield Step(Prepared(ended, frame.driver), {"runner": runner_id})


MOST_SUSPECTS = 5
"""Maximum number of tasks that are named while no thread of a runner sends a ping."""


def suspects(frame: Frame, runner_id: int) -> Steps[list[tuple[int, str]]]:
    """Read id and handler of the tasks that a runner executes, the last started first."""
    task = frame.tables.task.c
    own = (task.runner_id == sa.bindparam("runner", type_=sa.BigInteger)) & is_state(task.state, State.RUNNING)
    latest = sa.select(task.id, task.handler).where(own).order_by(task.claimed_at.desc(), task.id.desc())
    rows = yield Step(Prepared(latest.limit(MOST_SUSPECTS), frame.driver), {"runner": runner_id})
    return [(int(row[0]), str(row[1])) for row in rows]


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    runner = tables.runner
    same = runner.c.id == sa.bindparam("runner", type_=sa.BigInteger)
    until = db_later(db_now(), sa.bindparam("lease", type_=sa.Float))
    stall = sa.bindparam("stall", type_=runner.c.stall.type)
    update = sa.update(runner).where(same).values(heartbeat_at=db_now(), lease_until=until, stall=stall)
    look = sa.select((runner.c.lease_until < db_now()).label("late")).where(same)
    return Prepared(look, driver), Prepared(update.returning(runner.c.id), driver)


class ExecutorSlots(TypedDict):
    """The slots of an external executor, and the handlers that it runs."""

    slots: int
    handlers: Sequence[str]


class Identity(NamedTuple):
    """Host, process and capabilities of a runner.

    Args:
        pid: process id.
        version: version of the application, or that of this program.
        capacity: maximum number of tasks that run at the same time.
        queues: queues that it claims from; empty for all.
        threads: number of thread slots.
        threaded: handlers that run in threads.
        processes: number of process slots.
        in_processes: handlers that run in processes.
        executors: its external executors: by name, their slots and handlers.
        schedules: fingerprints of the definitions of its schedules by id.
        limits: limits of its handlers over all runners by handler; the values are those of their registry rows.
        breakers: definitions of the breakers of its handlers, by handler.
        signatures: the stored signatures of its handlers, by handler; see runner.handlers.parameters.
        keyless: the same of the handlers that it leaves to others, because it lacks the key of their codec.
        undeclared: its handlers whose code it does not have; their rows keep their limits and breakers.
        claim_order: order in which it claims, as text.
        polling: its poll mode and periods, as text.
        slice: its slice, as text; None without one.
        buckets: the buckets that it claims from; None for all, empty for none.
    """

    host: str
    pid: int
    version: str
    handlers: Sequence[str]
    capacity: int
    queues: Sequence[str] = ()
    threads: int = 0
    threaded: Sequence[str] = ()
    processes: int = 0
    in_processes: Sequence[str] = ()
    executors: Mapping[str, ExecutorSlots] = {}
    schedules: Mapping[str, str] = {}
    limits: Mapping[str, Mapping[str, Any]] = {}
    breakers: Mapping[str, Mapping[str, Any]] = {}
    signatures: Mapping[str, str] = {}
    keyless: Mapping[str, str] = {}
    undeclared: Sequence[str] = ()
    claim_order: str = "strict"
    polling: str = ""
    slice: str | None = None
    buckets: str | None = None


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


def ignore(_locked: list[str]) -> None:
    """The default of `on_locked`."""


async def register(
    tx: Transaction,
    identity: Identity,
    lease: float,
    gap: float = 0.0,
    on_locked: Callable[[list[str]], object] = ignore,
) -> int:
    """Register a runner and its handlers.

    The runner continues the proof of availability of other runners, alive or not, whose last one is recent: runners
    that crash one after another together prove that the database was available.

    Args:
        lease: length of the lease in seconds.
        gap: maximum seconds between two writes of runners while the database counts as available.
        on_locked: called with the handlers that `enter_handlers` left out.

    Returns:
        The runner's id. Each registration gets a new one.
    """
    on_locked(await enter_handlers(tx, identity))
    runner = tx.tables.runner
    entered = sa.insert(runner).values(
        host=identity.host,
        pid=identity.pid,
        version=identity.version,
        handlers=json.dumps(sorted(identity.handlers)),
        queues=json.dumps(sorted(identity.queues)),
        threaded=json.dumps(sorted(identity.threaded)),
        capacity=identity.capacity,
        threads=identity.threads,
        in_processes=json.dumps(sorted(identity.in_processes)),
        executors=_executors_text(identity.executors),
        processes=identity.processes,
        claim_order=identity.claim_order,
        polling=identity.polling,
        slice=identity.slice,
        buckets=identity.buckets,
        schedules=json.dumps(dict(identity.schedules), sort_keys=True),
        lease_until=db_later(db_now(), lease),
        available_since=_available_since(tx.tables, gap),
    )
    return int((await tx.execute(entered.returning(runner.c.id))).scalar_one())


def _available_since(tables: Tables, gap: float) -> sa.ColumnElement[Any]:
    """Since when writes of runners prove that the database is available; now if the last one is older than the gap."""
    runner = tables.runner.alias("witness").c
    is_recent = runner.available_until.between(db_later(db_now(), -gap), db_now())
    since: sa.ColumnElement[Any] = sa.select(sa.func.min(runner.available_since)).where(is_recent).scalar_subquery()
    return sa.func.coalesce(since, db_now())


LOCK_LIMIT = "2s"
"""The longest wait for a lock of a registration: another one may enter the same handler for the first time."""


async def enter_handlers(tx: Transaction, identity: Identity) -> list[str]:
    """Enter the handlers of a runner with their signatures, limits and breakers.

    Args:
        tx: a writing transaction.
        identity: the names and the declarations.

    Returns:
        The handlers whose rows another transaction locks: they keep the declarations that the rows contain.
    """
    locked = await _locked_handlers(tx, [*identity.handlers, *identity.keyless])
    names = [name for name in identity.handlers if name not in locked]
    limits = {name: values for name, values in identity.limits.items() if name not in locked}
    breakers = {name: values for name, values in identity.breakers.items() if name not in locked}
    keyless = {name: text for name, text in identity.keyless.items() if name not in locked}
    free = identity._replace(handlers=names, limits=limits, breakers=breakers, keyless=keyless)
    await _enter_handlers(tx, free)
    declared = free._replace(handlers=[name for name in names if name not in identity.undeclared])
    await _declare_limits(tx, declared)
    await declare_breakers(tx, declared.handlers, free.breakers)
    return sorted(locked)


async def _locked_handlers(tx: Transaction, names: Sequence[str]) -> set[str]:
    """Lock the rows of handlers in the order of their names, except those that another transaction locks."""
    if not names or not tx.dialect.row_locks:
        return set()
    name = tx.tables.handler.c.name
    rows = sa.select(name).where(tx.dialect.one_of(name, sorted(names)))
    lock = rows.where(tx.dialect.lock_limit(LOCK_LIMIT)).order_by(name)
    free = {row[0] for row in await tx.rows(lock.with_for_update(key_share=True, skip_locked=True))}
    return {row[0] for row in await tx.rows(rows)} - free if len(free) < len(set(names)) else set()


async def _enter_handlers(tx: Transaction, identity: Identity) -> None:
    """Register the handlers, in sorted order, so that two runners never deadlock."""
    handler = tx.tables.handler
    if identity.handlers:
        insert = tx.dialect.insert(handler)
        signature = sa.func.coalesce(insert.excluded.signature, handler.c.signature)
        values = {"last_seen_at": db_now(), "signature": signature}
        upsert = insert.on_conflict_do_update(index_elements=handler.primary_key, set_=values)
        rows = [{"name": name, "signature": identity.signatures.get(name)} for name in sorted(identity.handlers)]
        await tx.execute(upsert, rows)
    if identity.keyless:
        insert = tx.dialect.insert(handler)
        upsert = insert.on_conflict_do_update(
            index_elements=handler.primary_key, set_={"signature": insert.excluded.signature}
        )
        keyless = sorted(identity.keyless.items())
        await tx.execute(upsert, [{"name": n, "signature": text, "last_seen_at": EARLIEST} for n, text in keyless])


async def _declare_limits(tx: Transaction, identity: Identity) -> None:
    """Write the limits of the handlers' code that have changed; those of an operator stay in force."""
    handler = tx.tables.handler
    statement = sa.select(handler.c.name, handler.c.declared_limits, handler.c.limited_at)
    rows = await tx.rows(statement.where(handler.c.declared_limits.is_not(None)))
    declared = {row.name: row.declared_limits for row in rows if row.name in identity.handlers}
    for name in sorted(identity.limits.keys() | declared.keys()):
        limits = identity.limits.get(name, {})
        text = json.dumps(limits, sort_keys=True) if limits else None
        if text == json_text(declared.get(name)):
            continue
        columns = UNLIMITED.columns | dict(limits)
        is_handler = handler.c.name == name
        await tx.execute(sa.update(handler).where(is_handler).values(declared_limits=text))
        unedited = handler.c.limited_at.is_(None)
        changed = sa.update(handler).where(is_handler, unedited)
        await tx.execute(changed.values(rate_spent=kept_tokens(handler, columns), **columns))


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
    gap: float | None = None,
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
        gap: seconds since the last heartbeat above which the reply is late; default: the lease.
        abandoned: number of abandoned threads, and of replaced ones.
        tasks: ids of the tasks in flight, of which the reply has those to terminate.
    """
    mine = {"runner": runner_id, "gap": -(lease if gap is None else gap)}
    rows = await tx.run(_reply_statement(tx.tables, tx.driver), mine | tx.dialect.parameters("mine", {"id": [*tasks]}))
    renewal = {"runner": runner_id, "lease": lease, "in_hand": running, "cpu": usage.cpu, "memory": usage.memory}
    renewal["gap"] = -(lease if gap is None else gap)
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
    own = (task.runner_id == sa.bindparam("runner", type_=sa.BigInteger)) & is_state(task.state, State.RUNNING)
    return Prepared(sa.select(task.id, task.fence).where(own), driver)


@lru_cache
def _renew_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    until = db_later(db_now(), sa.bindparam("lease", type_=sa.Float))
    renewed = sa.update(tables.runner).where(_is_it(tables))
    in_hand, memory = sa.bindparam("in_hand", type_=sa.Integer), sa.bindparam("memory", type_=sa.BigInteger)
    threads = {"abandoned_threads": "abandoned", "replaced_threads": "replaced"}
    counts = {name: sa.bindparam(key, type_=sa.Integer) for name, key in threads.items()}
    usage = {"cpu": sa.bindparam("cpu", type_=sa.Float), "memory": memory, "stall": sa.null()}
    proof = _proof(tables)
    renewed = renewed.values(heartbeat_at=db_now(), lease_until=until, running=in_hand, **proof, **counts, **usage)
    return Prepared(renewed.returning(tables.runner.c.id), driver)


def _proof(tables: Tables) -> dict[str, Any]:
    """Extend the runner's proof of availability, or begin another one after a gap or a step of the clock."""
    runner = tables.runner.c
    gap = runner.available_until < db_later(db_now(), sa.bindparam("gap", type_=sa.Float))
    is_broken = gap | (runner.lease_until < db_now()) | (runner.available_since > db_now())
    since = sa.case((is_broken, db_now()), else_=runner.available_since)
    return {"available_since": since, "available_until": db_now()}


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


async def resize_executors(
    tx: Transaction, runner_id: int, capacity: int, executors: Mapping[str, ExecutorSlots]
) -> None:
    """Store the slots of the external executors of a runner.

    Args:
        capacity: new maximum number of tasks that run at the same time.
    """
    runner = tx.tables.runner
    values = {"capacity": capacity, "executors": _executors_text(executors)}
    await tx.execute(sa.update(runner).where(runner.c.id == runner_id).values(values))


def _executors_text(executors: Mapping[str, ExecutorSlots]) -> str:
    return json.dumps(dict(executors), sort_keys=True)


async def leave(tx: Transaction, runner_id: int, gap: float = 0.0) -> None:
    """Deregister a runner without tasks in flight. Another runner, alive or lost, keeps its proof of availability.

    Args:
        gap: as for `register`.
    """
    runner = tx.tables.runner
    alive = sa.select(runner.c.available_since).where(runner.c.id == runner_id, runner.c.lease_until >= db_now())
    own = (await tx.execute(alive.with_for_update())).scalar_one_or_none()
    await end_runners(tx, [runner_id], lost=False)
    if own is None:
        return
    # The one that was silent for longest is the most likely to be lost. Skipping locked rows avoids a deadlock of two
    # runners that leave, and waits for no rescue.
    heir = sa.select(runner.c.id).order_by(runner.c.heartbeat_at, runner.c.id).limit(1)
    ids = [row.id for row in await tx.rows(heir.with_for_update(skip_locked=True))]
    if ids:
        is_recent = runner.c.available_until.between(db_later(db_now(), -gap), db_now())
        earlier = is_recent & (runner.c.available_since < own)
        since = sa.case((earlier, runner.c.available_since), else_=sa.literal(own, runner.c.available_since.type))
        await tx.execute(
            sa.update(runner).where(runner.c.id == ids[0]).values(available_since=since, available_until=db_now())
        )
