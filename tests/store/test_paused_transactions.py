"""A runner that is frozen inside a transaction of the store holds up no other runner for long (PostgreSQL).

On SQLite the lock belongs to the process: other writers wait until it continues or ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.dialects import postgresql
from runner.db.schema.partitions import WIDTH
from runner.db.transaction import Transaction, clock
from runner.errors import DatabaseUnavailable
from runner.model.outcome import Retry
from runner.model.task import State
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.policy.retention import Retention
from runner.store.claim import ledger as limits
from runner.store.claim.limited import LimitedLanes, claim_limited
from runner.store.dependencies.resolve import FinishedParent, open_dependencies, resolve
from runner.store.partitions import Cutoff, drop, extend
from runner.store.rescue import rescue
from runner.store.retention import prune
from runner.store.schedules.tick import tick
from runner.store.settle import Settlement, settle
from runner.store.submit import submit
from tests.conftest import on_postgresql
from tests.store.dependencies import put_after
from tests.store.rows import ahead
from tests.store.runners import GRACE, Runner, settle_done, settlement
from tests.store.table import change, expire, put
from tests.store.test_partitions import FIRST, hand_out, use_up
from tests.store.test_schedules import add as add_schedule
from tests.store.unique_tasks import once

pytestmark = [on_postgresql, pytest.mark.usefixtures("new_database")]

PAUSE = 0.2

WAIT = 90.0
"""Seconds for the healthy runner."""

Verb = Callable[[Transaction], Awaitable[Any]]


async def limited_claims(database: Database) -> tuple[Verb, Verb]:
    await put(database, queue="mail")
    edit = LimitEdit({"concurrency": "1"}, new=True)
    await database.write(set_limits, PauseTarget(PauseKind("queue"), "mail"), edit, Actor("ana", "desk"))
    frozen, healthy = [await Runner.enter(database) for _ in range(2)]
    await healthy.survey()
    lanes = LimitedLanes(list(healthy.lanes.limited.due), healthy.start)

    async def claim(runner: Runner, tx: Transaction) -> Any:
        return (await claim_limited(tx, runner.who, lanes, runner.terms, 1)).claimed

    return lambda tx: claim(frozen, tx), lambda tx: claim(healthy, tx)


async def rescues(database: Database) -> tuple[Verb, Verb]:
    await put(database)
    lost, frozen, healthy = [await Runner.enter(database) for _ in range(3)]
    assert await lost.claim()
    await expire(database, lost.id)
    return lambda tx: rescue(tx, frozen.rescuer, GRACE), lambda tx: rescue(tx, healthy.rescuer, GRACE)


async def settles(database: Database) -> tuple[Verb, Verb]:
    await put(database)
    frozen, healthy = [await Runner.enter(database) for _ in range(2)]
    (task,) = await frozen.claim()
    await expire(database, frozen.id)
    item = Settlement(task.id, task.fence, Retry("1h", "no"))
    return lambda tx: settle(tx, frozen.id, [item]), lambda tx: rescue(tx, healthy.rescuer, GRACE)


async def ticks(database: Database) -> tuple[Verb, Verb]:
    await add_schedule(database)
    return tick, tick


async def resolves(database: Database) -> tuple[Verb, Verb]:
    runner = await Runner.enter(database)
    parent = await put(database)
    await put_after(database, parent)
    (task,) = await runner.claim()
    await runner.end(task)
    dependencies = await database.read(open_dependencies, [FinishedParent(parent, "work", None)])

    async def unblocked(tx: Transaction) -> Any:
        return (await resolve(tx, dependencies)).unblocked

    return unblocked, unblocked


async def drops(database: Database) -> tuple[Verb, Verb]:
    """The drop of a partition locks the whole history."""
    await use_up(database)
    await put(database)
    runner = await Runner.enter(database)
    (task,) = await runner.claim()
    cutoff = Cutoff(await database.read(clock))
    return lambda tx: drop(tx, FIRST, cutoff), lambda tx: settle_done(tx, runner.id, [settlement(task)])


async def creations(database: Database) -> tuple[Verb, Verb]:
    """A new partition locks the one of the ids without a range."""
    await hand_out(database, 40 * WIDTH + 7)
    await put(database)
    runner = await Runner.enter(database)
    (task,) = await runner.claim()
    return extend, lambda tx: settle_done(tx, runner.id, [settlement(task)])


async def prunes(database: Database) -> tuple[Verb, Verb]:
    """A deleted unique key is locked for submits until the commit."""
    runner = await Runner.enter(database)
    id = await database.write(submit, once("k"))
    (task,) = await runner.claim()
    await runner.end(task)
    history = database.tables.history
    await change(database, sa.update(history).where(history.c.id == id).values(finished_at=ahead(-8 * 86_400)))
    retention = Retention({State.SUCCEEDED: timedelta(days=7)})
    return lambda tx: prune(tx, retention), lambda tx: submit(tx, once("k"))


@pytest.mark.representatives(2)
@pytest.mark.parametrize("prepare", [limited_claims, drops, prunes, creations, rescues, settles, ticks, resolves])
async def test_the_server_ends_the_transaction_of_a_frozen_runner(
    database: Database,
    rival: Database,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Database], Awaitable[tuple[Verb, Verb]]],
) -> None:
    frozen, healthy = await prepare(rival)

    async def work() -> None:
        while not await rival.write(healthy):
            await asyncio.sleep(0.02)

    async def freeze() -> None:
        async with database.writing() as tx:
            with monkeypatch.context() as patch:
                patch.setattr(postgresql, "PAUSE_SECONDS", PAUSE)
                limits._holding.cache_clear()
                assert await frozen(tx)
            limits._holding.cache_clear()
            working = asyncio.create_task(work())
            assert (await asyncio.wait({working}, timeout=WAIT))[0], "the locks of the frozen runner are still there"

    with pytest.raises(DatabaseUnavailable):
        await freeze()
    assert await put(database), "it goes on with another connection"
