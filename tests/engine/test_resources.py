"""Resources: opened once per runner, passed to handlers, closed at the end; errors in them are contained."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from runner import Context, injected, on_start, on_stop, resource
from runner.engine.hosting.probes import serve_probes
from runner.errors import InvalidHandler
from runner.handlers.registry import Handler
from runner.handlers.resources import RESOURCES, InvalidResource
from tests.conftest import on_sqlite
from tests.engine.harness import Harness, at_work, until
from tests.engine.test_probes import until_probe

pytestmark = [on_sqlite, pytest.mark.usefixtures("own_hooks")]


class Pool:
    """A connection pool of the application."""


async def test_a_resource_is_opened_once_and_closed_after_the_last_task(harness: Harness) -> None:
    events: list[object] = []

    @resource
    async def pool() -> AsyncIterator[Pool]:
        events.append("open")
        yield Pool()
        events.append("close")

    @harness.handler("by-type")
    async def by_type(ctx: Context, n: int, connections: Pool = injected) -> None:
        events.append((n, connections))

    @harness.handler("by-name")
    def by_name(n: int, pool=injected) -> None:  # type: ignore[no-untyped-def] # the name alone decides
        events.append((n, pool))

    @on_start
    async def started(pool: Pool) -> None:
        events.append("start")

    @on_stop
    def stopped(pool: Pool) -> None:
        events.append("stop")

    tasks = [await harness.submit("by-type", {"n": 1}), await harness.submit("by-name", {"n": 2})]
    await harness.work()
    assert [await harness.state(task) for task in tasks] == ["succeeded", "succeeded"]
    first, second = sorted(event for event in events if isinstance(event, tuple))
    assert isinstance(first[1], Pool)
    assert first[1] is second[1]
    order = [event for event in events if isinstance(event, str)]
    assert order == ["open", "start", "stop", "close"]
    assert events[:2] == ["open", "start"]


async def test_a_plain_resource_runs_in_one_thread_and_receives_others(harness: Harness) -> None:
    threads: list[int] = []

    @resource
    def config() -> Iterator[dict[str, int]]:
        threads.append(threading.get_ident())
        yield {"size": 3}
        threads.append(threading.get_ident())

    @resource
    def model(config: dict[str, int]) -> Iterator[Pool]:
        threads.append(config["size"])
        yield Pool()
        threads.append(threading.get_ident())

    @harness.handler("work")
    async def work(model: Pool) -> str:
        return type(model).__name__

    task = await harness.run("work")
    assert (await harness.row(task)).result == '"Pool"'
    thread = threads[0]
    assert threads == [thread, 3, thread, thread]
    assert thread != threading.get_ident()


async def test_a_resource_that_cannot_be_opened_holds_only_its_own_handlers(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[str] = []

    @resource
    async def pool() -> AsyncIterator[Pool]:
        attempts.append("open")
        if len(attempts) < 3:
            raise ConnectionError("relay is down")
        yield Pool()

    @harness.handler("needs")
    async def needs(pool: Pool) -> None: ...

    @harness.handler("free")
    async def free() -> None: ...

    waiting, other = await harness.submit("needs"), await harness.submit("free")
    async with harness.running():
        await harness.wait_for(other)
        assert (await harness.row(waiting)).fence == 0, "claimed before its resource was open"
        await harness.wait_for(waiting)
    assert len(attempts) == 3
    assert "could not open resource pool" in caplog.text
    assert "ConnectionError: relay is down" in caplog.text
    assert "waiting handlers: needs" in caplog.text


async def test_a_runner_is_ready_when_its_resources_are_open(harness: Harness) -> None:
    opens = asyncio.Event()

    @resource
    async def pool() -> AsyncIterator[Pool]:
        await opens.wait()
        yield Pool()

    @harness.handler("needs")
    async def needs(pool: Pool) -> None: ...

    runner = harness.runner(listen="127.0.0.1:0")
    with serve_probes(runner) as probes:
        async with at_work(runner):
            await until_probe(probes.url, "/readyz", 503, "resources not open: pool\n")
            opens.set()
            await until_probe(probes.url, "/readyz", 200, "ok\n")


async def test_a_stop_does_not_wait_for_a_resource_that_opens_for_ever(harness: Harness) -> None:
    opening = asyncio.Event()

    @resource
    async def pool() -> AsyncIterator[Pool]:
        opening.set()
        await asyncio.Event().wait()
        yield Pool()

    @harness.handler("needs")
    async def needs(pool: Pool) -> None: ...

    runner = harness.runner()
    async with at_work(runner) as life:
        await asyncio.wait_for(opening.wait(), 90)
        runner.stop()
        assert await life


async def test_errors_of_start_stop_and_close_are_logged_and_stop_nothing(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @resource
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        raise OSError("close failed")

    @on_start
    def started() -> None:
        raise SystemExit("start failed")

    @on_stop
    async def stopped() -> None:
        raise LookupError("stop failed")

    @harness.handler("work")
    async def work(pool: Pool) -> None: ...

    task = await harness.submit("work")
    with caplog.at_level(logging.ERROR):
        await harness.work()
    assert await harness.state(task) == "succeeded"
    for text in ("start failed", "stop failed", "close failed", "could not close resource pool"):
        assert text in caplog.text, text


async def test_a_payload_argument_with_the_name_of_a_resource_stays_an_argument(harness: Harness) -> None:
    @resource
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()

    @harness.handler("work")
    async def work(pool: int) -> int:
        return pool

    task = await harness.run("work", {"pool": 7})
    assert (await harness.row(task)).result == "7"


async def test_a_resource_may_be_defined_after_its_handler(harness: Harness) -> None:
    async def work(pool: Pool, n: int) -> int:
        return n

    handler = Handler("work", work)
    assert handler.signature.takes("pool")

    @resource
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()

    assert not handler.signature.takes("pool")
    assert handler.signature.encode((), {"n": 1}) == '{"n":1}'


async def test_wrong_registrations_are_refused_with_the_reason(harness: Harness) -> None:
    with pytest.raises(InvalidResource, match="its function must yield"):
        resource(lambda: iter(()).__class__ and None)  # type: ignore[arg-type, return-value] # untyped applications
    first = resource(_pool("first"))
    with pytest.raises(InvalidResource, match="second define it: rename one of them"):
        resource(_pool("second"))
    assert RESOURCES["pool"] is first
    handler = Handler("work", _needs_client)
    with pytest.raises(InvalidHandler, match="its parameter client is injected, but no @resource has its type or name"):
        handler.require()


async def _needs_client(client: str = injected) -> None: ...


def _pool(name: str):  # type: ignore[no-untyped-def] # a function with another location each time
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()

    pool.__qualname__ = name
    return pool


async def test_a_circle_of_resources_is_named(harness: Harness) -> None:
    @resource
    def first(second: str = injected) -> Iterator[str]:
        yield second

    @resource
    def second(first: str = injected) -> Iterator[str]:
        yield first

    @harness.handler("work")
    async def work(first: str = injected) -> None: ...

    with pytest.raises(InvalidResource, match="it needs itself: first -> second -> first"):
        harness.runner()


async def test_a_runner_uses_replacements_without_opening(harness: Harness) -> None:
    @resource
    async def pool() -> AsyncIterator[Pool]:
        opened.append("pool")
        yield Pool()

    pools, opened = list[object](), list[str]()

    @harness.handler("work")
    async def work(pool: Pool) -> None:
        pools.append(pool)

    from runner.engine.runner import Engine

    fake = Pool()
    runner = Engine(harness.runner().settings, harness.handlers, {"pool": fake})
    await harness.submit("work")
    async with at_work(runner):
        await until(lambda: pools == [fake])
    assert opened == []
