"""Transactions of handlers are limited, and leave the connections of the runner alone."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context
from runner.db import handler_transactions
from runner.errors import TransactionUnavailable
from tests.conftest import on_postgresql, on_sqlite
from tests.engine.harness import WAIT_SECONDS, Harness, until, wait_for_event
from tests.engine.locks import Lock

MANY = 20
"""Handlers that want a transaction: more than all connections of a runner's own."""

forms = pytest.mark.parametrize("form", ["async", "thread"])


@pytest.fixture
def lock(migrated_url: str) -> Iterator[Lock]:
    lock = Lock(migrated_url)
    yield lock
    lock.release()


class Holders:
    """Handlers, one of each form, that keep their transactions open until `go_on` is set."""

    def __init__(self, harness: Harness, **options: Any) -> None:
        self.go_on = threading.Event()
        self.open = 0
        self.most = 0
        self.refused: list[TransactionUnavailable] = []
        self._lock = threading.Lock()
        harness.handler("async", **options)(self._on_loop())
        harness.handler("thread", **options)(self._in_thread())

        @harness.handler("other")
        async def other() -> None: ...

    def _on_loop(self) -> Callable[..., Any]:
        async def hold(ctx: Context) -> None:
            try:
                async with ctx.transaction():
                    self._count(1)
                    await asyncio.to_thread(self.go_on.wait, WAIT_SECONDS)
                    self._count(-1)
            except TransactionUnavailable as error:
                self.refused.append(error)
                raise

        return hold

    def _in_thread(self) -> Callable[..., Any]:
        def hold(ctx: Context) -> None:
            try:
                with ctx.transaction():
                    self._count(1)
                    self.go_on.wait(WAIT_SECONDS)
                    self._count(-1)
            except TransactionUnavailable as error:
                self.refused.append(error)
                raise

        return hold

    def _count(self, change: int) -> None:
        with self._lock:
            self.open += change
            self.most = max(self.most, self.open)


@pytest.fixture
def holders(harness: Harness) -> Iterator[Holders]:
    holders = Holders(harness)
    yield holders
    holders.go_on.set()


@pytest.mark.representatives(1)
@forms
@on_postgresql
async def test_outcomes_are_written_while_all_transactions_of_handlers_are_open(
    harness: Harness, holders: Holders, form: str
) -> None:
    waiting = [await harness.submit(form) for _ in range(MANY)]
    async with harness.running(concurrency=2 * MANY, threads=2 * MANY) as runner:
        await until(lambda: holders.open == runner.settings.transaction_connections)
        await until(lambda: len(runner.worker.in_flight.started()) == MANY)
        others = [await harness.submit("other") for _ in range(5)]
        await harness.wait_for(*others)
        holders.go_on.set()
        await harness.wait_for(*waiting)
    rows = [await harness.row(task) for task in waiting]
    assert [(row.state, row.attempt, row.releases) for row in rows] == [("succeeded", 1, 0)] * MANY
    assert holders.most == runner.settings.transaction_connections == 10


@on_postgresql
async def test_coroutines_and_threads_share_one_limit(harness: Harness, holders: Holders) -> None:
    tasks = [await harness.submit(form) for form in ("async", "thread") * 2]
    async with harness.running(transaction_connections=2) as runner:
        await until(lambda: holders.open == 2)
        await until(lambda: sum(bool(each.waits_for) for each in runner.worker.in_flight.tasks.values()) == 2)
        holders.go_on.set()
        await harness.wait_for(*tasks)
    assert holders.most == 2
    assert [(await harness.row(task)).attempt for task in tasks] == [1] * 4


@forms
async def test_a_handler_that_gets_no_transaction_loses_no_attempt(
    harness: Harness, holders: Holders, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_transactions, "MAX_WAIT", 0.05)
    first = await harness.submit(form, key="first")
    async with harness.running(transaction_connections=1):
        await until(lambda: holders.open == 1)
        if harness.database.dialect.is_server:
            second = await harness.submit(form)
            await until(lambda: _released(harness, second))
            row = await harness.row(second)
            assert row.attempt <= 1, "the one that runs now"
            assert "all 1 connections for transactions of handlers are in use (transaction_connections)" in row.error
            holders.go_on.set()
            await harness.wait_for(second)
            assert (await harness.row(second)).attempt == 1
        holders.go_on.set()
        await harness.wait_for(first)
    assert (await harness.row(first)).attempt == 1


