"""Plain functions that do not end after their timeout: spare threads replace theirs, up to a bound."""

import threading
from collections.abc import Iterator
from datetime import UTC

import pytest

from runner.cli.check import CheckStatus, run_checks
from runner.queries.runners import RunnerRow, runners
from runner.queries.why.why import why
from runner.settings import Settings
from runner.urls import parse_url
from tests.engine.harness import WAIT_SECONDS, Harness, until


class Hanging:
    """A function that does not end until the test lets it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def work(self) -> None:
        self.go_on.wait(WAIT_SECONDS)


@pytest.fixture
def hanging(harness: Harness) -> Iterator[Hanging]:
    function = Hanging()
    harness.handler("hangs", timeout=0.02, max_attempts=1)(function.work)
    harness.handler("quick")(lambda: None)
    yield function
    function.go_on.set()


async def the_runner(harness: Harness) -> RunnerRow:
    (row,) = await harness.database.read(runners)
    return row


async def reported(harness: Harness, abandoned: int, replaced: int) -> bool:
    row = await the_runner(harness)
    return (row.abandoned, row.replaced) == (abandoned, replaced)


@pytest.mark.slow
async def test_spare_threads_replace_functions_that_hang_up_to_the_bound(
    harness: Harness, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_loop() -> None: ...

    harness.handler("async")(on_loop)
    async with harness.running(threads=1, spare_threads=2) as engine:
        for number in (1, 2):
            hung, after = await harness.submit("hangs"), await harness.submit("quick")
            await harness.wait_for(hung, after)
            await until(lambda number=number: reported(harness, number, number))  # type: ignore[misc]
        assert (await the_runner(harness)).remarks[0] == "2 abandoned threads"
        assert "a spare thread replaces it (2 of 2 used)" in caplog.text
        await harness.wait_for(await harness.submit("hangs"))
        await until(lambda: reported(harness, 3, 2))
        assert (await the_runner(harness)).remarks[0] == "3 abandoned threads, 1 slot lost"
        assert "it keeps its slot until it ends (1 slot lost)" in caplog.text
        last = await harness.submit("quick")
        await harness.wait_for(await harness.submit("async"))
        texts = [cause.text for cause in (await harness.database.read(why, last, UTC)).causes]
        assert any("no threads are free: none in 0 threads; 1 slot lost to abandoned threads" in text for text in texts)
        findings = [item async for item in run_checks(Settings(url=parse_url(harness.url))) if item.topic == "threads"]
        assert [item.verdict for item in findings] == [CheckStatus.WRONG]
        assert findings[0].found.endswith("has 3 abandoned threads, 1 slot lost")
        assert threading.active_count() - len([t for t in threading.enumerate() if "runner-task" not in t.name]) <= 3
        hanging.go_on.set()
        await harness.wait_for(last)
        await until(lambda: (engine.worker.executor.stuck, engine.worker.in_flight.in_threads.in_use) == (0, 0))
        await until(lambda: reported(harness, 0, 0))


async def test_without_spare_threads_a_function_that_hangs_keeps_its_slot(harness: Harness, hanging: Hanging) -> None:
    async with harness.running(threads=2, spare_threads=0):
        await harness.wait_for(await harness.submit("hangs"), await harness.submit("quick"))
        await until(lambda: reported(harness, 1, 0))
        assert (await the_runner(harness)).sizes["threads"] == 1
        await harness.wait_for(await harness.submit("quick"))


def test_as_many_threads_are_spare_as_there_are_threads() -> None:
    assert Settings(threads=7).spare_threads == 7
