"""registration: the entry of a runner with its handlers, and its end."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import sqlalchemy as sa

from runner.db.lock_limits import UPKEEP_LOCKS
from runner.db.schema import Tables
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, db_later, db_now
from runner.policy.limits import UNLIMITED
from runner.store.breaker import declare_breakers, json_text
from runner.store.claim.ledger import kept_tokens
from runner.store.ended_runners import end_runners


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
    lock = rows.where(tx.dialect.lock_limit(UPKEEP_LOCKS)).order_by(name)
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