async def _released(harness: Harness, task: int) -> bool:
    return bool((await harness.row(task)).releases)


@forms
@on_postgresql
async def test_a_time_out_while_it_waits_for_a_transaction_counts_no_attempt(harness: Harness, form: str) -> None:
    holders = Holders(harness)
    first = await harness.submit("async")
    async with harness.running(transaction_connections=1) as runner:
        await until(lambda: holders.open == 1)
        second = await harness.submit(form, timeout=0.05, max_attempts=1)
        await until(lambda: _released(harness, second))
        table = harness.database.tables.task
        await harness.change(sa.update(table).where(table.c.id == second).values(timeout=WAIT_SECONDS * 6))
        in_flight = runner.worker.in_flight.tasks
        await until(lambda: second in in_flight and in_flight[second].task.timeout != 0.05)
        holders.go_on.set()
        await harness.wait_for(first, second)
    row = await harness.row(second)
    assert (row.state, row.attempt) == ("succeeded", 1)
    assert not await harness.attempts(second)


@on_postgresql
async def test_one_line_in_the_log_names_the_setting_when_handlers_wait_for_long(
    harness: Harness, holders: Holders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handler_transactions, "LOG_AFTER", 0.0)
    caplog.set_level(logging.WARNING, "runner")
    tasks = [await harness.submit(form) for form in ("async", "async", "thread", "thread")]
    async with harness.running(transaction_connections=1):
        await until(lambda: holders.open == 1)
        await until(lambda: "for its transaction" in caplog.text)
        holders.go_on.set()
        await harness.wait_for(*tasks)
    lines = [record.getMessage() for record in caplog.records if "for its transaction" in record.getMessage()]
    assert len(lines) == 1
    assert "all 1 connections for transactions of handlers are in use (transaction_connections)" in lines[0]


@forms
@on_sqlite
async def test_a_runner_lives_on_after_a_transaction_longer_than_its_lease(
    harness: Harness, holders: Holders, form: str
) -> None:
    other = await harness.submit("other")
    tasks = [await harness.submit(form) for _ in range(3)]
    async with harness.running(lease_timeout="500ms", heartbeat_interval="100ms", threads=4) as runner:
        await until(lambda: holders.open == 1)
        registered = runner.lease.id
        await until(lambda: not runner.lease.is_valid)
        holders.go_on.set()
        await harness.wait_for(other, *tasks)
        await until(lambda: runner.lease.is_valid)
        assert runner.lease.id == registered
    rows = [await harness.row(task) for task in (other, *tasks)]
    assert [(row.state, row.attempt, row.rescues) for row in rows] == [("succeeded", 1, 0)] * 4
    assert holders.most == 1


@forms
@on_sqlite
async def test_a_file_that_another_program_writes_to_costs_no_attempt(
    harness: Harness, lock: Lock, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_transactions, "MAX_WAIT", 0.2)
    monkeypatch.setattr(handler_transactions, "BUSY_SECONDS", 0.05)
    refused: list[TransactionUnavailable] = []
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def on_loop(ctx: Context) -> None:
        begun.set()
        await asyncio.to_thread(go_on.wait, WAIT_SECONDS)
        try:
            async with ctx.transaction():
                pass
        except TransactionUnavailable as error:
            refused.append(error)
            raise

    def in_thread(ctx: Context) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(WAIT_SECONDS)
        try:
            with ctx.transaction():
                pass
        except TransactionUnavailable as error:
            refused.append(error)
            raise

    harness.handler("pay")(on_loop if form == "async" else in_thread)
    task = await harness.submit("pay", max_attempts=1)
    async with harness.running(heartbeat_interval="2s"):
        await wait_for_event(begun)
        await lock.take()
        go_on.set()
        await until(lambda: bool(refused))
        lock.release()
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt) == ("succeeded", 1)
    assert not await harness.attempts(task)
