"""A handler completes its task in its own transaction, atomically with its writes."""

import asyncio
import logging
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from runner import Context, Dead
from runner.errors import (
    AlreadyDone,
    FencedOut,
    InvalidCheckpoint,
    InvalidStep,
    NoTransaction,
    TransactionEnded,
    TransactionOpen,
)
from runner.model.task import NewTask
from runner.store.registration import register
from tests.cli.conftest import PROGRAM
from tests.conftest import on_sqlite
from tests.engine.conftest import PAY, Payments
from tests.engine.harness import WAIT_SECONDS, Harness, wait_for_event

FIRST_TRANSACTION = """
import sys, threading
import runner

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "sqlalchemy.orm":
            print("imported in", threading.current_thread() is threading.main_thread(), flush=True)

sys.meta_path.insert(0, Watch())

@runner.handler("pay")
async def pay(ctx: runner.Context) -> None:
    async with ctx.transaction():
        pass
"""


async def test_writes_of_an_async_handler_commit_with_the_end_of_its_task(harness: Harness, payments: Payments) -> None:
    @harness.handler("pay")
    async def pay(ctx: Context) -> None:
        own = ctx.transaction()
        async with own as tx:
            await tx.execute(PAY, {"task": ctx.id})
            own.result = {"paid": 5}

    task = await harness.submit("pay")
    runner = await harness.work()
    row = await harness.row(task)
    assert (row.state, row.result, row.attempt) == ("succeeded", '{"paid":5}', 1)
    assert row.duration > 0
    assert await payments() == 1
    assert runner.metrics.verbs == {"succeed": 1}


