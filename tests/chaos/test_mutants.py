"""The checker finds real faults: the store is broken on purpose, tasks are run, and a promise is seen to be broken."""

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context
from runner.db.database import Database
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.engine.claiming.scan_state import Gate
from runner.engine.executing.handler_context import HandlerTransaction
from runner.model.outcome import Failure, Retry
from runner.policy import claim_conditions
from runner.store import complete, history, settle
from runner.store.claim import plain as claim
from runner.store.registration import Identity, register
from runner.store.rescue import Rescuer, rescue
from tests.chaos.check import GRAIN, OK, check
from tests.chaos.dump import take
from tests.chaos.journal import Journal, read
from tests.chaos.workload import digest
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, at_work, until, wait_for_event

PATIENT = {"lease_timeout": "1h", "heartbeat_interval": "30m"}
"""So that no runner learns by a heartbeat that it was struck out."""


PAY = sa.text("INSERT INTO payments (task) VALUES (:task)")


async def create_payments(harness: Harness) -> None:
    """Create the table of the application, unless an earlier scenario of the test has."""
    await harness.change(sa.text("CREATE TABLE IF NOT EXISTS payments (task BIGINT NOT NULL)"))


class Bench:
    """A harness whose tasks write a journal.

    Args:
        harness: that they run in.
        folder: of the journal.
    """

    def __init__(self, harness: Harness, folder: Path) -> None:
        self.harness = harness
        self.folder = folder
        self.journal = Journal(folder, "bench")

    async def submit(self, handler: str, **options: Any) -> int:
        token = os.urandom(8).hex()
        task = await self.harness.submit(handler, {"token": token, "data": 1}, **options)
        due = options["run_at"].timestamp() if "run_at" in options else None
        self.journal.write("submit", task=task, token=token, answer=OK, digest=digest(1), run_at=due)
        return task

    def start(self, ctx: Context, token: str) -> None:
        self.journal.write("start", task=ctx.id, fence=ctx.fence, attempt=ctx.attempt, token=token, digest=digest(1))

    def end(self, ctx: Context) -> None:
        self.journal.write("end", task=ctx.id, fence=ctx.fence)

    async def broken(self) -> set[int]:
        """The promises that were broken."""
        return {violation.promise for violation in check(read(self.folder), await take(self.harness.database))}


@pytest.fixture
def bench(database: Database, migrated_url: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(Harness(database, migrated_url), tmp_path)
    yield bench
    bench.journal.close()


def forget_statements() -> None:
    """Compile the hot statements again."""
    for compiled in (claim._prepared, history._prepared, history._prepared_success, complete._statements):
        compiled.cache_clear()


@pytest.fixture(autouse=True)
def _fresh_statements() -> Iterator[None]:
    """Statements are kept once they are compiled; none may outlive a mutation or miss it."""
    forget_statements()
    yield
    forget_statements()


async def test_a_late_settle_breaks_nothing_by_itself(bench: Bench) -> None:
    assert await broken_by_a_late_settle(bench) == set()


async def test_a_settle_without_a_fence_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_has_claim", lambda task, ending: task.c.id == ending.c.id)
    monkeypatch.setattr(history, "_same_fence", lambda _task, _ending: sa.true())
    assert 3 in await broken_by_a_late_settle(bench)


async def broken_by_a_late_settle(bench: Bench) -> set[int]:
    """A runner loses its lease, another one takes its task, and the first one ends before the second."""
    harness = bench.harness
    begun, gates = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]

    @harness.handler("work")
    async def work(ctx: Context, token: str, data: int) -> None:
        bench.start(ctx, token)
        begun[ctx.attempt - 1].set()
        await gates[ctx.attempt - 1].wait()
        bench.end(ctx)

    task = await bench.submit("work")
    first, second = harness.runner(**PATIENT), harness.runner(**PATIENT)
    async with at_work(first):
        await wait_for_event(begun[0])
        first.claims.gate = Gate.DRAINING
        await expire(harness, first.lease.id)
        async with at_work(second):
            await wait_for_event(begun[1])
            gates[0].set()
            await until(lambda: first.metrics.verbs.total() == 1)
            await asyncio.sleep(4 * GRAIN)  # so that the times of this settle and the following end differ
            gates[1].set()
            await harness.wait_for(task)
    return await bench.broken()


