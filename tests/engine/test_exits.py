"""SystemExit and KeyboardInterrupt in a task that a handler starts end neither the runner nor its other tasks.

A signal that its sender repeats ends it once.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from runner.engine import forced_end
from runner.engine import main as process
from runner.engine.hosting.event_loop import run_contained
from runner.errors import ConfigurationError
from tests.databases import database_at
from tests.engine.harness import Harness


@pytest.fixture
def in_harness(migrated_url: str) -> Callable[..., None]:
    """Run a test on an event loop of its own, as the runner process does."""

    def run(test: Callable[[Harness], object]) -> None:
        async def execute() -> None:
            async with database_at(migrated_url) as database:
                await test(Harness(database, migrated_url))  # type: ignore[misc]

        run_contained(execute())

    return run


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_task_of_a_handler_does_not_end_the_runner(
    in_harness: Callable[..., None], caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    async def child() -> None:
        raise kind("hunter2")

    async def test(harness: Harness) -> None:
        begun = asyncio.Event()

        @harness.handler("exits", max_attempts=1)
        async def exits(how: str) -> None:
            await begun.wait()
            match how:
                case "await":
                    await asyncio.create_task(child())
                case "group":
                    async with asyncio.TaskGroup() as group:
                        group.create_task(child())
                        group.create_task(asyncio.sleep(60))
                case "leave":
                    asyncio.create_task(child()).add_done_callback(lambda task: task.exception())
                    await asyncio.sleep(0.01)

        @harness.handler("neighbour", max_attempts=1)
        async def neighbour() -> str:
            begun.set()
            await asyncio.sleep(0.05)
            return "done"

        ways = {how: await harness.submit("exits", {"how": how}) for how in ("await", "group", "leave")}
        neighbours = [await harness.submit("neighbour")]
        async with harness.running():
            await harness.wait_for(*ways.values(), *neighbours)
            neighbours.append(await harness.submit("neighbour"))
            await harness.wait_for(*neighbours)
        states = {how: await harness.state(id) for how, id in ways.items()}
        assert states == {"await": "dead", "group": "dead", "leave": "succeeded"}
        assert [(await harness.row(id)).attempt for id in neighbours] == [1, 1]
        (attempt,) = await harness.attempts(ways["await"])
        assert attempt.error_type == kind.__name__

    caplog.set_level(logging.ERROR, "runner")
    in_harness(test)
    messages = [record.getMessage() for record in caplog.records if "the runner continues" in record.getMessage()]
    assert len(messages) == 3
    line = child.__code__.co_firstlineno + 1
    assert all(f"{kind.__name__} in coroutine {child.__qualname__} at {__file__}:{line}:" in text for text in messages)
    assert not any("hunter2" in text for text in messages)


def test_an_exit_of_the_main_coroutine_ends_it() -> None:
    async def main() -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    with pytest.raises(SystemExit) as exit_:
        run_contained(main())
    assert exit_.value.code == 3


async def test_a_signal_that_its_sender_repeats_at_once_only_drains(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(forced_end, "exit_now", exits.append)
    runner, forced = harness.runner(), forced_end.ForcedEnd(60.0, lambda _: None, 1)
    try:
        with process._signals(runner, forced):
            for _ in range(2):  # as `timeout` does: to the process, and to its group
                signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
    finally:
        forced.disarm()
    assert runner.stopping
    assert (exits, forced.code) == ([], 1)


@pytest.mark.parametrize(("module", "names"), [("gevent.monkey", "saved"), ("eventlet.patcher", "already_patched")])
async def test_a_runner_refuses_to_start_where_a_library_has_replaced_threads_and_sockets(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, module: str, names: str
) -> None:
    @harness.handler("plain")
    async def plain() -> None: ...

    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{names: {"os": {}, "socket": {}, "threading": {}}}))
    with pytest.raises(ConfigurationError, match=r"has patched modules of the standard library \(socket, threading\)"):
        harness.runner()
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{names: {}}))
    await harness.work()