async def test_writes_of_a_plain_function_commit_with_the_end_of_its_task(harness: Harness, payments: Payments) -> None:
    @harness.handler("pay")
    def pay(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(PAY, {"task": ctx.id})

    task = await harness.submit("pay")
    runner = await harness.work()
    assert await harness.state(task) == "succeeded"
    assert await payments() == 1
    assert runner.metrics.verbs == {"succeed": 1}


async def test_an_exception_rolls_both_back_and_is_a_failed_attempt(harness: Harness, payments: Payments) -> None:
    @harness.handler("pay")
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
            if ctx.attempt == 1:
                raise ConnectionError("no answer")

    task = await harness.run("pay")
    row = await harness.row(task)
    assert (row.state, row.attempt, row.error) == ("succeeded", 2, "ConnectionError: no answer")
    assert await payments() == 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_fenced_out_handler_writes_nothing(harness: Harness, payments: Payments, kind: str) -> None:
    raised: list[BaseException] = []
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def on_loop(ctx: Context) -> None:
        try:
            own = ctx.transaction()
            begun.set()
            await asyncio.to_thread(go_on.wait, WAIT_SECONDS)
            async with own as tx:
                await tx.execute(PAY, {"task": ctx.id})
        except FencedOut as error:
            raised.append(error)
            raise

    def in_thread(ctx: Context) -> None:
        try:
            own = ctx.transaction()
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(WAIT_SECONDS)
            with own as tx:
                tx.execute(PAY, {"task": ctx.id})
        except FencedOut as error:
            raised.append(error)
            raise

    harness.handler("pay", max_attempts=1)(on_loop if kind == "async" else in_thread)
    task = await harness.submit("pay")
    async with harness.running() as runner:
        await wait_for_event(begun)
        table = harness.database.tables.task
        other = await harness.database.write(register, runner.lease.identity, 60.0)
        claimed = {"fence": table.c.fence + 1, "runner_id": other}
        await harness.change(sa.update(table).where(table.c.id == task).values(claimed))
        go_on.set()
        await asyncio.wait_for(_forgotten(runner), WAIT_SECONDS)
    assert [error.fields["id"] for error in raised if isinstance(error, FencedOut)] == [task]
    assert await payments() == 0
    assert await harness.state(task) == "running", "whoever holds the new fence ends it"


async def _forgotten(runner: Any) -> None:
    while len(runner.worker.in_flight):
        await asyncio.sleep(0.01)


async def test_a_task_ends_once(harness: Harness, payments: Payments) -> None:
    @harness.handler("pay")
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
        with pytest.raises(AlreadyDone):
            ctx.transaction()

    task = await harness.run("pay")
    assert await harness.state(task) == "succeeded"
    assert await payments() == 1


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_that_ends_the_transaction_itself_fails_and_writes_nothing(
    harness: Harness, payments: Payments, kind: str, ending: str
) -> None:
    async def on_loop(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
            await getattr(tx, ending)()

    def in_thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(PAY, {"task": ctx.id})
            getattr(tx, ending)()

    harness.handler("pay", on_error=TransactionEnded)(on_loop if kind == "async" else in_thread)
    task = await harness.run("pay")
    row = await harness.row(task)
    assert row.state == "dead"
    assert "Remove commit() and rollback()" in row.error
    assert await payments() == 0


@pytest.mark.parametrize("again", ["another", "the same"])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_second_transaction_beside_the_first_is_refused(
    harness: Harness, payments: Payments, kind: str, again: str
) -> None:
    async def on_loop(ctx: Context) -> None:
        own = ctx.transaction()
        async with own as tx:
            await tx.execute(PAY, {"task": ctx.id})
            with pytest.raises(TransactionOpen, match="Write everything in that one"):
                await (own if again == "the same" else ctx.transaction()).__aenter__()

    def in_thread(ctx: Context) -> None:
        own = ctx.transaction()
        with own as tx:
            tx.execute(PAY, {"task": ctx.id})
            with pytest.raises(TransactionOpen, match="Write everything in that one"):
                (own if again == "the same" else ctx.transaction()).__enter__()

    harness.handler("pay", max_attempts=1)(on_loop if kind == "async" else in_thread)
    task = await harness.run("pay")
    assert await harness.state(task) == "succeeded"
    assert await payments() == 1


async def test_a_blocking_transaction_in_a_coroutine_is_refused(harness: Harness, payments: Payments) -> None:
    @harness.handler("pay", max_attempts=1)
    async def pay(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(PAY, {"task": ctx.id})

    task = await harness.submit("pay")
    await harness.work()
    row = await harness.row(task)
    assert row.state == "dead"
    assert "Use this instead: async with ctx.transaction()." in row.error
    assert await payments() == 0


async def _nothing() -> None:
    pass


async def _asleep(ctx: Context) -> None:
    await ctx.sleep("1s")


async def _signalled(ctx: Context) -> None:
    await ctx.wait_for("go")


def _plain_step(ctx: Context) -> None:
    ctx.step("note", int)


def _plain_call(ctx: Context) -> None:
    ctx.call("child", NewTask("child")).result()


INSIDE: list[Any] = [
    pytest.param(lambda ctx: ctx.step("note", _nothing), InvalidStep, id="step"),
    pytest.param(lambda ctx: asyncio.gather(ctx.step("note", _nothing)), InvalidStep, id="gather"),
    pytest.param(lambda ctx: ctx.call("child", NewTask("child")), InvalidStep, id="call"),
    pytest.param(_asleep, InvalidStep, id="sleep"),
    pytest.param(_signalled, InvalidStep, id="wait"),
    pytest.param(lambda ctx: ctx.checkpoint({"line": 1}), InvalidCheckpoint, id="checkpoint"),
    pytest.param(_plain_step, InvalidStep, id="plain step"),
    pytest.param(_plain_call, InvalidStep, id="plain call"),
    pytest.param(lambda ctx: ctx.checkpoint({"line": 1}), InvalidCheckpoint, id="plain checkpoint"),
]


@pytest.mark.both_databases
@pytest.mark.parametrize(("use", "error"), INSIDE)
async def test_a_step_or_a_checkpoint_that_would_wait_for_the_transaction_around_it_is_refused(
    harness: Harness, payments: Payments, request: pytest.FixtureRequest, use: Any, error: type[Exception]
) -> None:
    async def on_loop(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
            with pytest.raises(error, match=r"it is inside of a transaction: call it before that block"):
                await use(ctx)

    def in_thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(PAY, {"task": ctx.id})
            with pytest.raises(error, match=r"it is inside of a transaction: call it before that block"):
                use(ctx)

    is_plain = "plain" in request.node.callspec.id
    harness.handler("pay", max_attempts=1)(in_thread if is_plain else on_loop)
    task = await harness.run("pay")
    assert await harness.state(task) == "succeeded"
    assert await payments() == 1


async def test_a_checkpoint_inside_of_a_step_with_a_transaction_is_refused(
    harness: Harness, payments: Payments
) -> None:
    @harness.handler("pay", max_attempts=1)
    async def pay(ctx: Context) -> None:
        async def take(tx: AsyncConnection) -> None:
            await tx.execute(PAY, {"task": ctx.id})
            with pytest.raises(InvalidCheckpoint, match="it is inside of a transaction"):
                await ctx.checkpoint({"line": 1})

        await ctx.step("take", take, transaction=True)
        await ctx.checkpoint({"line": 2})

    task = await harness.run("pay")
    assert await harness.state(task) == "succeeded"
    assert await payments() == 1


async def test_a_step_beside_the_transaction_of_another_step_is_stored_after_it(
    harness: Harness, payments: Payments
) -> None:
    @harness.handler("pay", max_attempts=1)
    async def pay(ctx: Context) -> None:
        begun = asyncio.Event()

        async def take(tx: AsyncConnection) -> None:
            await tx.execute(PAY, {"task": ctx.id})
            begun.set()

        await asyncio.gather(ctx.step("take", take, transaction=True), ctx.step("after", begun.wait))

    task = await harness.run("pay")
    assert await harness.state(task) == "succeeded"
    assert await payments() == 1


async def test_a_failure_after_the_transaction_changes_nothing(
    harness: Harness, payments: Payments, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "runner")

    @harness.handler("pay")
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
        raise RuntimeError("the receipt was not printed")

    task = await harness.run("pay")
    assert await harness.state(task) == "succeeded"
    assert await payments() == 1
    assert "succeeded in its own transaction, then failed: RuntimeError: the receipt was not printed" in caplog.text


async def test_the_log_names_a_handler_whose_result_comes_after_the_transaction(
    harness: Harness, payments: Payments, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "runner")

    @harness.handler("pay")
    async def pay(ctx: Context) -> int:
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
        return 5

    @harness.handler("refund")
    async def refund(ctx: Context) -> int | Dead:
        own = ctx.transaction()
        async with own as tx:
            await tx.execute(PAY, {"task": ctx.id})
            own.result = 5
        return 5 if ctx.key else Dead("too late")

    tasks = [await harness.submit("pay"), await harness.submit("pay"), await harness.submit("refund")]
    tasks.append(await harness.submit("refund", key="set"))
    await harness.work()
    assert [await harness.state(task) for task in tasks] == ["succeeded"] * 4
    assert caplog.text.count("(pay) returned a result after ctx.transaction(), which is not kept") == 1
    assert caplog.text.count("(refund) succeeded in its own transaction: its Dead after that is ignored") == 1
    assert caplog.text.count("(refund)") == 1


async def test_a_time_out_within_the_transaction_rolls_both_back(harness: Harness, payments: Payments) -> None:
    @harness.handler("pay", timeout=0.05, max_attempts=1)
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
            await asyncio.sleep(WAIT_SECONDS)

    task = await harness.run("pay")
    row = await harness.row(task)
    assert (row.state, row.error) == ("dead", "Timeout: the task took longer than 50ms")
    assert await payments() == 0


def test_where_no_runner_is_there_is_no_transaction() -> None:
    ctx = Context(7, None, 1, 5, 1, None, logging.LoggerAdapter(logging.getLogger("test")))
    with pytest.raises(NoTransaction, match="Task 7 is not executed by a runner"):
        ctx.transaction()


@pytest.mark.slow
@on_sqlite
async def test_the_first_transaction_of_a_process_does_not_block_the_event_loop(
    harness: Harness, migrated_url: str, tmp_path: Path
) -> None:
    """The ORM, which SQLAlchemy's AsyncConnection brings, takes a tenth of a second to import."""
    (tmp_path / "first_transaction.py").write_text(FIRST_TRANSACTION)
    task = await harness.submit("pay")
    environment = os.environ | {"TASKTUI_URL": migrated_url}
    command = [str(PROGRAM), "work", "-H", "first_transaction", "--until-idle"]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert b"imported in False" in output
    assert await harness.state(task) == "succeeded"
