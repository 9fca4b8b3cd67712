"""Submits on half-open connections: their outcome is unknown after their limit, and the next ones connect again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import psycopg
import pytest

from runner import connect, disconnect, handler
from runner.db.server_watch import answer_within
from runner.errors import SubmitUncertain
from runner.handlers.registry import REGISTRY
from tests.chaos.proxy import Proxy
from tests.conftest import on_postgresql

LIMIT = 1.0


@handler("half.open")
async def send() -> None: ...


HANDLER = send
REGISTRY._handlers.pop("half.open")


async def in_thread() -> object:
    return await asyncio.to_thread(HANDLER.submit)


async def in_loop() -> object:
    return await HANDLER.submit_async()


@pytest.fixture
def proxy(migrated_url: str) -> Iterator[Proxy]:
    with Proxy(migrated_url, 1) as proxy:
        yield proxy


@pytest.mark.representatives(1)
@on_postgresql
@pytest.mark.parametrize("submit", [in_thread, in_loop])
async def test_a_submit_without_an_answer_is_uncertain_and_the_next_one_connects_again(
    proxy: Proxy, migrated_url: str, submit: Callable[[], Awaitable[object]]
) -> None:
    connect(url=proxy.url)
    try:
        await submit()
        proxy.hold_all()
        message = r"no answer for \d+\.\d s from .* \(pid \d+\)"
        with answer_within(LIMIT), pytest.raises(SubmitUncertain, match=message):
            await submit()
        await submit()
    finally:
        await asyncio.to_thread(disconnect)
    with psycopg.connect(migrated_url) as direct:
        assert direct.execute("SELECT count(*) FROM task").fetchone() == (2,), "the request was swallowed, too"
