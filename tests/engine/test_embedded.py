"""A runner inside an application: on its event loop, in a thread, several in one program."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import Runner, TaskHandler, connect, disconnect, handler, injected, resource
from runner.client.client import connected_settings
from runner.errors import ConfigurationError, SchemaMissing
from runner.testing import TaskStore
from tests.conftest import on_postgresql, on_sqlite
from tests.engine.harness import WAIT_SECONDS, until

QUICK: dict[str, Any] = {"lease_timeout": "5s", "heartbeat_interval": "100ms", "drain_timeout": "2s"}


class Handlers:
    """Handlers that record where they ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []

    def make(self, name: str) -> TaskHandler[Any, Any, Any]:
        @handler(name)
        async def work(queue: str) -> None:
            self.ran.append((queue, threading.current_thread().name))

        return work


@pytest.fixture
def handlers(own_handlers: None) -> Handlers:
    return Handlers()


@pytest.fixture
def store(migrated_url: str) -> Iterator[TaskStore]:
    with TaskStore(migrated_url) as store:
        yield store


async def test_it_runs_on_the_event_loop_of_the_application(handlers: Handlers, store: TaskStore) -> None:
    work = handlers.make("test.embedded")
    signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    logs = (list(logging.getLogger().handlers), logging.getLogger("runner").level)
    await work.submit_async(queue="first")
    async with Runner([work], settings=store.settings, **QUICK) as runner:
        assert runner.id > 0
        await work.submit_async(queue="second")
        await until(lambda: len(handlers.ran) == 2)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == signals
        with pytest.raises(ConfigurationError, match="this Runner runs in its own block; make a new one"):
            await runner.run(until_idle=True)
    assert handlers.ran == [("first", "MainThread"), ("second", "MainThread")]
    assert {task.state for task in store.tasks()} == {"succeeded"}
    assert (list(logging.getLogger().handlers), logging.getLogger("runner").level) == logs
    with pytest.raises(ConfigurationError, match="this Runner has run before; make a new one"):
        await runner.run()


@on_sqlite
async def test_several_runners_scan_their_own_queues(handlers: Handlers, store: TaskStore) -> None:
    opened: list[str] = []

    @resource
    async def name() -> AsyncIterator[str]:
        opened.append("open")
        yield f"runner {len(opened)}"

    runs: list[tuple[str, str]] = []

    @handler("test.several")
    async def work(queue: str, name: str = injected) -> None:
        runs.append((queue, name))

    one = Runner([work], settings=store.settings, queues=["mail"], **QUICK)
    two = Runner(["test.several"], settings=store.settings, queues=["video"], poll_interval="5s", **QUICK)
    async with one, two:
        for queue in ("mail", "video"):
            await work.options(queue=queue).submit_async(queue=queue)
        await until(lambda: len(runs) == 2)
    assert {queue for queue, _ in runs} == {"mail", "video"}
    assert len({runner for _, runner in runs}) == 2


@on_sqlite
def test_it_runs_in_a_thread_of_a_plain_program(handlers: Handlers, store: TaskStore) -> None:
    work = handlers.make("test.thread")
    with Runner([work], settings=store.settings, **QUICK):
        assert work.submit(queue="q").result(timeout=WAIT_SECONDS) is None
    assert {thread for _, thread in handlers.ran} == {"runner"}


async def test_a_period_of_zero_scans_once(handlers: Handlers, store: TaskStore) -> None:
    work = handlers.make("test.once")

    @handler("test.fails", retry="1h")
    async def fails() -> None:
        raise ValueError

    for _ in range(7):
        await work.submit_async(queue="q")
    await work.options(delay="1h").submit_async(queue="later")
    await fails.submit_async()
    runner = Runner([work, fails], settings=store.settings, poll_interval=0, concurrency=2, prefetch=0, **QUICK)
    async with asyncio.timeout(WAIT_SECONDS):
        assert await runner.run()
    assert len(handlers.ran) == 7
    assert sorted(task.state for task in store.tasks()) == ["succeeded"] * 7 + ["waiting"] * 2


