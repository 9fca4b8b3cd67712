"""Runners stop a handler while its service fails, spend few attempts on probes, and start it again by themselves."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context, Dead, handler
from runner.db.types import db_now
from runner.errors import InvalidHandler
from runner.policy.breaker import Breaker
from tests.engine.harness import Harness, until


class Service:
    """A service that may be down."""

    def __init__(self) -> None:
        self.down = True
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        if self.down:
            raise ConnectionError("refused")


def serve(harness: Harness, **options: Any) -> Service:
    service = Service()

    @harness.handler("sms", retry="1ms", max_attempts=100, **options)
    async def sms() -> None:
        service.call()

    return service


def is_open(harness: Harness, name: str = "sms") -> Callable[[], Any]:
    async def condition() -> bool:
        entry = harness.database.tables.handler.c
        return bool(await harness.rows(sa.select(entry.name).where(entry.name == name, entry.breaker_probes > 0)))

    return condition


async def idle(harness: Harness) -> bool:
    task = harness.database.tables.task
    return await harness.count(task, task.c.state == "running") == 0


async def round_is(harness: Harness, number: int) -> bool:
    entry = harness.database.tables.handler.c
    return bool(await harness.rows(sa.select(entry.name).where(entry.breaker_round == number)))


async def hasten(harness: Harness) -> None:
    """Let the next probe start now."""
    handler = harness.database.tables.handler
    await harness.change(sa.update(handler).where(handler.c.breaker_probes > 0).values(breaker_probe_at=db_now()))


@pytest.mark.slow
async def test_an_outage_costs_few_calls_and_all_tasks_succeed_after_it(harness: Harness) -> None:
    service = serve(harness, breaker=Breaker("5/min", probe="1h"))
    ids = [await harness.submit("sms") for _ in range(60)]
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(harness.running())
        await until(is_open(harness))
        await until(lambda: idle(harness))
        calls = service.calls
        await hasten(harness)
        await until(lambda: round_is(harness, 2))
        assert service.calls == calls + 1
        assert await harness.count(harness.database.tables.attempt) == calls + 1
        service.down = False
        await hasten(harness)
        await harness.wait_for(*ids)
        assert not await is_open(harness)()


async def test_a_class_opens_it_at_once_and_others_do_not_count(harness: Harness) -> None:
    errors: list[Exception] = [ValueError("bad"), KeyError("bad"), ConnectionRefusedError("gone")]

    @harness.handler("sms", max_attempts=1, breaker=Breaker(opens_on=ConnectionError))
    async def sms(number: int) -> None:
        raise errors[number]

    ids = [await harness.submit("sms", {"number": number}) for number in (0, 1)]
    async with harness.running():
        await harness.wait_for(*ids)
        assert not await is_open(harness)()
        await harness.submit("sms", {"number": 2})
        await until(is_open(harness))


async def test_a_timeout_counts_as_a_timeout_error(harness: Harness) -> None:
    @harness.handler("slow", timeout=0.01, breaker=Breaker("1/min", errors=TimeoutError))
    async def slow() -> None:
        await asyncio.Event().wait()

    await harness.submit("slow")
    async with harness.running():
        await until(is_open(harness, "slow"))


async def test_dead_judges_the_task_and_not_the_service(harness: Harness) -> None:
    @harness.handler("sms", breaker=Breaker("1/min"))
    async def sms() -> None:
        raise Dead("no such number")

    task = await harness.submit("sms")
    async with harness.running():
        await harness.wait_for(task)
        assert not await is_open(harness)()


async def test_a_probe_in_its_own_transaction_closes_it(harness: Harness) -> None:
    down = [True]

    @harness.handler("sms", max_attempts=1, breaker=Breaker("1/min"))
    async def sms(ctx: Context) -> None:
        if down:
            raise ConnectionError("refused")
        async with ctx.transaction():
            pass

    await harness.submit("sms")
    async with harness.running():
        await until(is_open(harness))
        down.clear()
        task = await harness.submit("sms")  # An attempt that began before the opening would not be a probe.
        await hasten(harness)
        await harness.wait_for(task)
        await until(lambda: _closed(harness))


async def _closed(harness: Harness) -> bool:
    return not await is_open(harness)()


@pytest.mark.parametrize(
    ("breaker", "why"),
    [
        ("10", "expected failures per time, such as 10/min"),
        ("0/min", "expected failures per time"),
        (10, "expected failures per time"),
        (Breaker(), "name a number of failures"),
        (Breaker("5/min", probe="never"), "at least 1s"),
        (Breaker("5/min", probe="soon"), "soon"),
        (Breaker("5/min", probes=0), "whole number from 1 to 1,000"),
        (Breaker("5/min", errors="ConnectionError"), "expected an exception class"),  # type: ignore[arg-type]
        (Breaker(opens_on=(ValueError, 3)), "expected an exception class"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_breaker_is_refused_at_the_definition(breaker: Any, why: str) -> None:
    with pytest.raises(InvalidHandler, match=why):
        handler("refused", breaker=breaker)