async def expire(harness: Harness, runner_id: int) -> None:
    """Let a lease run out, and have its tasks taken back."""
    runner = harness.database.tables.runner
    past = datetime.now(UTC) - timedelta(hours=1)
    await harness.change(sa.update(runner).where(runner.c.id == runner_id).values(lease_until=past))
    asker = Rescuer(await harness.database.write(register, Identity("here", 1, "1", [], 0), 60.0), 0.0)
    assert await harness.database.write(rescue, asker, 1.0)


async def test_attempts_that_are_not_counted_are_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await broken_by_a_flaky_task(bench) == set()
    sound = claim.claim_statement

    def without_counting(*args: Any) -> Any:
        return sound(*args).values(attempt=args[0].task.c.attempt)

    monkeypatch.setattr(claim, "claim_statement", without_counting)
    forget_statements()
    assert 7 in await broken_by_a_flaky_task(bench)


async def broken_by_a_flaky_task(bench: Bench) -> set[int]:
    tries: list[int] = []

    @bench.harness.handler("flaky", max_attempts=2)
    async def flaky(ctx: Context, token: str, data: int) -> None:
        bench.start(ctx, token)
        tries.append(ctx.attempt)
        if len(tries) < 5:
            raise ConnectionError
        bench.end(ctx)

    await bench.submit("flaky")
    await bench.harness.work()
    return await bench.broken()


async def test_a_claim_by_a_clock_that_is_ahead_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await broken_by_a_later_task(bench) == set()
    for module in (claim, claim_conditions):
        monkeypatch.setattr(module, "db_now", lambda: db_later(db_now(), 3600))
    monkeypatch.setattr(claim, "_alive", lambda runner: sa.true())
    forget_statements()
    assert 14 in await broken_by_a_later_task(bench)


async def broken_by_a_later_task(bench: Bench) -> set[int]:
    @bench.harness.handler("work")
    async def work(ctx: Context, token: str, data: int) -> None:
        bench.start(ctx, token)
        bench.end(ctx)

    await bench.submit("work")
    await bench.submit("work", run_at=datetime.now(UTC) + timedelta(minutes=30))
    await bench.harness.work(lease_timeout="3h", heartbeat_interval="1h")
    return await bench.broken()


async def test_a_claim_that_hands_out_a_fence_twice_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = claim.claim_statement

    def without_a_fence(*args: Any) -> Any:
        return sound(*args).values(fence=args[0].task.c.fence)

    monkeypatch.setattr(claim, "claim_statement", without_a_fence)
    twice = asyncio.Event()

    @bench.harness.handler("flaky")
    async def flaky(ctx: Context, token: str, data: int) -> None:
        bench.start(ctx, token)
        if ctx.attempt == 1:
            raise ConnectionError
        twice.set()
        bench.end(ctx)

    await bench.submit("flaky")
    async with bench.harness.running():
        await wait_for_event(twice)
    assert 4 in await bench.broken()


def without_holder(task: Any, ending: Any) -> Any:
    """The condition of `finish` without the holder; the parameter stays, so that the statement can be executed."""
    holder = sa.bindparam("holder", type_=sa.BigInteger)
    return (task.c.id == ending.c.id) & (task.c.fence == ending.c.fence) & holder.is_not(None)


@pytest.mark.slow
async def test_a_finish_without_the_holder_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await broken_by_a_run_that_failed_before(bench) == set()
    monkeypatch.setattr(history, "_has_claim", without_holder)
    forget_statements()
    assert 2 in await broken_by_a_run_that_failed_before(bench)