@on_sqlite
async def test_a_runner_without_handlers_is_refused(handlers: Handlers, store: TaskStore) -> None:
    with pytest.raises(ConfigurationError, match="no handlers; import the module that defines them"):
        Runner([], settings=store.settings)


def test_one_handler_in_the_place_of_several_is_refused(handlers: Handlers, store: TaskStore) -> None:
    work: Any = handlers.make("test.alone")
    for alone in (work, "test.alone"):
        with pytest.raises(ConfigurationError, match=r"handlers=\['test\.alone'\]"):
            Runner(alone, settings=store.settings)


@on_postgresql
async def test_a_database_without_tables_is_reported_at_the_start(
    handlers: Handlers, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    work = handlers.make("test.schema")
    with pytest.raises(SchemaMissing):
        async with Runner([work], url=database_url):
            raise AssertionError
    with pytest.raises(SchemaMissing):
        await asyncio.to_thread(_enter_and_leave, Runner([work], url=database_url))
    assert caplog.messages == []


@on_sqlite
async def test_a_second_block_of_a_runner_is_refused_once(
    handlers: Handlers, store: TaskStore, caplog: pytest.LogCaptureFixture
) -> None:
    runner = Runner([handlers.make("test.again")], settings=store.settings)
    await asyncio.to_thread(_enter_and_leave, runner)
    with pytest.raises(ConfigurationError, match="this Runner has run before; make a new one"):
        await asyncio.to_thread(_enter_and_leave, runner)
    with pytest.raises(ConfigurationError, match="this Runner has run before; make a new one"):
        await runner.__aenter__()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def _enter_and_leave(runner: Runner) -> None:
    with runner:
        pass


@on_sqlite
async def test_it_works_on_the_database_of_connect(
    handlers: Handlers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, databases: object
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TASKTUI_URL", raising=False)
    work = handlers.make("test.connected")
    connect(url="sqlite:///app.db", table_prefix="shop_")
    try:
        async with Runner([work], concurrency=7, **QUICK) as runner:
            await (await work.submit_async(queue="a")).wait(timeout=WAIT_SECONDS)
        assert (runner.settings.concurrency, runner.settings.table_prefix) == (7, "shop_")
        assert Runner([work], url=None, concurrency=None).settings == connected_settings()
        other = Runner([work], url="sqlite:///other.db").settings
        assert (other.url.database, other.table_prefix) == (str(tmp_path / "other.db"), "")
    finally:
        disconnect()
    assert [file.name for file in tmp_path.glob("*.db")] == ["app.db"]


@on_sqlite
async def test_a_handler_may_change_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: Handlers, databases: object
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)  # and back, at the end of the test
    monkeypatch.setenv("TASKTUI_URL", "sqlite:///app.db")
    disconnect()

    @handler("test.chdir")
    def chdir() -> str:
        os.chdir(elsewhere)
        return str(Path.cwd())

    work = handlers.make("test.after")
    try:
        async with Runner([chdir, work], url="sqlite:///app.db", **QUICK):
            folders = await (await chdir.submit_async()).wait(timeout=WAIT_SECONDS)
            for queue in ("a", "b"):  # the second one on an idle connection
                await (await work.submit_async(queue=queue)).wait(timeout=WAIT_SECONDS)
    finally:
        disconnect()
    assert folders == str(elsewhere)
    assert [queue for queue, _ in handlers.ran] == ["a", "b"]
    assert not [*elsewhere.iterdir()]


@on_sqlite
async def test_an_application_starts_without_its_database(
    handlers: Handlers, tmp_path: Path, caplog: pytest.LogCaptureFixture, databases: object
) -> None:
    work = handlers.make("test.away")
    async with Runner([work], url="postgresql://127.0.0.1:9/none", **QUICK) as runner:
        assert runner.id == 0
    assert "database unavailable: retrying" in caplog.text
