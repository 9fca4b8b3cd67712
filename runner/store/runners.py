"""runners: the processes that claim, and their proof of life."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import sqlalchemy as sa

from runner.columns import db_later, db_now
from runner.schema import Tables, is_state
from runner.store.statement import Prepared
from runner.store.transaction import Transaction
from runner.task import State


class Identity(NamedTuple):
    """What a runner says of itself.

    Args:
        host: where it runs.
        pid: its process there.
        version: of the program.
        handlers: the names that it knows.
        capacity: how many tasks it can run at once.
        queues: that it claims from; empty for all.
        threads: how many of its slots are threads.
        threaded: those of its handlers that run in threads.
    """

    host: str
    pid: int
    version: str
    handlers: Sequence[str]
    capacity: int
    queues: Sequence[str] = ()
    threads: int = 0
    threaded: Sequence[str] = ()


class Beat(NamedTuple):
    """What a runner hears back when it proves that it lives.

    Args:
        alive: False when it was struck out and its tasks were taken: it must register anew.
        wish: what an operator asks of it, as runner.policy.wish says; None for nothing.
        cancelled: ids of tasks in its hands that are to be terminated.
        late: True when its lease had run out before this beat: other runners' leases may have run out along with it.
    """

    alive: bool
    wish: str | None
    cancelled: frozenset[int]
    late: bool = False


async def register(tx: Transaction, identity: Identity, lease: float) -> int:
    """Enter a runner, and the handlers that it knows.

    Args:
        tx: an open transaction.
        identity: of the process.
        lease: seconds for which it is taken to live without a beat.

    Returns:
        The runner's id: a number for this incarnation of it, never used again.
    """
    await _enter_handlers(tx, identity.handlers)
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
        lease_until=db_later(db_now(), lease),
    )
    return int((await tx.execute(entered.returning(runner.c.id))).scalar_one())


async def _enter_handlers(tx: Transaction, names: Sequence[str]) -> None:
    """Note in the registry that these handlers are known to somebody; sorted, so that no two wait for each other."""
    handler = tx.tables.handler
    if names:
        insert = tx.dialect.insert(handler)
        seen = insert.on_conflict_do_update(index_elements=handler.primary_key, set_={"last_seen_at": db_now()})
        await tx.execute(seen, [{"name": name} for name in sorted(names)])


async def beat(tx: Transaction, runner_id: int, lease: float, running: int) -> Beat:
    """Renew a runner's lease, unless a rescue has struck the runner out.

    A runner that was frozen beyond its lease goes on if nobody noticed: nothing was taken from it then. Renewing and
    rescuing wait for each other at the runner's row.

    Args:
        tx: an open transaction; two statements are executed.
        runner_id: as `register` returned it.
        lease: seconds from now.
        running: how many tasks it has in hand.
    """
    heard = await tx.run(_heard(tx.tables, tx.driver), {"runner": runner_id})
    renewal = {"runner": runner_id, "lease": lease, "in_hand": running}
    if not await tx.run(_renewed(tx.tables, tx.driver), renewal):
        return Beat(False, None, frozenset())
    (late, wish), asked = heard[0][:2], (row[2] for row in heard)
    return Beat(True, wish, frozenset(task_id for task_id in asked if task_id is not None), bool(late))


@lru_cache
def _heard(tables: Tables, driver: sa.Dialect) -> Prepared:
    """What is to be told to a runner: a row for each task in its hands that is to be terminated, and one at least."""
    runner, task = tables.runner, tables.task
    asked = (task.c.runner_id == runner.c.id) & is_state(task.c.state, State.RUNNING) & task.c.cancel_requested
    told = sa.select(runner.c.lease_until < db_now(), runner.c.wish, task.c.id)
    return Prepared(told.select_from(runner.outerjoin(task, asked)).where(_is_it(tables)), driver)


@lru_cache
def _renewed(tables: Tables, driver: sa.Dialect) -> Prepared:
    until = db_later(db_now(), sa.bindparam("lease", type_=sa.Float))
    in_hand = sa.bindparam("in_hand", type_=sa.Integer)
    renewed = sa.update(tables.runner).where(_is_it(tables))
    renewed = renewed.values(beat_at=db_now(), lease_until=until, running=in_hand)
    return Prepared(renewed.returning(tables.runner.c.id), driver)


def _is_it(tables: Tables) -> sa.ColumnElement[bool]:
    return tables.runner.c.id == sa.bindparam("runner", type_=sa.BigInteger)


async def heed(tx: Transaction, runner_id: int, wish: str, capacity: int, threads: int) -> None:
    """Note that a runner has carried out a wish, unless another one was uttered meanwhile.

    Args:
        tx: an open transaction.
        runner_id: as `register` returned it.
        wish: as `beat` returned it.
        capacity: how many tasks it can run at once by now.
        threads: how many of these in threads.
    """
    runner = tx.tables.runner
    same = runner.c.wish == wish
    values = {"capacity": capacity, "threads": threads, "wish": sa.case((same, sa.null()), else_=runner.c.wish)}
    await tx.execute(sa.update(runner).where(runner.c.id == runner_id).values(values))


async def leave(tx: Transaction, runner_id: int) -> None:
    """Strike a runner out that has nothing in hand any more."""
    runner = tx.tables.runner
    await tx.execute(sa.delete(runner).where(runner.c.id == runner_id))