async def broken_by_a_run_that_failed_before(bench: Bench) -> set[int]:
    """A failure is settled while the body runs; the fence does not change before the next claim."""
    harness = bench.harness
    begun, gate = asyncio.Event(), asyncio.Event()

    @harness.handler("work")
    async def work(ctx: Context, token: str, data: int) -> None:
        bench.start(ctx, token)
        begun.set()
        await gate.wait()
        bench.end(ctx)

    task = await bench.submit("work")
    async with harness.running(**PATIENT) as runner:
        await wait_for_event(begun)
        runner.claims.gate = Gate.DRAINING
        row = await harness.row(task)
        failed = settle.Settlement(task, row.fence, Retry("0s", failure=Failure("Error", "settled by the test")))
        await harness.database.write(settle.settle, runner.lease.id, [failed])
        gate.set()
        await until(lambda: not runner.worker.in_flight.tasks)
        runner.claims.gate = Gate.OPEN
        await harness.wait_for(task)
    return await bench.broken()


@on_postgresql  # SQLite has one writer at a time, so that the lock changes nothing there
async def test_a_completion_without_its_lock_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await broken_by_an_edit_during_a_completion(bench) == set()
    sound = complete._statements

    def without_lock(*args: Any) -> tuple[Prepared, Prepared]:
        lock, find_earlier = sound(*args)
        lock.sql = lock.sql.replace(" FOR UPDATE", "")
        return lock, find_earlier

    monkeypatch.setattr(complete, "_statements", without_lock)
    assert 7 in await broken_by_an_edit_during_a_completion(bench)


async def blocks_another(tx: Transaction) -> bool:
    """True if another session waits for the end of this transaction, which has written."""
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid"
    return bool(await tx.scalar(sa.text(waits)))


async def broken_by_an_edit_during_a_completion(bench: Bench) -> set[int]:
    """An operator changes the row while the transaction of the handler completes the task."""
    harness = bench.harness
    await create_payments(harness)
    begun, gate = asyncio.Event(), asyncio.Event()

    @harness.handler("chaos.pay")
    async def pay(ctx: Context, token: str, data: int) -> None:
        bench.start(ctx, token)
        begun.set()
        await gate.wait()
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
            bench.end(ctx)

    task = await bench.submit("chaos.pay")
    async with harness.running():
        await wait_for_event(begun)
        table = harness.database.tables.task
        async with harness.database.writing() as tx:
            await tx.execute(sa.update(table).where(table.c.id == task).values(priority=9))
            gate.set()
            await until(lambda: blocks_another(tx))
        await harness.wait_for(task)
    return await bench.broken()


@pytest.mark.slow
async def test_a_completion_that_ignores_its_result_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await broken_by_a_fenced_payment(bench) == set()
    monkeypatch.setattr(HandlerTransaction, "_require_accepted", lambda *_: None)
    assert 18 in await broken_by_a_fenced_payment(bench)


async def broken_by_a_fenced_payment(bench: Bench) -> set[int]:
    """A runner loses its lease before the transaction of a handler, and a second runner executes the task too."""
    harness = bench.harness
    await create_payments(harness)
    begun, gates = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]

    @harness.handler("chaos.pay")
    async def pay(ctx: Context, token: str, data: int) -> None:
        bench.start(ctx, token)
        begun[ctx.attempt - 1].set()
        await gates[ctx.attempt - 1].wait()
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
            bench.end(ctx)

    task = await bench.submit("chaos.pay")
    first, second = harness.runner(**PATIENT), harness.runner(**PATIENT)
    async with at_work(first):
        await wait_for_event(begun[0])
        first.claims.gate = Gate.DRAINING
        await expire(harness, first.lease.id)
        async with at_work(second):
            await wait_for_event(begun[1])
            gates[0].set()
            await until(lambda: not first.worker.in_flight.tasks)
            gates[1].set()
            await harness.wait_for(task)
    return await bench.broken()
