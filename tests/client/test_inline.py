"""Calls that store a task only on failure, chunks of rows, and the unfinished tasks of a key."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from runner import Context, Dead, Retry, TaskHandle, find_async, handler, injected, unfinished, unfinished_async
from runner.errors import InvalidInline, InvalidInput, InvalidPayload, InvalidTask, WouldBlock
from runner.testing import TaskStore


@pytest.fixture
def store(migrated_url: str, own_handlers: None) -> Iterator[TaskStore]:
    with TaskStore(migrated_url) as store:
        yield store


def test_a_call_that_succeeds_stores_no_task(store: TaskStore) -> None:
    @handler("test.inline")
    def work(ctx: Context, n: int) -> int:
        ctx.progress(1)
        return n + ctx.attempt

    assert work.call_or_submit(n=6) == 7
    with pytest.raises(InvalidPayload, match="n: "):
        work.call_or_submit(n="many")  # type: ignore[arg-type] # the error is under test
    assert store.tasks() == []


def test_a_call_keeps_its_checkpoints_in_memory(store: TaskStore) -> None:
    @handler("test.checkpoints")
    def work(ctx: Context, n: int) -> list[Any]:
        ctx.checkpoint({"line": n})
        stored = ctx.state
        ctx.keep({"line": n + 1})
        return [stored, ctx.state]

    assert work.call_or_submit(n=6) == [{"line": 6}, {"line": 7}]

    @handler("test.awaited")
    async def awaited(ctx: Context, n: int) -> Any:
        await ctx.checkpoint({"line": n})
        return ctx.state

    assert awaited.call_or_submit(n=6) == {"line": 6}
    assert store.tasks() == []


def test_a_call_that_fails_stores_a_task_with_its_arguments(store: TaskStore) -> None:
    @handler("test.fails", on_error=LookupError)
    def work(n: int) -> str | Retry:
        if n == 1:
            raise ConnectionError("relay is down")
        if n == 2:
            return Retry("1h", "later")
        raise LookupError(n) if n == 3 else Dead("no such shop")

    handle = work.options(key="k").call_or_submit(n=1)
    assert isinstance(handle, TaskHandle)
    later = work.call_or_submit(n=2)
    with pytest.raises(LookupError):
        work.call_or_submit(n=3)
    with pytest.raises(Dead):
        work.call_or_submit(n=4)
    first, second = store.tasks(work)
    assert (first.id, first.payload, first.key) == (handle, {"n": 1}, "k")
    assert (second.id, (second.run_at - first.run_at).total_seconds() > 3_500) == (later, True)


def test_none_where_a_result_is_declared_follows_the_rule(store: TaskStore) -> None:
    def count(n: int) -> int:
        return None if n else 1  # type: ignore[return-value] # the mistake under test

    again = handler("test.again", on_none=lambda ctx: Retry("1h", f"{ctx.handler} gave nothing"))(count)
    assert again.call_or_submit(n=0) == 1
    handle = again.call_or_submit(n=1)
    (task,) = store.tasks(again)
    assert (handle, task.payload) == (task.id, {"n": 1})
    given_up = handler("test.given.up", on_none="dead")(count)
    with pytest.raises(Dead, match="None where a result of type int is declared"):
        given_up.call_or_submit(n=1)
    tolerant = handler("test.tolerant")(count)
    assert tolerant.call_or_submit(n=1) is None
    assert len(store.tasks()) == 1


def test_an_async_handler_runs_inline_without_a_loop(store: TaskStore) -> None:
    @handler("test.alone")
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return 10 // n

    assert work.call_or_submit(n=5) == 2
    assert work.call_or_submit(n=0) == store.tasks()[0].id


async def test_async_handlers_run_inline_too(store: TaskStore) -> None:
    @handler("test.async")
    async def work(n: int) -> int:
        return 10 // n

    with pytest.raises(WouldBlock, match="call_or_submit_async"):
        work.call_or_submit(n=1)
    assert await work.call_or_submit_async(n=5) == 2
    assert await work.call_or_submit_async(n=0) == store.tasks()[0].id

    @handler("test.resource")
    async def needs(pool: Any = injected) -> None: ...

    with pytest.raises(InvalidInline, match="only a runner opens its resources: pool"):
        await needs.call_or_submit_async()


def test_rows_are_submitted_in_chunks(store: TaskStore) -> None:
    @handler("test.load")
    def load(rows: list[int], account: int) -> int:
        return sum(rows) + account

    handles = load.submit_chunks("rows", iter(range(10)), 4, account=100)
    assert [task.payload["rows"] for task in store.tasks(load)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    store.drain()
    assert [handle.result(timeout=0) for handle in handles] == [106, 122, 117]
    with pytest.raises(InvalidInput, match="the size of a chunk is 0"):
        load.submit_chunks("rows", [1], 0)
    with pytest.raises(InvalidPayload, match="call 1"):
        load.submit_chunks("rows", [1, "x"], 1, account=1)
    assert len(store.tasks(load)) == 3, "a part was submitted"


async def test_rows_are_submitted_in_chunks_on_an_event_loop(store: TaskStore) -> None:
    @handler("test.load")
    def load(rows: list[int], account: int) -> None: ...

    handles = await load.submit_chunks_async("rows", range(5), 2, account=100)
    assert len(handles) == 3
    assert [task.payload["rows"] for task in store.tasks(load)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(InvalidInput, match="the size of a chunk is 0"):
        await load.submit_chunks_async("rows", [1], 0, account=100)


async def test_unfinished_tasks_are_found_by_handler_and_key(store: TaskStore) -> None:
    @handler("test.work")
    def work() -> None: ...

    @handler("test.other")
    def other() -> None: ...

    first = await work.options(key="order-7").submit_async()
    second = await work.options(key="order-7", delay="1h").submit_async()
    await other.options(key="order-7").submit_async()
    assert await unfinished_async(work, "order-7") == [first, second]
    await store.drain_async(work)
    assert await unfinished_async("test.work", "order-7") == [second]
    with pytest.raises(WouldBlock, match="unfinished_async"):
        unfinished(work, "order-7")
    number: Any = 7
    for search in (unfinished_async, find_async):
        with pytest.raises(InvalidTask, match="Invalid value 7 for `key`: expected text, got int"):
            await search(work, number)
